"""Session of one STOMP client, sans-IO: frames in, receipts and messages out; the context that sessions share.

All frames of one read are one job of the group committer, so one commit. A receipt is sent when that commit is on
disk. As STOMP requires, an error is sent once, after the answers to all earlier frames, and then the connection is
closed. The commands are in ``protocols.stomp.commands``."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from yirangmq.core.access import ANYWHERE, AccessGrant
from yirangmq.core.errors import BadInput, NotAllowed, QueueError, Unavailable
from yirangmq.core.ports import Transaction
from yirangmq.core.topics import NewRecord
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.stomp import commands
from yirangmq.protocols.stomp.codec import HeartbeatTimers
from yirangmq.protocols.stomp.commands import StompAccess
from yirangmq.protocols.stomp.queue_subscriptions import AckBatcher, QueueLeases
from yirangmq.protocols.stomp.topic_hub import TopicHub
from yirangmq.protocols.stomp.transactions import BatchResult, CommitBatch, Receipt, Transactions
from yirangmq.wire.stomp import HEARTBEAT, V10, StompReader, encode

if TYPE_CHECKING:
    from yirangmq.protocols.stomp.topic_subscriptions import StompTopicSubscription

MAX_GREETING_BYTES = 8192
"""Maximum body size in bytes before a client has authenticated. CONNECT should have no body."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
MAX_IDS_AT_ONCE = 64
"""Maximum number of message ids that are generated together while one read is processed."""


@dataclass(slots=True)
class StompContext:
    """Context that all STOMP sessions of a server share."""

    context: ServerContext
    access: StompAccess
    hub: TopicHub
    server: str = "yirangmq"
    ack_batcher: AckBatcher = field(init=False)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    frames: Counter[str] = field(default_factory=Counter)
    """Number of frames by command since the start: received ones, and MESSAGE."""
    errors: Counter[str] = field(default_factory=Counter)
    """Number of ERROR frames by error code."""

    def __post_init__(self) -> None:
        self.ack_batcher = AckBatcher(self.context.committer.later)
        self.context.committer.before_commit.append(self.ack_batcher.join)


