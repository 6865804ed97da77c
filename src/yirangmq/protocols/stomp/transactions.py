"""STOMP jobs and transactions: the steps of one read in one commit; frames between BEGIN and COMMIT.

A job has its steps in the order of their frames. The first step that is refused ends it: the steps before it are done
and confirmed, those after it are not done, and the client gets an error. Adjacent sends to one queue, and adjacent
acks, are one step.

A transaction collects sends and acks, and does nothing before COMMIT. It contains queues or topics, never both: they
are in two stores, and no commit spans both."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from yirangmq.broker.operations import AtomicBundle, QueueOperations
from yirangmq.broker.settle import MAX_PER_CALL, Leases
from yirangmq.core import transitions
from yirangmq.core.errors import BadInput, QueueError, StoreError, TooLarge
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Transaction
from yirangmq.core.topics import NewRecord
from yirangmq.core.transitions import Cause
from yirangmq.protocols.stomp.queue_subscriptions import CoveredLeases
from yirangmq.topics.ports import MAX_PER_PUBLISH

# -- jobs --------------------------------------------------------------------------------------------------------------

Receipt = str | None
BYTES_PER_WEIGHT = 64 * 1024


class BatchResult(NamedTuple):
    """Result of a job. ``receipts``: of the frames that were done. ``refused``: receipt of the frame that failed."""

    receipts: list[str]
    error: QueueError | None = None
    refused: Receipt = None


@dataclass(slots=True)
class SendStep:
    """Step: publish messages to one queue, each with a receipt or None."""

    queue: str
    envelopes: list[Envelope]
    receipts: list[Receipt]

    def perform(self, operations: QueueOperations, transaction: Transaction, now: int) -> tuple[int, QueueError | None]:
        """Return the number of frames done, and the error of the next one, if any."""
        try:
            operations.publish(transaction, self.queue, self.envelopes)
        except StoreError:
            raise
        except QueueError as error:
            if len(self.envelopes) == 1:
                return 0, error
            return self._one_by_one(operations, transaction)
        return len(self.receipts), None

    def _one_by_one(self, operations: QueueOperations, transaction: Transaction) -> tuple[int, QueueError | None]:
        """Publish the messages singly, so that those before the first invalid one are done."""
        for done, envelope in enumerate(self.envelopes):
            try:
                operations.publish(transaction, self.queue, [envelope])
            except StoreError:
                raise
            except QueueError as error:
                return done, error
        return len(self.envelopes), None


@dataclass(slots=True)
class SettleStep:
    """Step: ack leases, or nack them with a cause. ``counts``: number of leases of each frame."""

    cause: transitions.Cause | None
    leases: list[str]
    counts: list[int]
    receipts: list[Receipt]

    def perform(self, operations: QueueOperations, transaction: Transaction, now: int) -> tuple[int, QueueError | None]:
        leases = Leases(self.leases)
        if self.cause is None:
            results = operations.ack(transaction, leases, None)
        else:
            results = operations.nack(transaction, leases, None, self.cause)
        first = next((index for index, error in enumerate(results) if error is not None), None)
        if first is None:
            return len(self.receipts), None
        done = 0
        while first >= self.counts[done]:
            first -= self.counts[done]
            done += 1
        return done, next(error for error in results if error is not None)


@dataclass(slots=True)
class CommitStep:
    """Step: commit a client's transaction."""

    bundle: AtomicBundle
    receipts: list[Receipt]

    def perform(self, operations: QueueOperations, transaction: Transaction, now: int) -> tuple[int, QueueError | None]:
        try:
            self.bundle.perform(operations, transaction, now)
        except StoreError:
            raise
        except QueueError as error:
            return 0, error
        return 1, None


