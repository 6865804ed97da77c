"""A server without sockets: a loop that turns when told, sessions fed with bytes, answers as values."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from yirangmq.admin.health import FullStoreLatch, ServerHealth, StoreDisk
from yirangmq.admin.monitoring import ServerMonitor
from yirangmq.admin.registry import MethodRegistry, PagedMethods, ServerSources
from yirangmq.admin.topics import TopicMethods
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.core.consumer_registry import MemoryConsumerRegistry
from yirangmq.core.ports import Store
from yirangmq.format.json_codec import dumps
from yirangmq.protocols.context import ServerContext, ServerIdentity
from yirangmq.protocols.native.session import NativeSession
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import CountingIds, ManualClock
from yirangmq.webhooks.webhooks import Webhooks
from yirangmq.wire import messages as calls
from yirangmq.wire.frames import FrameKind, FrameReader

MAX_FRAME = 64 * 1024


class Timer:
    def __init__(self, due: float, call: Callable[[], None]) -> None:
        self.due = due
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Turns:
    """``soon`` and ``later`` of a loop whose time is the test's."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._soon: list[Callable[[], None]] = []
        self.timers: list[Timer] = []

    def soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self._clock.now_ms() + seconds * 1000, call))
        return self.timers[-1]

    def turn(self) -> None:
        """Until nothing is left to do."""
        while self._soon:
            todo, self._soon = self._soon, []
            for call in todo:
                call()

    def advance(self, milliseconds: int) -> None:
        self._clock.advance(milliseconds)
        due = [timer for timer in self.timers if timer.due <= self._clock.now_ms()]
        self.timers = [timer for timer in self.timers if timer not in due and not timer.is_cancelled]
        for timer in due:
            if not timer.is_cancelled:
                timer.call()
        self.turn()


class Answer(NamedTuple):
    kind: FrameKind
    request: int
    value: Any


class Server:
    """Everything behind the socket door. Long methods run in their threads; ``turn`` is their desk's thread too."""

    def __init__(
        self, store: Store | None = None, *, token: str = "", disk: StoreDisk | None = None, busy_seconds: float = 5.0
    ) -> None:
        """``busy_seconds`` pass as the test's clock does."""
        self.clock = ManualClock()
        self.turns = Turns(self.clock)
        self.store = store or MemoryStore()
        self.broker_context = TransactionContext(self.clock, CountingIds())
        seconds = lambda: self.clock.now_ms() / 1000  # noqa: E731
        self.desk = GroupCommitter(
            self.store,
            self.broker_context,
            self.clock,
            self.turns.soon,
            self.turns.later,
            seconds,
            busy_seconds=busy_seconds,
        )
        self.pages = PagedMethods(self.store, self.desk, self.clock, CountingIds("p"), self.turns.soon)
        self.observing = ServerMonitor(self.clock)
        site = ServerSources(
            self.clock,
            ServerHealth(self.clock, disk, 3, full_latch=FullStoreLatch(self.desk, self.clock)),
            lambda: {"node": "here"},
            lambda: [],
            MemoryConsumerRegistry(self.clock),
            self.observing.metrics.rates_of,
        )
        self.calls = MethodRegistry(self.broker_context, self.pages, site)
        self.observing.register(self.broker_context.event_buffer, self.calls)
        Webhooks(self.desk, self.clock, str.encode).register(self.calls, set())
        TopicMethods(None, self.clock).register(self.calls, self.observing.feed.on_events)
        welcome = ServerIdentity("yirangmq test", "here", "full", MAX_FRAME)
        self.house = ServerContext(self.desk, self.clock, CountingIds(), self.calls, welcome, token, disk)

    def turn(self) -> None:
        self.turns.turn()
        while not self.pages.is_idle:
            self.turns.turn()

    def client(self, *, trusted: bool = True) -> "Client":
        return Client(self, trusted)