class StompSession:
    """Session of one STOMP client. Loop thread only.

    ``send`` sends bytes to the client; ``close`` ends the connection once they are sent."""

    def __init__(
        self,
        stomp_context: StompContext,
        send: Callable[[bytes], None],
        close: Callable[[], None],
        peer: Callable[[], str],
    ) -> None:
        self.stomp_context = stomp_context
        self.context = stomp_context.context
        self.peer = peer
        self._send = send
        self._close = close
        self._reader = StompReader(MAX_GREETING_BYTES)
        self.number = next(stomp_context.numbers)
        self.name = stomp_context.context.ids.new(1)[0][-12:]
        """Unique name of the session; it is never reused."""
        self.version = V10
        self.client = ""
        self.grant: AccessGrant | None = None
        self.is_authenticated = False
        self.was_delayed = False
        """True if its CONNECT was delayed, after too many wrong tokens from its address."""
        self.closed = False
        self.has_failed = False
        self.frames = 0
        self.pending = 0
        self.max_pending = 256
        self.is_write_paused = False
        self.is_paused = False
        """True if an operator has paused pushing to this client."""
        self.batch = CommitBatch()
        self.records: list[tuple[NewRecord, Receipt]] = []
        self.queue_leases = QueueLeases(
            self.context.committer, stomp_context.ack_batcher, self.push, self.has_capacity, lambda: not self.closed
        )
        self.topic_subscriptions: dict[str, StompTopicSubscription] = {}
        self.transactions = Transactions(4 * self.context.identity.max_frame)
        self.temporary: set[str] = set()
        self.settled: Counter[str] = Counter()
        """Number of acked and of nacked messages of queues."""
        self.registry_name = ""
        self.started_at = 0
        """Time of the first subscription in ms; 0 if there is none, and so no entry in the consumer registry."""
        self.wish = ""
        self._heartbeats: HeartbeatTimers | None = None
        self._new_ids: deque[str] = deque()
        self._ids_at_once = 1
        self._send_last: Callable[[], None] | None = None
        """Function that sends the last frame before the connection is closed; None while the session continues."""
        self._refused_batch: CommitBatch | None = None

    # -- bytes in -----------------------------------------------------------------------------------------------------

    def free_space(self) -> memoryview | None:
        return None

    def filled(self, count: int) -> None:
        """Do nothing: ``free_space`` never returns a buffer."""

    def receive(self, data: bytes | memoryview) -> None:
        if self._heartbeats is not None:
            self._heartbeats.has_received = True
        if self._send_last is not None:
            return
        frames = self._reader.feed(bytes(data))
        try:
            for frame in frames:
                self.frames += 1
                self._handle(frame.command, frame.headers, frame.body)
                if self.closed or self._send_last is not None:
                    break
        except QueueError as error:
            self.fail(error)
        finally:
            frames.close()  # the remaining bytes stay in the reader
            self._new_ids.clear()
            self._ids_at_once = 1
            self._submit()

    def _handle(self, command: str, headers: dict[str, str], body: bytes) -> None:
        self.stomp_context.frames[command if command in commands.HANDLERS else "unknown"] += 1
        try:
            act = commands.HANDLERS.get(command)
            if act is None:
                known = ", ".join(commands.HANDLERS)
                raise BadInput(f"{command!r} is not a frame of a client; known: {known}", field="command")
            if not self.is_authenticated and (self.was_delayed or command not in commands.CONNECT_COMMANDS):
                raise NotAllowed("the first frame must be CONNECT or STOMP", field="command")
            if body and command != "SEND":
                raise BadInput(f"{command} has no body", field="body")
            if self.grant is not None:
                commands.check(self.grant, command, ANYWHERE)
            act(self, headers, body)
        except QueueError as error:
            self.fail(error, headers.get("receipt"))

    @property
    def is_full(self) -> bool:
        return self.pending >= self.max_pending or self.is_write_paused

    @property
    def held(self) -> int:
        return self._reader.held

    @property
    def is_waiting(self) -> bool:
        """True if the idle timeout does not apply: after CONNECT, only heart-beats limit the silence of a client."""
        return self.is_authenticated

    def on_connected(self, version: str, intervals: tuple[int, int]) -> None:
        self.is_authenticated = True
        self.version = self._reader.version = version
        self._reader.most_body = self.context.identity.max_frame
        self._heartbeats = HeartbeatTimers(
            intervals, self.context.committer.later, lambda: self._send(HEARTBEAT), self._on_silence
        )

    def delay_connect(self, seconds: float, connect: Callable[[], None]) -> None:
        """Process CONNECT after a delay. Until then any other frame is an error, as always before CONNECTED."""

        def connect_delayed() -> None:
            if self.closed or self._send_last is not None:
                return
            try:
                connect()
            except QueueError as error:
                self.fail(error)

        self.was_delayed = True
        self.stomp_context.access.wait(seconds, connect_delayed)

    def _on_silence(self, silent_ms: int) -> bool:
        if self.is_full:  # the server has paused reading from this client
            return False
        self.fail(Unavailable(f"no data was received for {silent_ms} ms, longer than the agreed heart-beat"))
        return True

    def new_id(self) -> str:
        """Return the id of a new message. Ids are generated in growing batches during one read."""
        if not self._new_ids:
            self._new_ids.extend(self.context.ids.new(self._ids_at_once))
            self._ids_at_once = min(2 * self._ids_at_once, MAX_IDS_AT_ONCE)
        return self._new_ids.popleft()

    # -- commits -------------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        """Submit all steps of one read as one job of the group committer."""
        self._publish_records()
        batch, self.batch = self.batch, CommitBatch()
        if batch.steps or (batch.receipts and self.pending):
            self.pending += batch.weight
            self.context.committer.submit(partial(self._perform, batch), partial(self._done, batch))
            return
        self._send_receipts(*batch.receipts)
        self._close_if_done()

    def _perform(self, batch: CommitBatch, transaction: Transaction) -> BatchResult:
        """Run a job in the transaction. After a refused job, no later job runs; the same job may be retried."""
        if self._refused_batch not in (None, batch):
            return BatchResult([])
        result = batch.perform(self.context.committer.operations, transaction, self.context.clock.now_ms())
        self._refused_batch = None if result.error is None else batch
        return result

    def _done(self, batch: CommitBatch, result: BatchResult | None, error: QueueError | None) -> None:
        self.pending -= batch.weight
        if error is not None:
            result = None  # the store refused the commit, so no step was done
        if result is not None:
            self._send_receipts(*result.receipts)
            if result.error is None:
                self.queue_leases.settling.difference_update(batch.leases)
            error = result.error
        if error is not None:
            self._send_last = None  # this error precedes the last frame that was set
            self.fail(error, None if result is None else result.refused)
        self._close_if_done()

    def _publish_records(self) -> None:
        records, self.records = self.records, []
        if records:
            self.publish([record for record, _ in records], [one for _, one in records if one is not None])

    def publish(self, records: list[NewRecord], receipts: list[str]) -> None:
        """Publish records to topics, in one commit of the log."""
        self.run_operation(
            receipts, lambda done: commands.topics_of(self).publish(records, lambda _, error: done(error))
        )

    def run_operation(self, receipts: list[str], start: Callable[[Callable[[QueueError | None], None]], None]) -> None:
        """Run an operation outside of the group committer. ``receipts`` are sent when it succeeds."""
        self.pending += 1

        def done(error: QueueError | None) -> None:
            self.pending -= 1
            if error is None:
                self._send_receipts(*receipts)
            else:
                self._send_last = None
                self.fail(error, receipts[0] if receipts else None)
            self._close_if_done()

        try:
            start(done)
        except QueueError as error:
            done(error)

    # -- bytes out ----------------------------------------------------------------------------------------------------

    def send_frame(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        self._write(encode(self.version, command, headers, body))

    def _write(self, data: bytes) -> None:
        if not self.closed:
            if self._heartbeats is not None:
                self._heartbeats.has_sent = True
            self._send(data)

    def push(self, data: bytes) -> None:
        self.stomp_context.frames["MESSAGE"] += 1
        self._write(data)

    def _send_receipts(self, *receipts: str) -> None:
        for receipt in receipts:
            self.send_frame("RECEIPT", {"receipt-id": receipt})

    def has_capacity(self) -> bool:
        return not (self.is_write_paused or self.is_paused or self._send_last is not None)

    def on_writable(self) -> None:
        """End backpressure: the client reads again."""
        self.is_write_paused = False
        self.wake()

    def wake(self) -> None:
        self.queue_leases.wake()
        for subscription in self.topic_subscriptions.values():
            subscription.wake()

    # -- the end ------------------------------------------------------------------------------------------------------

    def fail(self, error: QueueError, receipt: Receipt = None, **extra_headers: str) -> None:
        """Send an ERROR frame and close the connection, once all earlier frames are answered."""
        if self.closed or self._send_last is not None:
            return
        self.stomp_context.errors[error.code] += 1
        if (
            isinstance(error, NotAllowed)
            and self.context.refused_clients is not None
            and not self.stomp_context.access.is_open
        ):
            self.context.refused_clients.add("stomp", self.peer(), error, "" if self.grant is None else self.grant.name)
        if receipt is not None:
            extra_headers["receipt-id"] = receipt
        self.has_failed = True
        self._send_last = lambda: self._write(refusal(error, self.version, extra_headers))
        self._close_if_done()

    def disconnect(self) -> None:
        """Close the connection once all earlier frames are answered: the client sent DISCONNECT."""
        if self._send_last is None:
            self._send_last = lambda: None

    def _close_if_done(self) -> None:
        is_done = not self.pending and not self.batch.steps and not self.records
        if self._send_last is not None and is_done and not self.closed:
            self._send_receipts(*self.batch.receipts)
            self.batch = CommitBatch()
            self._send_last()
            self.close()
            self._close()

    def refuse(self, error: QueueError) -> None:
        self.fail(error)

    def stop(self) -> None:
        """Stop pushing, and release the client's leases in place: the server stops."""
        self.transactions.forget()
        self.queue_leases.close(has_read_all=not self.is_write_paused)
        self._end_topic_subscriptions()

    def redirect(self, why: QueueError) -> None:
        """End the session because another node is active now.

        STOMP has no redirect: the client reconnects to the next address of its list."""
        self.fail(why)

    def send_goodbye(self) -> None:
        self.fail(Unavailable("the server is stopping; connect again later, or to another node"))

    def close(self) -> None:
        """End the session: the connection is closed. Release leases, and delete temporary queues."""
        if self.closed:
            return
        self.closed = True
        if self._heartbeats is not None:
            self._heartbeats.stop()
        self.transactions.forget()
        self.queue_leases.close(has_read_all=not self.is_write_paused)
        self._end_topic_subscriptions()
        commands.report_stopped(self)
        for queue in self.temporary:
            self.context.committer.submit(partial(_delete, queue), _ignore)

    def _end_topic_subscriptions(self) -> None:
        for subscription in self.topic_subscriptions.values():
            subscription.close()
            self.stomp_context.hub.remove(subscription)
        self.topic_subscriptions.clear()

    def describe(self) -> dict[str, Any]:
        """Return the document of this client for operators."""
        about = {"client": self.client, "pending": self.pending, "clogged": self.is_write_paused, "waiting": 0}
        return {**about, "protocol": f"stomp {self.version}", "subscriptions": commands.describe_subscriptions(self)}


def refusal(error: QueueError, version: str = V10, extra_headers: Mapping[str, str] = NO_HEADERS) -> bytes:
    """Encode an ERROR frame: the error in one line, and the consequence in the body."""
    headers = {"message": f"{error.code}: {error}"[:1000], "content-type": "text/plain", **extra_headers}
    text = f"{error}\nNothing from this frame on was done, and the connection is closed.\n"
    return encode(version, "ERROR", headers, text.encode())


def _delete(queue: str, transaction: Transaction) -> None:
    transaction.delete_queue(queue)


def _ignore(value: object, error: QueueError | None) -> None:
    """Ignore the error: a temporary queue that could not be deleted is deleted at the next server start."""
