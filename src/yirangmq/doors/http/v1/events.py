"""What happens, as it happens: Server-Sent Events of all queues or of one, resumed where the reader left off.

Nothing is kept for a reader but the number of the last event it was sent. One that reads slowly, or comes back late, is
given what is still known and told how much is not: a ``gap``, never silence. Knows: the feed, the form of the stream.
Does not know: sockets."""

from collections.abc import Callable, Collection
from typing import Any

from yirangmq.broker.group_commit import Desk
from yirangmq.core.errors import BadInput
from yirangmq.doors.http.exchange import Outlet, Response
from yirangmq.doors.http.v1.endpoint import Ask, Endpoint
from yirangmq.doors.http.v1.fields import Field, text
from yirangmq.format.json_codec import dumps
from yirangmq.observe.events import KEPT, NAMES, Feed

STREAM = "text/event-stream"
HEADERS = (("content-type", STREAM), ("cache-control", "no-store"), ("x-accel-buffering", "no"))
PAUSE_SECONDS = 0.05
"""Between two pieces: what happens within it travels together, so that a busy server is not busy with telling."""
RETRY_MS = 2_000
"""After which a browser that lost us comes back."""
MARK_EVERY = KEPT // 4
"""Events passed over after which a reader is told where it stands, so that it can resume from there."""


class Events:
    """``epoch`` tells the numbers of this server from those of the one before it."""

    def __init__(self, feed: Feed, epoch: str) -> None:
        self._feed = feed
        self._epoch = epoch
        self._following: set[Following] = set()

    @property
    def following(self) -> int:
        return len(self._following)

    def follow(self, ask: Ask) -> None:
        query = ask.query()
        kinds = _kinds(query.get("kind"))
        given = ask.request.headers.get("last-event-id") or query.get("after")
        last = self._feed.begin()
        seen = self._number(given) if given else last
        follower = Following(self._feed, ask.house.desk, self._epoch, ask.path.get("queue"), kinds, self._following)
        follower.seen = seen
        if not ask.sees_all():
            follower.sees = ask.sees()
        ask.exchange.answer(Response(200, b"", HEADERS, follower))

    def _number(self, given: str) -> int | None:
        """None: it is not a number of ours, so what was missed is not known."""
        epoch, _, number = given.partition("-")
        if epoch != self._epoch or not (number.isascii() and number.isdigit() and len(number) < 20):
            return None
        return int(number) if int(number) <= self._feed.last else None

    def stop(self) -> None:
        """The server is going: readers are told, and come back to the next one."""
        for one in list(self._following):
            one.bye()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/events", "What happens in all queues, as it happens", self.follow, "events", "look",
                     ANSWER, query=QUERY, headers=(RESUME,), media=STREAM, is_filtered=True),
            Endpoint("GET", "/v1/queues/{queue}/events", "What happens in one queue", self.follow, "events", "look",
                     ANSWER, query=QUERY, headers=(RESUME,), media=STREAM),
        )  # fmt: skip


class Following:
    """``exchange.Stream``: one reader. ``seen`` is the last event it need not be told; None: that is not known."""

    def __init__(
        self,
        feed: Feed,
        desk: Desk,
        epoch: str,
        queue: str | None,
        kinds: Collection[str],
        among: set["Following"],
    ) -> None:
        self._feed = feed
        self._desk = desk
        self._epoch = epoch
        self._queue = queue
        self._kinds = kinds
        self._among = among
        self._outlet: Outlet | None = None
        self._alarm: Any = None
        self._is_clogged = False
        self._told = 0
        """The number that the reader knows."""
        self.seen: int | None = 0
        self.sees: Callable[[str], bool] | None = None
        """Which queues the reader may hear of; None: all, and what concerns no queue."""

    # -- exchange.Stream ------------------------------------------------------------------------------------------

    def start(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._among.add(self)
        pieces = [b"retry: %d\n\n" % RETRY_MS]
        if self.seen is None:
            self.seen = self._feed.last
            pieces.append(self._gap(None))
        pieces.append(self._piece(self.seen, {"last": self._feed.last}, "hello"))
        self._write(pieces)

    def drained(self) -> None:
        self._is_clogged = False
        if self._alarm is None:
            self._tell()

    def gone(self) -> None:
        self._outlet = None
        self._among.discard(self)
        self._feed.leave(self._wake)
        if self._alarm is not None:
            self._alarm.cancel()

    # -- ours -----------------------------------------------------------------------------------------------------

    def bye(self) -> None:
        outlet = self._outlet
        self.gone()
        if outlet is not None:
            outlet.write(self._piece(None, {}, "bye"))
            outlet.end()

    def _wake(self) -> None:
        if self._alarm is None and not self._is_clogged:
            self._tell()

    def _tell(self) -> None:
        """All there is, in one piece; then a rest, and then again, until there is nothing."""
        if self._outlet is None or self.seen is None:
            return
        missed, steps = self._feed.steps(self.seen)
        self.seen = self._feed.last
        pieces = [self._gap(missed)] if missed else []
        pieces += [self._piece(number, part) for number, part in steps if self._wants(part)]
        if not pieces and self.seen - self._told >= MARK_EVERY:
            pieces = [b"id: %s\n\n" % self._id(self.seen)]
            self._told = self.seen
        if pieces:
            self._write(pieces)
        else:
            self._feed.wait(self._wake)

    def _wants(self, part: dict[str, Any]) -> bool:
        if self.sees is not None and not self.sees(part["queue"]):
            return False
        return self._queue in (None, part["queue"]) and (not self._kinds or part["event"] in self._kinds)

    def _write(self, pieces: list[bytes]) -> None:
        assert self._outlet is not None
        self._alarm = self._desk.later(PAUSE_SECONDS, self._rested)
        self._is_clogged = not self._outlet.write(b"".join(pieces))

    def _rested(self) -> None:
        self._alarm = None
        if not self._is_clogged:
            self._tell()

    def _gap(self, missed: int | None) -> bytes:
        """So many events are not known any more; null: nobody can tell how many."""
        return self._piece(None, {"missed": missed}, "gap")

    def _piece(self, number: int | None, about: dict[str, Any], name: str = "") -> bytes:
        head = b"event: %s\n" % name.encode() if name else b""
        if number is not None:
            self._told = number
            head += b"id: %s\n" % self._id(number)
        return b"%sdata: %s\n\n" % (head, dumps(about))

    def _id(self, number: int) -> bytes:
        return f"{self._epoch}-{number}".encode()


def _kinds(given: str | None) -> frozenset[str]:
    kinds = frozenset(name.strip() for name in given.split(",")) if given else frozenset()
    for name in sorted(kinds - set(NAMES)):
        raise BadInput(f"{name[:60]!r} is not one of {', '.join(NAMES)}", field="kind")
    return kinds


QUERY = (
    Field("kind", text(1_000), f"only these, separated by commas: {', '.join(NAMES)}"),
    Field("after", text(100), "for readers that cannot set Last-Event-ID"),
)
RESUME = Field("Last-Event-ID", text(100), "the id of the last event that was read")
ANSWER = {"type": "string", "description": "events as docs/http.md has them"}
