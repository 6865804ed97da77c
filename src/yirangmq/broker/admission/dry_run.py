"""Dry run of a queue's processor, and the processors in force: list, set, remove.

A dry run reports for each message whether the processor would admit it, and why not. Nothing is stored. Quota,
deduplication and the policy's ``schemas`` are not evaluated. The caller obtains the verdicts and passes them to
``report``.

The list names the origin of each processor: the queue's policy or the server's settings. Setting a processor changes
that member of the policy only; removing it returns the queue to the server's settings."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from yirangmq.broker import policies
from yirangmq.broker.admission.admission import AdmissionControl, NeedsCheck, Verdicts, key_of
from yirangmq.broker.context import TransactionContext
from yirangmq.core.errors import NotFound, QueueError, TooLarge
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Transaction
from yirangmq.core.processor import EVERY, Chain, show_chain
from yirangmq.format.envelope import with_digest
from yirangmq.format.json_codec import loads

BY_POLICY, BY_SERVER = "policy", "server"


class DryRun(NamedTuple):
    """A dry run: messages for a queue, with its chain. ``most``: the largest payload that it accepts, in bytes."""

    queue: str
    chain: Chain | None
    most: int
    envelopes: Sequence[Envelope]

    @property
    def needed(self) -> NeedsCheck | None:
        """The messages to be checked, or None if there is nothing to check."""
        fitting = [one for one in self.envelopes if len(one.payload) <= self.most]
        return NeedsCheck(self.queue, self.chain, fitting) if self.chain is not None and fitting else None

    def report(self, verdicts: Verdicts) -> dict[str, Any]:
        """Return for each message whether it would be stored, and if not, why."""
        rows = [self._row(envelope, verdicts) for envelope in self.envelopes]
        refused = sum(not row["ok"] for row in rows)
        return {"queue": self.queue, "processor": self.chain is not None, "refused": refused, "messages": rows}

    def _row(self, envelope: Envelope, verdicts: Verdicts) -> dict[str, Any]:
        size = len(envelope.payload)
        row: dict[str, Any] = {"bytes": size, "sha256": sha256(envelope.payload).hexdigest()}
        error: QueueError | None = None
        produced: list[dict[str, Any]] = []
        if size > self.most:
            error = TooLarge(f"{size} bytes, this queue takes {self.most}", field="payload")
        elif self.chain is not None:
            verdict = verdicts[key_of(envelope)]
            error = verdict.error or self._misstated(envelope)
            produced = [{"queue": hook.produces, "hook": hook.name} for hook, _ in verdict.produced]
        if error is not None:
            text = str(error).removeprefix(f"{error.field}: ") if error.field else str(error)
            row |= {"code": error.code, "error": text, "field": error.field}
        return {"ok": error is None, **row, "produces": produced}

    def _misstated(self, envelope: Envelope) -> QueueError | None:
        try:
            if self.chain is not None and self.chain.integrity:
                with_digest(envelope)
        except QueueError as error:
            return error
        return None


def prepare(transaction: Transaction, admission: AdmissionControl, queue: str, envelopes: Sequence[Envelope]) -> DryRun:
    return DryRun(queue, admission.chain_of(transaction, queue), transaction.policy(queue).max_body, envelopes)


def processor_rows(
    transaction: Transaction, context: TransactionContext, queue: str | None = None
) -> list[dict[str, Any]]:
    """Return a row per queue with a processor, or for ``queue`` only. The server's default processor comes last."""
    has_all = EVERY in context.defaults.chains
    known = {*(transaction.queues() if has_all else transaction.queues_with_policy()), *context.defaults.chains} - {
        EVERY
    }
    if queue is not None:
        known = {queue}
    rows = []
    for name in sorted(known):
        policy = policies.readable(transaction, name)
        chain = None if policy is None else context.defaults.chain_in(policy, name)
        if chain is not None and policy is not None:
            where = BY_SERVER if policy.chain is None else BY_POLICY
            rows.append({"queue": name, "from": where, "processor": show_chain(chain)})
    if queue is None and EVERY in context.defaults.chains:
        rows.append({"queue": EVERY, "from": BY_SERVER, "processor": show_chain(context.defaults.chains[EVERY])})
    return rows


def put(transaction: Transaction, context: TransactionContext, queue: str, document: object) -> dict[str, Any] | None:
    """Set the processor member of a policy. None removes it; then the server's settings apply."""
    text = transaction.policy_text(queue)
    whole = loads(text.encode()) if text else {}
    if document is None and whole.get("processor") is None:
        raise NotFound(f"queue {queue!r} has no processor of its own", field="queue")
    whole.pop("processor", None)
    if document is not None:
        whole["processor"] = document
    policy = policies.checked(whole, queue, context.schemas, context.admission)
    policies.put(transaction, context, queue, whole or None)
    return show_chain(policy.chain)
