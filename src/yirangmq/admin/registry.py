"""Registry of named methods: call table, permissions, long methods on threads, reading of arguments.

The operator's commands and the client library call everything beside the hot path by name; a single table serves all
protocols. A method takes named values and returns plain values. It is of one of three kinds: inside the next commit,
paged, or with a start of its own.

A paged method runs on one of ``THREADS`` threads. Each of its pages is a job of the event loop's committer, so that
other requests wait for a page at most. When the server stops, the current page ends and the next is refused. A read
that finds the store locked by another process is retried for as long as a request waits.

``METHODS`` gives each method its verb and where it is exercised (``core.access``). A method that is not listed needs
``admin`` on the whole server; a test checks that all are listed.

Arguments: each known value is read once, then none may be left. ``BadInput`` names the value."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar

from yirangmq.admin.health import Health
from yirangmq.broker.group_commit import Desk
from yirangmq.broker.operations import Verbs
from yirangmq.broker.settle import MOST_PER_CALL
from yirangmq.core import validation
from yirangmq.core.access import ADMIN, ANYWHERE, CONSUME, LIST, LOOK, OPERATE, PUBLISH
from yirangmq.core.consumer_registry import Roster
from yirangmq.core.errors import BadInput, QueueError, StoreBusy, Unavailable
from yirangmq.core.ports import Clock, Ids, Store, Transaction
from yirangmq.core.validation import Fields, kind, nearest
from yirangmq.fsio.background import BackgroundExecutor, Call

if TYPE_CHECKING:
    from yirangmq.broker.queues import Queues


# -- committer for other threads ---------------------------------------------------------------------------------------

PAUSE_SECONDS = 0.05
"""Between two attempts to read while another process holds the store's lock."""
Answer = TypeVar("Answer")


class DeskLane:
    """``broker.group_commit_threads.Way`` for threads other than the desk's. ``call`` runs something on the desk's
    thread, soon."""

    def __init__(self, desk: Desk, call: Callable[[Callable[[], None]], Any]) -> None:
        self._desk = desk
        self._call = call
        self.is_stopping = False

    def stop(self) -> None:
        """What is on the desk ends as usual; the next page is refused."""
        self.is_stopping = True

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
        """One page in the desk's next commit; returns when it is on disk."""

        def begin(future: "Future[Answer]") -> None:
            def done(value: Any, error: QueueError | None) -> None:
                self._desk.news()
                future.set_exception(error) if error is not None else future.set_result(value)

            self._desk.submit(work, done)

        return self._asked(begin)

    def read(self, work: Callable[[Transaction], Answer]) -> Answer:
        """One page that changes nothing. While another process holds the store's lock, this thread tries again for as
        long as a request waits."""
        until = monotonic() + self._desk.busy.seconds
        while True:
            try:
                return self._read(work)
            except StoreBusy:
                if monotonic() >= until or self.is_stopping:
                    raise
            sleep(PAUSE_SECONDS)

    def _read(self, work: Callable[[Transaction], Answer]) -> Answer:
        def begin(future: "Future[Answer]") -> None:
            try:
                future.set_result(self._desk.read(work))
            except BaseException as error:
                future.set_exception(error)

        return self._asked(begin)

    def _asked(self, begin: Callable[["Future[Answer]"], None]) -> Answer:
        if self.is_stopping:
            raise Unavailable("the server is stopping; what was done so far stays, ask again for the rest")
        future: Future[Answer] = Future()
        self._call(lambda: begin(future))
        return future.result()


# -- permissions -------------------------------------------------------------------------------------------------------

QUEUE, SERVER, NOWHERE = "queue", "server", "nowhere"
"""Where: in the queue that the call names, or in all of them if it names none; in the server; in no queue at all."""

