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

from yirangmq.core.access import ANYWHERE, Grant
from yirangmq.core.errors import BadInput, NotAllowed, QueueError, Unavailable
from yirangmq.core.ports import Transaction
from yirangmq.core.topics import NewRecord
from yirangmq.protocols.context import House
from yirangmq.protocols.stomp import commands
from yirangmq.protocols.stomp.codec import Beats
from yirangmq.protocols.stomp.commands import Access
from yirangmq.protocols.stomp.queue_subscriptions import Gathering, Holdings
from yirangmq.protocols.stomp.topic_hub import Hub
from yirangmq.protocols.stomp.transactions import Errand, Outcome, Receipt, Transactions
from yirangmq.wire.stomp import BEAT, V10, StompReader, encode

if TYPE_CHECKING:
    from yirangmq.protocols.stomp.topic_subscriptions import Following

LARGEST_GREETING = 8192
"""Maximum body size in bytes before a client has authenticated. CONNECT should have no body."""
NO_MORE: Mapping[str, str] = MappingProxyType({})
MOST_IDS = 64
"""Maximum number of message ids that are generated together while one read is processed."""


@dataclass(slots=True)
class Parlour:
    """Context that all STOMP sessions of a server share."""

    house: House
    access: Access
    hub: Hub
    server: str = "yirangmq"
    gathering: Gathering = field(init=False)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    frames: Counter[str] = field(default_factory=Counter)
    """Number of frames by command since the start: received ones, and MESSAGE."""
    errors: Counter[str] = field(default_factory=Counter)
    """Number of ERROR frames by error code."""

    def __post_init__(self) -> None:
        self.gathering = Gathering(self.house.desk.later)
        self.house.desk.before_commit.append(self.gathering.join)