@dataclass(slots=True)
class CommitBatch:
    """Job of one read. Its steps are collected while the frames are processed; then it is submitted as a whole."""

    steps: list[SendStep | SettleStep | CommitStep] = field(default_factory=list)
    receipts: list[str] = field(default_factory=list)
    """Receipts of frames that need no step. They are sent after those of the steps."""
    size: int = 0

    @property
    def weight(self) -> int:
        """Return the weight of this job in the limit of unanswered requests: 1, and 1 per ``BYTES_PER_WEIGHT``."""
        return 1 + self.size // BYTES_PER_WEIGHT

    @property
    def leases(self) -> list[str]:
        """Return all leases that this job settles."""
        found: list[str] = []
        for step in self.steps:
            if isinstance(step, SettleStep):
                found += step.leases
            elif isinstance(step, CommitStep):
                found += step.bundle.acked + step.bundle.nacked
        return found

    def send(self, envelope: Envelope, receipt: Receipt) -> None:
        self.size += len(envelope.payload)
        last = self.steps[-1] if self.steps else None
        if isinstance(last, SendStep) and last.queue == envelope.queue and len(last.envelopes) < MAX_PER_CALL:
            last.envelopes.append(envelope)
            last.receipts.append(receipt)
        else:
            self.steps.append(SendStep(envelope.queue, [envelope], [receipt]))

    def settle(self, leases: Sequence[str], cause: transitions.Cause | None, receipt: Receipt) -> None:
        last = self.steps[-1] if self.steps else None
        fits = isinstance(last, SettleStep) and len(last.leases) + len(leases) <= MAX_PER_CALL
        if isinstance(last, SettleStep) and fits and last.cause == cause:
            last.leases += leases
            last.counts.append(len(leases))
            last.receipts.append(receipt)
        else:
            self.steps.append(SettleStep(cause, [*leases], [len(leases)], [receipt]))

    def commit(self, bundle: AtomicBundle, receipt: Receipt) -> None:
        self.size += sum(len(envelope.payload) for envelope in bundle.envelopes)
        self.steps.append(CommitStep(bundle, [receipt]))

    def perform(self, operations: QueueOperations, transaction: Transaction, now: int) -> BatchResult:
        receipts: list[str] = []
        if len(self.steps) > 1:
            self._clear(operations, transaction)
        for step in self.steps:
            done, error = step.perform(operations, transaction, now)
            receipts += [receipt for receipt in step.receipts[:done] if receipt is not None]
            if error is not None:
                return BatchResult(receipts, error, step.receipts[done])
        return BatchResult([*receipts, *self.receipts])

    def _clear(self, operations: QueueOperations, transaction: Transaction) -> None:
        """Find the messages that processors must check outside of the transaction, before the first step runs."""
        for step in self.steps:
            if isinstance(step, SendStep):
                operations.admission.clear(transaction, step.queue, step.envelopes)
            elif isinstance(step, CommitStep):
                for queue, envelopes in step.bundle.queues().items():
                    operations.admission.clear(transaction, queue, envelopes)


# -- transactions ------------------------------------------------------------------------------------------------------

MAX_OPEN_TRANSACTIONS = 64


@dataclass(slots=True)
class OpenTransaction:
    """Open transaction of a client: collected sends and settles, or records."""

    bundle: AtomicBundle = field(default_factory=AtomicBundle)
    records: list[NewRecord] = field(default_factory=list)
    taken: list[CoveredLeases] = field(default_factory=list)
    size: int = 0


class Transactions:
    """Open transactions of one client. ``max_bytes``: upper bound of all their payloads together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._open: dict[str, OpenTransaction] = {}

    def begin(self, name: str) -> None:
        if name in self._open:
            raise BadInput(f"{name[:60]!r} exists already", field="transaction")
        if len(self._open) >= MAX_OPEN_TRANSACTIONS:
            raise BadInput(f"{MAX_OPEN_TRANSACTIONS} are open already; commit or abort one", field="transaction")
        self._open[name] = OpenTransaction()

    def find(self, name: str) -> OpenTransaction:
        if name not in self._open:
            raise BadInput(f"{name[:60]!r} was not begun", field="transaction")
        return self._open[name]

    def take(self, name: str) -> OpenTransaction:
        """Remove and return a transaction, to commit or abort it."""
        found = self.find(name)
        del self._open[name]
        return found

    def forget(self) -> None:
        self._open.clear()

    def add(self, name: str, new: Envelope | NewRecord) -> None:
        found = self.find(name)
        found.size += len(new.payload)
        if sum(one.size for one in self._open.values()) > self._max_bytes:
            raise TooLarge(
                f"open transactions hold more than {self._max_bytes} bytes; commit earlier", field="transaction"
            )
        if isinstance(new, Envelope):
            found.bundle.add(new)
        elif len(found.records) >= MAX_PER_PUBLISH:
            raise TooLarge(f"more than {MAX_PER_PUBLISH} records; commit earlier", field="transaction")
        else:
            found.records.append(new)
        _check(found)

    def settle(self, name: str, taken: CoveredLeases, cause: Cause | None) -> None:
        found = self.find(name)
        found.bundle.settle([*taken.leases.values()], cause)
        found.taken.append(taken)
        _check(found)


def _check(found: OpenTransaction) -> None:
    if found.records and found.bundle.size:
        raise BadInput("is for queues or for topics, not for both", field="transaction")