METHODS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("counts", "status", "trends"), (LIST, QUEUE)),
    **dict.fromkeys(("queues", "next_due", "topics"), (LIST, SERVER)),
    "processor_check": (PUBLISH, QUEUE),
    "consumer_beat": (CONSUME, NOWHERE),
    **dict.fromkeys(
        (
            "peek", "show", "by_id", "search", "policy", "policy_text", "processors", "schedules", "dispatch",
            "deliveries", "dlq_find", "dlq_show", "dlq_stats",
        ),
        (LOOK, QUEUE),
    ),
    **dict.fromkeys(
        (
            "alert_rules", "alert_show", "alerts", "bridge_show", "bridges", "consumer_list", "due", "files_status",
            "health", "metrics", "pair_history", "pair_status", "rates", "topic_cursors", "topic_read",
            "topic_subscribers", "watch", "webhooks",
        ),
        (LOOK, SERVER),
    ),
    **dict.fromkeys(
        (
            "queue_pause", "queue_resume", "dlq_requeue", "dlq_quarantine", "failed_renew", "dispatch_register",
            "dispatch_deregister",
        ),
        (OPERATE, QUEUE),
    ),
    **dict.fromkeys(
        ("alert_ack", "alert_test", "bridge_pause", "bridge_resume", "consumer_wish", "sweep"), (OPERATE, SERVER)
    ),
    **dict.fromkeys(
        (
            "check_policy", "set_policy", "processor_set", "queue_configure", "dispatch_set", "delete_queue",
            "queue_clear", "drop", "dlq_purge", "failed_abandon",
        ),
        (ADMIN, QUEUE),
    ),
    **dict.fromkeys(
        (
            "bridge_add", "bridge_remove", "connections", "pair_adopt", "pair_switch", "programs", "topic_cursor_drop",
            "topic_trim", "topic_tune",
        ),
        (ADMIN, SERVER),
    ),
}  # fmt: skip


def verb_of(method: str, values: Mapping[str, Any]) -> tuple[str, str | None]:
    """The verb of a call, and the queue in which it is exercised, as ``Grant.allows`` takes them."""
    verb, where = METHODS.get(method, (ADMIN, SERVER))
    if where == NOWHERE:
        return verb, ANYWHERE
    queue = values.get("queue") if where == QUEUE else None
    return verb, queue if isinstance(queue, str) and queue else None


# -- long methods ------------------------------------------------------------------------------------------------------

Given = Mapping[str, Any]
Done = Callable[[Any, QueueError | None], None]
PagedMethod = Callable[["Queues", Given], Any]
THREADS = 2
"""Long methods at work at the same time; the others wait their turn."""


class Pages:
    """Used from the desk's thread; ``call`` runs something there, soon, from any other."""

    def __init__(self, store: Store, desk: Desk, clock: Clock, ids: Ids, call: Call) -> None:
        self._lane = DeskLane(desk, call)
        self._parts = (store, clock, ids)
        self._verbs = desk.verbs
        self._made: Queues | None = None
        self._call = call
        self._executor = BackgroundExecutor(partial(ThreadPoolExecutor, THREADS, "pages"))
        self._running = 0

    @property
    def is_idle(self) -> bool:
        return self._running == 0

    def start(self, method: PagedMethod, given: Given, done: Done) -> None:
        if self._lane.is_stopping:
            done(None, Unavailable("the server is stopping"))
            return
        self._running += 1
        self._executor.run(lambda: method(self._queues(), given), self._call, partial(self._end, done))

    def _queues(self) -> "Queues":
        if self._made is None:
            from yirangmq.broker.queues import Queues  # a server that nobody asks for anything long does without

            self._made = Queues(*self._parts, "server", self._lane, verbs=self._verbs)
        return self._made

    def _end(self, done: Done, value: Any, error: QueueError | None) -> None:
        self._running -= 1
        done(value, error)

    def stop(self) -> None:
        """The page on the desk is the last one; whoever waits is told that we are stopping."""
        self._lane.stop()
        self._executor.stop(wait=False, cancel=False)


# -- call table --------------------------------------------------------------------------------------------------------

