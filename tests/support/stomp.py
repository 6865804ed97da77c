"""A STOMP door without sockets: a loop that turns when told, clients that speak in bytes and hear frames."""

from pathlib import Path

from tests.support.loops import InlineExecutor
from tests.support.session import Server
from yirangmq.admin.health import StoreDisk
from yirangmq.core.access import AccessGrant
from yirangmq.core.message import Message
from yirangmq.core.ports import Store
from yirangmq.core.states import State
from yirangmq.fsio.background import LoopExecutor
from yirangmq.protocols.stomp.commands import StompAccess
from yirangmq.protocols.stomp.session import StompContext, StompSession
from yirangmq.protocols.stomp.topic_hub import TopicHub
from yirangmq.stores.cursors import open_cursors
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.topics.ports import Loop, TopicSettings
from yirangmq.topics.publisher import LogOpeners, Publisher
from yirangmq.wire.stomp import V12, StompFrame, StompReader, encode

SMALL = LogSettings(segment_bytes=64 << 10, durability="os", ahead=False)


class StompServer(Server):
    """With topics if it is given a folder for them."""

    def __init__(
        self, store: Store | None = None, *, topics: Path | None = None, grants: tuple[AccessGrant, ...] = (),
        disk: StoreDisk | None = None,
    ) -> None:  # fmt: skip
        super().__init__(store, disk=disk)
        self.topics = None if topics is None else self._publisher(topics)
        self.parlour = StompContext(self.house, StompAccess(grants), TopicHub(self.topics), "test/1")

    def _publisher(self, folder: Path) -> Publisher:
        turns, clock = self.turns, self.clock
        loop = Loop(
            turns.soon, turns.later, turns.soon, lambda: clock.now_ms() / 1000, lambda: clock.now_ms() * 1_000_000
        )
        opening = LogOpeners(
            lambda known: SegmentLog(folder, SMALL, known=known),
            lambda: open_cursors(f"file:{folder / 'cursors'}"),
            folder.exists,
        )
        made = Publisher(opening, loop, TopicSettings(), LoopExecutor(turns.soon, InlineExecutor))
        made.start()
        return made

    def close(self) -> None:
        if self.topics is not None:
            self.topics.close()

    def dial(self) -> "Stomp":
        return Stomp(self)

    def connected(self, version: str = V12, **headers: str) -> "Stomp":
        client = self.dial()
        client.connect(version, **headers)
        return client


class Stomp:
    """One client. ``said``: what the server said and nobody has looked at yet."""

    def __init__(self, server: StompServer) -> None:
        self._server = server
        self._reader = StompReader()
        self.said: list[StompFrame] = []
        self.beats = 0
        self.is_closed = False
        self.version = V12
        self.session = StompSession(server.parlour, self._hear, self._close, lambda: "127.0.0.1:9")

    def _hear(self, data: bytes) -> None:
        if data == b"\n":
            self.beats += 1
        self.said += self._reader.feed(data)

    def _close(self) -> None:
        self.is_closed = True

    def connect(self, version: str = V12, **headers: str) -> StompFrame:
        offered = {} if version == "1.0" else {"accept-version": version}
        [frame] = self.do("CONNECT", **offered, **headers)
        assert frame.command == "CONNECTED", frame
        self.version = self._reader.version = version
        return frame

    def write(self, command: str, body: bytes = b"", /, **headers: str) -> bytes:
        """A frame as bytes. In names of headers ``_`` stands for ``-``, and two for a dot."""
        named = {name.replace("__", ".").replace("_", "-"): value for name, value in headers.items()}
        return encode(self.version, command, named, body)

    def raw(self, data: bytes) -> list[StompFrame]:
        """These bytes in one read; what was said when all is done."""
        self.session.receive(data)
        return self.heard()

    def do(self, command: str, body: bytes = b"", /, **headers: str) -> list[StompFrame]:
        return self.raw(self.write(command, body, **headers))

    def heard(self) -> list[StompFrame]:
        self._server.turn()
        said, self.said = self.said, []
        return said

    def send(self, destination: str, *bodies: bytes, **headers: str) -> None:
        """Each with a receipt, and all of them confirmed."""
        frames = [
            self.write("SEND", body, destination=destination, receipt=f"r{n}", **headers)
            for n, body in enumerate(bodies)
        ]
        said = self.raw(b"".join(frames))
        receipts = [frame.headers["receipt-id"] for frame in said if frame.command == "RECEIPT"]
        assert receipts == [f"r{n}" for n in range(len(bodies))], said
        self.said = [frame for frame in said if frame.command != "RECEIPT"]

    def subscribe(self, destination: str, mode: str = "client-individual", **headers: str) -> list[StompFrame]:
        return self.do("SUBSCRIBE", destination=destination, ack=mode, **{"id": "0", **headers})

    def name_of(self, message: StompFrame) -> dict[str, str]:
        """How ACK and NACK call it."""
        if self.version == V12:
            return {"id": message.headers["ack"]}
        return {"message_id": message.headers["message-id"], "subscription": message.headers["subscription"]}

    def ack(self, message: StompFrame, **headers: str) -> list[StompFrame]:
        return self.do("ACK", **self.name_of(message), **headers)

    def nack(self, message: StompFrame, **headers: str) -> list[StompFrame]:
        return self.do("NACK", **self.name_of(message), **headers)

    def lose(self) -> None:
        """The connection breaks."""
        self.session.close()
        self._server.turn()


def bodies(frames: list[StompFrame]) -> list[bytes]:
    assert all(frame.command == "MESSAGE" for frame in frames), frames
    return [frame.body for frame in frames]


def error_of(frames: list[StompFrame]) -> str:
    """The header ``message`` of the one ERROR there is."""
    [frame] = [frame for frame in frames if frame.command == "ERROR"]
    return frame.headers["message"]


def cards(server: StompServer, state: State, queue: str = "mail") -> list[Message]:
    with server.store.transaction(write=False) as transaction:
        return transaction.scan(queue, state, 1000).messages


def set_policy(server: StompServer, queue: str, **document: object) -> None:
    server.client().call("set_policy", queue=queue, document=document)
