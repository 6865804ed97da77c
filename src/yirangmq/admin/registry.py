"""Registry of named methods: call table, permissions, long methods on threads, reading of arguments.

The operator's commands and the client library call everything beside the hot path by name; a single table serves all
protocols. A method takes named values and returns plain values. It is of one of three kinds: it runs inside the next
commit, it is paged, or it is an ``Entry`` that starts its work itself.

A paged method runs on one of ``THREADS`` threads. Each of its pages is a job of the event loop's committer, so that
other requests wait for at most one page. When the server stops, the current page ends and the next is refused. A read
that finds the store locked by another process is retried for as long as a request waits.

``METHODS`` gives each method its verb and where it is exercised (``core.access``). A method that is not listed needs
``admin`` on the whole server; a test checks that all are listed.

Arguments: each known value is read once, then none may be left. ``BadInput`` names the offending value."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar

from yirangmq.admin.health import ServerHealth
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.operations import QueueOperations
from yirangmq.broker.settle import MAX_PER_CALL
from yirangmq.core import validation
from yirangmq.core.access import ADMIN, ANYWHERE, CONSUME, LIST, LOOK, OPERATE, PUBLISH
from yirangmq.core.consumer_registry import ConsumerRegistry
from yirangmq.core.errors import BadInput, QueueError, StoreBusy, Unavailable
from yirangmq.core.ports import Clock, Ids, Store, Transaction
from yirangmq.core.validation import Fields, kind, nearest
from yirangmq.fsio.background import BackgroundExecutor, Call

if TYPE_CHECKING:
    from yirangmq.broker.queues import Queues


# -- committer for other threads ---------------------------------------------------------------------------------------

RETRY_SECONDS = 0.05
"""Delay between two attempts to read while another process holds the store's lock."""
Answer = TypeVar("Answer")


class CrossThreadCommitter:
    """Committer port (``broker.group_commit_threads.Way``) for threads other than the loop thread.

    Each call blocks its thread until the loop thread has run the job. ``call`` schedules a function on the loop
    thread and may be called from any thread."""

    def __init__(self, committer: GroupCommitter, call: Callable[[Callable[[], None]], Any]) -> None:
        self._committer = committer
        self._call = call
        self.is_stopping = False

    def stop(self) -> None:
        """Refuse further pages. A page that is already submitted ends as usual."""
        self.is_stopping = True

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Run one page in the next commit. Return when it is on disk."""

        def start_job(future: "Future[Answer]") -> None:
            def done(value: Any, error: QueueError | None) -> None:
                self._committer.notify_external_change()
                future.set_exception(error) if error is not None else future.set_result(value)

            self._committer.submit(work, done)

        return self._run_on_loop(start_job)

    def read(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Run one page that changes nothing.

        While another process holds the store's lock, the read is retried every ``RETRY_SECONDS``, for as long as a
        request waits for the lock. Then ``StoreBusy`` is raised."""
        until = monotonic() + self._committer.busy.seconds
        while True:
            try:
                return self._read(work)
            except StoreBusy:
                if monotonic() >= until or self.is_stopping:
                    raise
            sleep(RETRY_SECONDS)

    def _read(self, work: Callable[[Transaction], Answer]) -> Answer:
        def start_job(future: "Future[Answer]") -> None:
            try:
                future.set_result(self._committer.read(work))
            except BaseException as error:
                future.set_exception(error)

        return self._run_on_loop(start_job)

    def _run_on_loop(self, start_job: Callable[["Future[Answer]"], None]) -> Answer:
        if self.is_stopping:
            raise Unavailable("the server is stopping; what was done so far is kept, repeat the call for the rest")
        future: Future[Answer] = Future()
        self._call(lambda: start_job(future))
        return future.result()


# -- permissions -------------------------------------------------------------------------------------------------------

QUEUE, SERVER, NOWHERE = "queue", "server", "nowhere"
"""Scope in which the verb of a method is exercised. ``QUEUE``: the queue that the call names, or all queues if it names
none. ``SERVER``: the whole server. ``NOWHERE``: no queue, so that only the scopes of the grant decide."""

METHODS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("counts", "status", "trends"), (LIST, QUEUE)),
    **dict.fromkeys(("queues", "next_due", "topics"), (LIST, SERVER)),
    "processor_check": (PUBLISH, QUEUE),
    "consumer_beat": (CONSUME, NOWHERE),
    **dict.fromkeys(
        (
            "peek", "show", "by_id", "search", "policy", "policy_text", "processors", "schedules", "dispatch",
            "deliveries", "dlq_find", "dlq_show", "dlq_sources", "dlq_stats",
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
            "queue_clear", "queue_purge", "drop", "dlq_purge", "failed_abandon",
        ),
        (ADMIN, QUEUE),
    ),
    **dict.fromkeys(
        (
            "bridge_add", "bridge_remove", "connections", "pair_adopt", "pair_handover", "pair_switch", "programs",
            "topic_cursor_drop", "topic_trim", "topic_tune",
        ),
        (ADMIN, SERVER),
    ),
}  # fmt: skip