Method = Callable[[Transaction, Given], Any]
Entry = Callable[[Desk, Given, Done], None]


@dataclass(frozen=True, slots=True)
class Site:
    """What a whole server adds to the table: itself."""

    clock: Clock
    health: Health
    facts: Callable[[], Mapping[str, Any]]
    """Version, node, store, durability, uptime …, as ``status`` says them."""
    connections: Callable[[], list[dict[str, Any]]]
    roster: Roster
    rates: Callable[[str], Any] = lambda queue: None
    """Of a queue, as ``observe.metrics`` has them; None: not known."""


class Calls:
    """The table. Parts of the server add their methods when it is put together."""

    def __init__(self, verbs: Verbs, pages: Pages | None = None, site: Site | None = None) -> None:
        self._entries: dict[str, Entry] = {}
        self._usual: tuple[Verbs, Pages | None, Site | None] | None = (verbs, pages, site)

    def add(self, name: str, method: Method) -> None:
        """A method inside the next commit. One that raises one of our errors must have changed nothing."""

        def entry(desk: Desk, given: Given, done: Done) -> None:
            desk.submit(lambda transaction: method(transaction, given), done)

        self.add_entry(name, entry)

    def add_paged(self, pages: Pages, name: str, method: PagedMethod) -> None:
        self.add_entry(name, lambda desk, given, done: pages.start(method, given, done))

    def add_entry(self, name: str, entry: Entry) -> None:
        """A method that begins in its own way and says ``done(value, error)`` once, on the desk's thread."""
        self._entries[name] = entry

    @property
    def names(self) -> list[str]:
        return sorted(self._table())

    def has(self, name: str) -> bool:
        return name in self._table()

    def find(self, name: str) -> Entry:
        entry = self._table().get(name)
        if entry is None:
            near = nearest(name[:60], self._entries)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(self.names)}"
            raise BadInput(f"{name[:60]!r} is not a known method; {hint}", field="method")
        return entry

    def _table(self) -> dict[str, Entry]:
        """With the usual ones, which are loaded when somebody first asks; one that a part has added goes before."""
        if self._usual is not None:
            from yirangmq.admin.queue_methods import fill

            usual, self._usual = self._usual, None
            added, self._entries = self._entries, {}
            fill(self, *usual)
            self._entries |= added
        return self._entries


# -- arguments ---------------------------------------------------------------------------------------------------------


class Values(Fields):
    """The values of one call, as ``core.validation.Fields`` reads a document."""

    def queue(self) -> str:
        return validation.check_queue(self.take("queue", None))

    def some_queue(self) -> str | None:
        """A queue, or null where all are meant."""
        name = self.take("queue", None)
        return None if name is None else validation.check_queue(name)

    def id(self) -> str:
        return validation.check_id(self.take("id", None), "id")

    def ids(self) -> list[str]:
        given = self.take("ids", None)
        if not isinstance(given, list):
            raise BadInput(f"must be an array of message ids, not {kind(given)}", field="ids")
        validation.check_count(len(given), "ids", most=MOST_PER_CALL)
        return [validation.check_id(id, "ids") for id in given]

    def some_ids(self) -> list[str] | None:
        """Ids, or null where a filter says which."""
        if self._left.get("ids") is not None:
            return self.ids()
        self.take("ids", None)
        return None

    def text(self, key: str, default: str = "", most: int = 10_000) -> str:
        value = self.take(key, default)
        if not isinstance(value, str) or len(value) > most:
            raise BadInput(f"must be a text of at most {most} characters", field=key)
        return value

    def limit(self, default: int) -> int:
        return self.whole("limit", default, least=1, most=MOST_PER_CALL)


def reading(given: Mapping[str, Any], read: Callable[[Values], Answer]) -> Answer:
    """What ``read`` makes of the values, once it is sure that there are no others."""
    values = Values(given)
    answer = read(values)
    values.done()
    return answer