class Client:
    def __init__(self, server: Server, trusted: bool) -> None:
        self._server = server
        self._reader = FrameReader()
        self._number = 0
        self.answers: list[Answer] = []
        self.is_closed = False
        self.session = NativeSession(server.house, trusted, self._hear, self._close)

    def _hear(self, data: bytes | bytearray) -> None:
        for kind, request, body in self._reader.feed(data):
            self.answers.append(Answer(FrameKind(kind), request, calls.read(kind, body)))

    def _close(self) -> None:
        self.is_closed = True

    def send(self, kind: FrameKind, body: msgspec.Struct) -> int:
        """One frame; the number of its request."""
        self._number += 1
        self.session.receive(calls.frame(kind, self._number, body))
        return self._number

    def ask(self, kind: FrameKind, body: msgspec.Struct) -> Answer:
        """One frame, and the answer to it."""
        number = self.send(kind, body)
        self._server.turn()
        [answer] = self.heard(number)
        return answer

    def call(self, method: str, **values: Any) -> Any:
        answer = self.ask(FrameKind.CALL, calls.Call(method, values))
        if answer.kind is FrameKind.ERROR:
            raise calls.error_of(*_members(answer.value))
        return answer.value.value

    def heard(self, number: int) -> list[Answer]:
        found = [answer for answer in self.answers if answer.request == number]
        self.answers = [answer for answer in self.answers if answer.request != number]
        return found

    def publish(self, queue: str, *payloads: bytes, first_id: int | None = None, **header: Any) -> list[str]:
        """``first_id``: for a server whose own ids begin anew."""
        text = dumps(header).decode() if header else ""
        given = ["" if first_id is None else f"x-{first_id + n}" for n in range(len(payloads))]
        sent = [calls.OutgoingMessageBody(one, False, text, id) for one, id in zip(payloads, given, strict=True)]
        answer = self.ask(FrameKind.PUBLISH, calls.Publish(queue, sent))
        ids: list[str] = answer.value.ids
        return ids

    def wait_for_lease(self, queue: str, seconds: float = 30) -> int:
        """A lease with patience; the number of its request."""
        number = self.send(FrameKind.LEASE, calls.Lease(queue, 1, round(seconds * 1000)))
        self._server.turn()
        return number

    def lease(self, queue: str, limit: int = 1) -> list[calls.DeliveredMessageBody]:
        messages: list[calls.DeliveredMessageBody] = self.ask(FrameKind.LEASE, calls.Lease(queue, limit)).value.messages
        return messages


def _members(failed: calls.ErrorBody) -> tuple[str, str, str | None]:
    return failed.code, failed.text, failed.field


class Consumer:
    """A subscription on a connection of its own; it keeps what it gets until told."""

    def __init__(self, server: Server, name: str, credit: int = 100, queue: str = "mail") -> None:
        self.name = name
        self._server = server
        self._client = server.client()
        self._number = self._client.send(FrameKind.SUBSCRIBE, calls.Subscribe(queue, credit, None, name))
        self.held: list[calls.DeliveredMessageBody] = []
        self.got: list[bytes] = []
        server.turn()

    def look(self) -> list[bytes]:
        """What came since it last looked."""
        new = [one for answer in self._client.heard(self._number) for one in answer.value.messages]
        self.held += new
        self.got += [one.payload for one in new]
        return [one.payload for one in new]

    def ack(self, count: int | None = None) -> None:
        self.look()
        done, self.held = self.held[:count], self.held[len(self.held[:count]) :]
        if done:
            self._client.ask(FrameKind.ACK, calls.Settle([one.lease for one in done], self.name))

    def nack(self, delay_ms: int | None = None) -> None:
        self.look()
        body = calls.Nack([one.lease for one in self.held], "HANDLER_ERROR", "it broke", delay_ms, self.name)
        self.held = []
        self._client.ask(FrameKind.NACK, body)

    def leave(self) -> None:
        """The connection is gone, leases stay until they lapse."""
        self._client.session.close()
        self._server.turn()


def dispatch(client: Client, strategy: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = client.call("dispatch_set", queue="mail", members={"strategy": strategy, **more})
    return found