class StompSession:
    """Session of one STOMP client. Loop thread only.

    ``send`` sends bytes to the client; ``close`` ends the connection once they are sent."""

    def __init__(
        self, parlour: Parlour, send: Callable[[bytes], None], close: Callable[[], None], peer: Callable[[], str]
    ) -> None:
        self.parlour = parlour
        self.house = parlour.house
        self.peer = peer
        self._send = send
        self._close = close
        self._reader = StompReader(LARGEST_GREETING)
        self.number = next(parlour.numbers)
        self.name = parlour.house.ids.new(1)[0][-12:]
        """Unique name of the session; it is never reused."""
        self.version = V10
        self.client = ""
        self.grant: Grant | None = None
        self.is_greeted = False
        self.was_delayed = False
        """True if its CONNECT was delayed, after too many wrong tokens from its address."""
        self.closed = False
        self.frames = 0
        self.pending = 0
        self.most_pending = 256
        self.is_clogged = False
        self.is_paused = False
        """True if an operator has paused pushing to this client."""
        self.errand = Errand()
        self.records: list[tuple[NewRecord, Receipt]] = []
        self.holdings = Holdings(self.house.desk, parlour.gathering, self.push, self.has_room, lambda: not self.closed)
        self.followings: dict[str, Following] = {}
        self.transactions = Transactions(4 * self.house.welcome.max_frame)
        self.temporary: set[str] = set()
        self.settled: Counter[str] = Counter()
        """Number of acked and of nacked messages of queues."""
        self.roster_name = ""
        self.started_at = 0
        """Time of the first subscription in ms; 0 if there is none, and so no entry in the consumer registry."""
        self.wish = ""
        self._beats: Beats | None = None
        self._fresh: deque[str] = deque()
        self._ids_at_once = 1
        self._last: Callable[[], None] | None = None
        """Function that sends the last frame before the connection is closed; None while the session continues."""
        self._refused: Errand | None = None

    # -- bytes in -----------------------------------------------------------------------------------------------------

    def room(self) -> memoryview | None:
        return None

    def filled(self, count: int) -> None:
        """Do nothing: ``room`` never returns a buffer."""

    def receive(self, data: bytes | memoryview) -> None:
        if self._beats is not None:
            self._beats.has_heard = True
        if self._last is not None:
            return
        frames = self._reader.feed(bytes(data))
        try:
            for frame in frames:
                self.frames += 1
                self._handle(frame.command, frame.headers, frame.body)
                if self.closed or self._last is not None:
                    break
        except QueueError as error:
            self.fail(error)
        finally:
            frames.close()  # the remaining bytes stay in the reader
            self._fresh.clear()
            self._ids_at_once = 1
            self._submit()

    def _handle(self, command: str, headers: dict[str, str], body: bytes) -> None:
        self.parlour.frames[command if command in commands.ACTS else "unknown"] += 1
        try:
            act = commands.ACTS.get(command)
            if act is None:
                known = ", ".join(commands.ACTS)
                raise BadInput(f"{command!r} is no frame of a client; known: {known}", field="command")
            if not self.is_greeted and (self.was_delayed or command not in commands.GREETINGS):
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
        return self.pending >= self.most_pending or self.is_clogged

    @property
    def held(self) -> int:
        return self._reader.held

    @property
    def is_waiting(self) -> bool:
        """True if the idle timeout does not apply: after CONNECT, only heart-beats limit the silence of a client."""
        return self.is_greeted

    def greeted(self, version: str, asked: tuple[int, int]) -> None:
        self.is_greeted = True
        self.version = self._reader.version = version
        self._reader.most_body = self.house.welcome.max_frame
        self._beats = Beats(asked, self.house.desk.later, lambda: self._send(BEAT), self._lost)

    def delay_greeting(self, seconds: float, greet: Callable[[], None]) -> None:
        """Process CONNECT after a delay. Until then any other frame is an error, as always before CONNECTED."""

        def late() -> None:
            if self.closed or self._last is not None:
                return
            try:
                greet()
            except QueueError as error:
                self.fail(error)

        self.was_delayed = True
        self.parlour.access.wait(seconds, late)

    def _lost(self, silent_ms: int) -> bool:
        if self.is_full:  # the server has paused reading from this client
            return False
        self.fail(Unavailable(f"nothing was heard for {silent_ms} ms, against what heart-beat says"))
        return True

    def fresh_id(self) -> str:
        """Return the id of a new message. Ids are generated in growing batches during one read."""
        if not self._fresh:
            self._fresh.extend(self.house.ids.new(self._ids_at_once))
            self._ids_at_once = min(2 * self._ids_at_once, MOST_IDS)
        return self._fresh.popleft()

    # -- commits -------------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        """Submit all steps of one read as one job of the group committer."""
        self._publish_records()
        errand, self.errand = self.errand, Errand()
        if errand.steps or (errand.receipts and self.pending):
            self.pending += errand.weight
            self.house.desk.submit(partial(self._perform, errand), partial(self._done, errand))
            return
        self._receipt(*errand.receipts)
        self._end_if_done()

    def _perform(self, errand: Errand, transaction: Transaction) -> Outcome:
        """Run a job in the transaction. After a refused job, no later job runs; the same job may be retried."""
        if self._refused not in (None, errand):
            return Outcome([])
        outcome = errand.perform(self.house.desk.verbs, transaction, self.house.clock.now_ms())
        self._refused = None if outcome.error is None else errand
        return outcome

    def _done(self, errand: Errand, outcome: Outcome | None, error: QueueError | None) -> None:
        self.pending -= errand.weight
        if error is not None:
            outcome = None  # the store refused the commit, so no step was done
        if outcome is not None:
            self._receipt(*outcome.receipts)
            if outcome.error is None:
                self.holdings.settling.difference_update(errand.leases)
            error = outcome.error
        if error is not None:
            self._last = None  # this error precedes the last frame that was set
            self.fail(error, None if outcome is None else outcome.refused)
        self._end_if_done()

    def _publish_records(self) -> None:
        records, self.records = self.records, []
        if records:
            self.publish([record for record, _ in records], [one for _, one in records if one is not None])

    def publish(self, records: list[NewRecord], receipts: list[str]) -> None:
        """Publish records to topics, in one commit of the log."""
        self.waiting(receipts, lambda done: commands.topics_of(self).publish(records, lambda _, error: done(error)))

    def waiting(self, receipts: list[str], begin: Callable[[Callable[[QueueError | None], None]], None]) -> None:
        """Run an operation outside of the group committer. ``receipts`` are sent when it succeeds."""
        self.pending += 1

        def done(error: QueueError | None) -> None:
            self.pending -= 1
            if error is None:
                self._receipt(*receipts)
            else:
                self._last = None
                self.fail(error, receipts[0] if receipts else None)
            self._end_if_done()

        try:
            begin(done)
        except QueueError as error:
            done(error)

    # -- bytes out ----------------------------------------------------------------------------------------------------

    def say(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        self._put(encode(self.version, command, headers, body))

    def _put(self, data: bytes) -> None:
        if not self.closed:
            if self._beats is not None:
                self._beats.has_sent = True
            self._send(data)

    def push(self, data: bytes) -> None:
        self.parlour.frames["MESSAGE"] += 1
        self._put(data)

    def _receipt(self, *receipts: str) -> None:
        for receipt in receipts:
            self.say("RECEIPT", {"receipt-id": receipt})

    def has_room(self) -> bool:
        return not (self.is_clogged or self.is_paused or self._last is not None)

    def unclog(self) -> None:
        """End backpressure: the client reads again."""
        self.is_clogged = False
        self.wake()

    def wake(self) -> None:
        self.holdings.wake()
        for following in self.followings.values():
            following.wake()

    # -- the end ------------------------------------------------------------------------------------------------------

    def fail(self, error: QueueError, receipt: Receipt = None, **more: str) -> None:
        """Send an ERROR frame and close the connection, once all earlier frames are answered."""
        if self.closed or self._last is not None:
            return
        self.parlour.errors[error.code] += 1
        if isinstance(error, NotAllowed) and self.house.refusing is not None and not self.parlour.access.is_open:
            self.house.refusing.add("stomp", self.peer(), error, "" if self.grant is None else self.grant.name)
        if receipt is not None:
            more["receipt-id"] = receipt
        self._last = lambda: self._put(refusal(error, self.version, more))
        self._end_if_done()

    def leave(self) -> None:
        """Close the connection once all earlier frames are answered: the client sent DISCONNECT."""
        if self._last is None:
            self._last = lambda: None

    def _end_if_done(self) -> None:
        if self._last is not None and not self.pending and not self.errand.steps and not self.records:
            self._receipt(*self.errand.receipts)
            self.errand = Errand()
            self._last()
            self.end()
            self._close()

    def refuse(self, error: QueueError) -> None:
        self.fail(error)

    def stop(self) -> None:
        """Stop pushing, and release the client's leases in place: the server stops."""
        self.transactions.forget()
        self.holdings.end(is_read=not self.is_clogged)
        self._end_followings()

    def move(self, why: QueueError) -> None:
        """End the session because another node is active now.

        STOMP has no redirect: the client reconnects to the next address of its list."""
        self.fail(why)

    def say_bye(self) -> None:
        self.fail(Unavailable("the server is stopping; connect again later, or to another node"))

    def end(self) -> None:
        """End the session: the connection is closed. Release leases, and delete temporary queues."""
        if self.closed:
            return
        self.closed = True
        if self._beats is not None:
            self._beats.stop()
        self.transactions.forget()
        self.holdings.end(is_read=not self.is_clogged)
        self._end_followings()
        commands.ended(self)
        for queue in self.temporary:
            self.house.desk.submit(partial(_delete, queue), _ignore)

    def _end_followings(self) -> None:
        for following in self.followings.values():
            following.end()
            self.parlour.hub.remove(following)
        self.followings.clear()

    def describe(self) -> dict[str, Any]:
        """Return the document of this client for operators."""
        about = {"client": self.client, "pending": self.pending, "clogged": self.is_clogged, "waiting": 0}
        return {**about, "protocol": f"stomp {self.version}", "subscriptions": commands.subscriptions(self)}


def refusal(error: QueueError, version: str = V10, more: Mapping[str, str] = NO_MORE) -> bytes:
    """Encode an ERROR frame: the error in one line, and the consequence in the body."""
    headers = {"message": f"{error.code}: {error}"[:1000], "content-type": "text/plain", **more}
    text = f"{error}\nNothing from this frame on was done, and the connection is closed.\n"
    return encode(version, "ERROR", headers, text.encode())


def _delete(queue: str, transaction: Transaction) -> None:
    transaction.delete_queue(queue)


def _ignore(value: object, error: QueueError | None) -> None:
    """Ignore the error: a temporary queue that could not be deleted is deleted at the next server start."""