def verb_of(method: str, values: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the verb of a call and the queue in which it is exercised, as arguments of ``Grant.allows``."""
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
"""Paged methods that run at the same time; further ones wait in the executor's queue."""


class PagedMethods:
    """Executor of paged methods. Loop thread only; ``call`` schedules a function there from any other thread.

    The ``Queues`` facade is imported and built for the first paged method."""

    def __init__(self, store: Store, committer: GroupCommitter, clock: Clock, ids: Ids, call: Call) -> None:
        self._page_committer = CrossThreadCommitter(committer, call)
        self._parts = (store, clock, ids)
        self._operations = committer.operations
        self._facade: Queues | None = None
        self._call = call
        self._executor = BackgroundExecutor(partial(ThreadPoolExecutor, THREADS, "pages"))
        self._running = 0

    @property
    def is_idle(self) -> bool:
        return self._running == 0

    def start(self, method: PagedMethod, given: Given, done: Done) -> None:
        if self._page_committer.is_stopping:
            done(None, Unavailable("the server is stopping"))
            return
        self._running += 1
        self._executor.run(lambda: method(self._queues(), given), self._call, partial(self._finish, done))

    def _queues(self) -> "Queues":
        if self._facade is None:
            from yirangmq.broker.queues import Queues  # not loaded by a server without calls of paged methods

            self._facade = Queues(*self._parts, "server", self._page_committer, operations=self._operations)
        return self._facade

    def _finish(self, done: Done, value: Any, error: QueueError | None) -> None:
        self._running -= 1
        done(value, error)

    def stop(self) -> None:
        """Let the submitted page end and refuse the next one. Methods that still wait for a thread get
        ``Unavailable``."""
        self._page_committer.stop()
        self._executor.stop(wait=False, cancel=False)


# -- call table --------------------------------------------------------------------------------------------------------

Method = Callable[[Transaction, Given], Any]
Entry = Callable[[GroupCommitter, Given, Done], None]


@dataclass(frozen=True, slots=True)
class ServerSources:
    """Parts of a whole server that its methods read: clock, health, status facts, connections, consumers, rates."""

    clock: Clock
    health: ServerHealth
    facts: Callable[[], Mapping[str, Any]]
    """Return the server members of ``status``: version, node, store, durability, uptime …"""
    connections: Callable[[], list[dict[str, Any]]]
    registry: ConsumerRegistry
    rates: Callable[[str], Any] = lambda queue: None
    """Return the rates of a queue, as ``observe.metrics`` counts them, or None if they are not known."""


class MethodRegistry:
    """Call table of named methods. Parts of the server add their methods during server construction.

    Loop thread only."""

    def __init__(
        self, operations: QueueOperations, pages: PagedMethods | None = None, site: ServerSources | None = None
    ) -> None:
        self._entries: dict[str, Entry] = {}
        self._operations = operations
        self._pages = pages
        self._is_builtin_loaded = False
        self.sources = site
        """Parts of the server that the built-in methods read. They are set before the first lookup."""

    def add(self, name: str, method: Method) -> None:
        """Add a method that runs inside the next commit. If it raises a ``QueueError`` it must have changed nothing."""

        def entry(committer: GroupCommitter, given: Given, done: Done) -> None:
            committer.submit(lambda transaction: method(transaction, given), done)

        self.add_entry(name, entry)

    def add_paged(self, pages: PagedMethods, name: str, method: PagedMethod) -> None:
        self.add_entry(name, lambda committer, given, done: pages.start(method, given, done))

    def add_entry(self, name: str, entry: Entry) -> None:
        """Add a method that starts its work itself. It calls ``done(value, error)`` once, on the loop thread."""
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
        """Return all entries, including the built-in ones, which are loaded at the first lookup.

        An entry that a part of the server added has precedence over the built-in entry of the same name."""
        if not self._is_builtin_loaded:
            from yirangmq.admin.queue_methods import register_methods

            self._is_builtin_loaded = True
            added, self._entries = self._entries, {}
            register_methods(self, self._operations, self._pages, self.sources)
            self._entries |= added
        return self._entries


# -- arguments ---------------------------------------------------------------------------------------------------------


class MethodArguments(Fields):
    """Reader of the named values of one call. Each is taken once; ``done`` refuses the values left."""

    def queue(self) -> str:
        return validation.check_queue(self.take("queue", None))

    def optional_queue(self) -> str | None:
        """Return the queue, or None for all queues."""
        name = self.take("queue", None)
        return None if name is None else validation.check_queue(name)

    def id(self) -> str:
        return validation.check_id(self.take("id", None), "id")

    def ids(self) -> list[str]:
        given = self.take("ids", None)
        if not isinstance(given, list):
            raise BadInput(f"must be an array of message ids, not {kind(given)}", field="ids")
        validation.check_count(len(given), "ids", most=MAX_PER_CALL)
        return [validation.check_id(id, "ids") for id in given]

    def optional_ids(self) -> list[str] | None:
        """Return the ids, or None if a filter selects the messages."""
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
        return self.whole("limit", default, least=1, most=MAX_PER_CALL)


def read_arguments(given: Mapping[str, Any], read: Callable[[MethodArguments], Answer]) -> Answer:
    """Return the result of ``read``. Raise ``BadInput`` if it left a value unread."""
    values = MethodArguments(given)
    answer = read(values)
    values.done()
    return answer
