"""Targets of fault injection: each store alone, and a complete server on it.

A target starts and stops as a unit. It opens its store over the faulting calls, reads its content, and checks a copy of
its files. ``cli.commands.torture`` passes in the function that starts a server: this package may not import it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar

import apsw

from yirangmq.core.errors import NotFound, StoreBusy
from yirangmq.core.ports import Finding, Store
from yirangmq.core.states import State
from yirangmq.core.topics import Cursor, NewRecord
from yirangmq.crashtest.faults.injector import SQLITE_ERRORS, SYSTEM_ERRORS, FaultingVfs, Injector
from yirangmq.crashtest.faults.protocols import (
    SERVER_CLIENTS,
    Addresses,
    EmbeddedTestClient,
    ProtocolTestClient,
    translated,
)
from yirangmq.crashtest.workload import Snapshot, take_snapshot, wrong_counts
from yirangmq.stores.cursors import FileCursors
from yirangmq.stores.files.store import FilesStore
from yirangmq.stores.log.check import check as check_log
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.stores.log.readonly import SegmentView
from yirangmq.stores.sqlite.server_store import open_served_store
from yirangmq.stores.sqlite.store import SqliteStore

BUSY_SECONDS = 0.05
"""Time limit in seconds for a store to wait for another process's lock. Short, because no other process holds one."""
REDO_BYTES = 64 * 1024
SETTLE_SECONDS = 0.05
"""Maximum seconds a change stays only in the redo log. Short, so that the background commit runs."""
CHECKPOINT_PAGES = 20
LOCK_MS = 5000
TURN_SECONDS = 5.0
"""Time limit in seconds for reads of a server's store to wait for the server's own transactions.

After a fault the server rebuilds the index. On a busy machine that takes longer than a store waits for a thread. A lock
held past this limit was not released."""
RETRY_SECONDS = 0.01
_vfs_numbers = count()
Answer = TypeVar("Answer")
States = dict[bytes, list[State]]
"""States of the messages, by payload."""


class Server(Protocol):
    """A running server. ``stop`` shuts it down gracefully."""

    @property
    def addresses(self) -> Addresses: ...

    def stop(self) -> None: ...


class StartServer(Protocol):
    """Starts a server on an open store, with the data folder ``data``. Raises the error of a failed start."""

    def __call__(self, store: Store, data: Path) -> Server: ...


class FaultTarget(Protocol):
    name: str
    errors: Sequence[str]
    is_server: bool

    def start(self) -> None: ...

    def stop(self) -> None: ...

    @property
    def protocols(self) -> Sequence[ProtocolTestClient]: ...

    def states(self, queue: str) -> States: ...

    def forget(self, queue: str) -> None:
        """Remove the content of a queue."""

    def pause_removals(self) -> AbstractContextManager[None]:
        """Keep the target's threads from removing files while the block runs, so that all files can be copied."""

    def complaints(self, copy: Path) -> list[str]:
        """Open a copy of the files as after a kill. Return the problems: damage and wrong counters."""

    def copied_states(self, copy: Path, queue: str) -> States: ...


def _opened(kind: str, location: Path, vfs: str | None) -> Store:
    if kind == "fs":
        return FilesStore(location, busy_seconds=BUSY_SECONDS)
    if kind == "served":
        return open_served_store(
            location, busy_seconds=BUSY_SECONDS, vfs=vfs, redo_bytes=REDO_BYTES, seconds=SETTLE_SECONDS
        )
    store = SqliteStore(location, busy_seconds=BUSY_SECONDS, vfs=vfs)
    store.file.db.set_wal_hook(_checkpointed)
    return store


def _checkpointed(db: apsw.Connection, name: str, pages: int) -> int:
    """Checkpoint after a commit and ignore errors, as SQLite does. apsw would raise the errors of a Python VFS."""
    if pages >= CHECKPOINT_PAGES:
        with suppress(apsw.Error):
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    return apsw.SQLITE_OK


def states_of(store: Store, queue: str) -> States:
    found: States = {}
    with store.transaction(write=False) as transaction:
        for state in State:
            cursor = ""
            while True:
                page = transaction.scan(queue, state, 500, cursor)
                for message, sent in zip(page.messages, transaction.envelopes(page.messages), strict=True):
                    found.setdefault(b"" if sent is None else sent.payload, []).append(message.state)
                cursor = page.cursor
                if not cursor:
                    break
    return found


class StoreTarget:
    """A queue store, alone or below a server."""

    def __init__(self, kind: str, folder: Path, vfs: str | None, start_server: StartServer | None) -> None:
        self.kind = kind
        self.is_server = start_server is not None
        self.name = f"{kind}-server" if self.is_server else kind
        self.errors = SYSTEM_ERRORS if kind == "fs" else tuple(dict.fromkeys((*SYSTEM_ERRORS, *SQLITE_ERRORS)))
        self._folder = folder
        self._vfs = vfs
        self._start_server = start_server
        self._server: Server | None = None
        self._store: Store | None = None
        self._embedded: EmbeddedTestClient | None = None
        self._starts = count(1)
        self.protocols: Sequence[ProtocolTestClient] = ()

    @property
    def store(self) -> Store:
        if self._store is None:
            raise RuntimeError("not started")
        return self._store

    def start(self) -> None:
        self._store = _opened(self.kind, self._folder / "store", self._vfs)
        self._embedded = EmbeddedTestClient(self._store, f"e{next(self._starts)}")
        if self._start_server is None:
            self.protocols = [self._embedded]
            return
        try:
            self._server = self._start_server(self._store, self._folder)
        except BaseException:
            self._store.close()
            self._store = None
            raise
        self.protocols = [make(self._server.addresses) for make in SERVER_CLIENTS]

    def stop(self) -> None:
        for protocol in self.protocols:
            protocol.close()
        self.protocols = ()
        server, self._server = self._server, None
        store, self._store = self._store, None
        try:
            if server is not None:
                server.stop()
        finally:
            if store is not None:
                store.close()

    def states(self, queue: str) -> States:
        return self._retry_while_busy(lambda: states_of(self.store, queue))

    def forget(self, queue: str) -> None:
        embedded = self._embedded
        if embedded is not None:
            self._retry_while_busy(lambda: embedded.queues.delete_queue(queue))

    def _retry_while_busy(self, work: Callable[[], Answer]) -> Answer:
        """Retry while the server's thread uses the same store, up to ``TURN_SECONDS``."""
        until = monotonic() + (TURN_SECONDS if self.is_server else 0.0)
        while True:
            try:
                return work()
            except StoreBusy:
                if monotonic() >= until:
                    raise
            sleep(RETRY_SECONDS)

    @contextmanager
    def pause_removals(self) -> Iterator[None]:
        """Hold a read transaction, so that the server's sweeper removes no files of a files store meanwhile."""
        with ExitStack() as held:
            if self.kind == "fs":
                self._retry_while_busy(lambda: held.enter_context(self.store.transaction(write=False)))
            yield

    def embedded(self) -> EmbeddedTestClient:
        if self._embedded is None:
            raise RuntimeError("not started")
        return self._embedded

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold SQLite's write lock in another connection, as another process would.

        A server releases its lock at its next commit."""
        other = apsw.Connection(str(self._folder / "store"))
        try:
            other.set_busy_timeout(LOCK_MS)
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")
        finally:
            other.close()

    def complaints(self, copy: Path) -> list[str]:
        store = _opened(self.kind, copy / "store", None)
        try:
            found: list[Finding] = list(store.check(repair=False))
            snapshot: Snapshot = take_snapshot(store)
        finally:
            store.close()
        wrong = [f"check: {one.kind} {one.where}: {one.text}" for one in found]
        return [*wrong, *wrong_counts(snapshot), *(f"{'/'.join(key)} is in two states" for key in snapshot.twice)]

    def copied_states(self, copy: Path, queue: str) -> States:
        store = _opened(self.kind, copy / "store", None)
        try:
            return states_of(store, queue)
        finally:
            store.close()


class LogTestClient:
    """Client of a topic log and its cursors in this process."""

    name = "embedded"

    def __init__(self, log: SegmentLog, cursors: FileCursors) -> None:
        self._log = log
        self._cursors = cursors

    def record(self, topic: str, payload: bytes) -> None:
        translated(lambda: self._log.append([NewRecord(topic, payload)]))

    def confirm(self, topic: str) -> None:
        translated(lambda: self._cursors.put([Cursor("torture", self._log.epoch, self._log.last, topic, 1)]))

    def close(self) -> None:
        """Do nothing: the target closes the log."""


class LogTarget:
    """A topic log, alone or below a server. Its records are reported as ready messages."""

    kind = "log"
    errors = SYSTEM_ERRORS

    def __init__(self, folder: Path, start_server: StartServer | None) -> None:
        self.is_server = start_server is not None
        self.name = "log-server" if self.is_server else "log"
        self._folder = folder
        self._start_server = start_server
        self._server: Server | None = None
        self._store: Store | None = None
        self._opened: tuple[SegmentLog, FileCursors] | None = None
        self.protocols: Sequence[ProtocolTestClient] = ()

    @property
    def _topics(self) -> Path:
        return self._folder / "topics"

    def start(self) -> None:
        if self._start_server is None:
            log = SegmentLog(self._topics, LogSettings(segment_bytes=16 * 1024))
            try:
                cursors = FileCursors(self._topics / "cursors")
            except BaseException:
                log.close()
                raise
            self._opened = log, cursors
            protocol: Any = LogTestClient(log, cursors)
            self.protocols = [protocol]
            return
        self._store = open_served_store(self._folder / "store", seconds=None)
        try:
            self._server = self._start_server(self._store, self._folder)
        except BaseException:
            self._store.close()
            self._store = None
            raise
        self.protocols = [client for make in SERVER_CLIENTS if (client := make(self._server.addresses)).name != "mq"]

    def stop(self) -> None:
        for protocol in self.protocols:
            protocol.close()
        self.protocols = ()
        server, self._server = self._server, None
        store, self._store = self._store, None
        opened, self._opened = self._opened, None
        try:
            if server is not None:
                server.stop()
            if opened is not None:
                try:
                    opened[1].close()
                finally:
                    opened[0].close()
        finally:
            if store is not None:
                store.close()

    def states(self, queue: str) -> States:
        return _records(self._topics, queue)

    def forget(self, queue: str) -> None:
        """Do nothing: records stay, and each case has unique payloads."""

    def pause_removals(self) -> AbstractContextManager[None]:
        return nullcontext()

    def complaints(self, copy: Path) -> list[str]:
        try:
            view = SegmentView(copy / "topics")
        except NotFound:
            return []
        return [f"check: {one.kind} {one.where}: {one.text}" for one in check_log(view).findings]

    def copied_states(self, copy: Path, queue: str) -> States:
        """Open the copy once, as after a kill, then read its records."""
        with SegmentLog(copy / "topics", LogSettings(segment_bytes=16 * 1024)):
            pass
        return _records(copy / "topics", queue)


def _records(folder: Path, topic: str) -> States:
    found: States = {}
    try:
        view = SegmentView(folder)
    except NotFound:  # nothing was ever recorded
        return found
    for record in view.reader().records(view.first):
        if record.topic == topic:
            found.setdefault(bytes(record.payload), []).append(State.READY)
    return found


@contextmanager
def target_of(
    name: str, folder: Path, injector: Injector, start_server: StartServer
) -> Iterator[StoreTarget | LogTarget]:
    kind, _, server = name.partition("-")
    start = start_server if server else None
    if kind == "log":
        yield LogTarget(folder, start)
    elif kind == "fs":
        yield StoreTarget(kind, folder, None, start)
    else:
        vfs = f"yirangmq-faults-{next(_vfs_numbers)}"
        with FaultingVfs(vfs, injector):
            yield StoreTarget(kind, folder, vfs, start)


TARGET_NAMES = ("sqlite", "served", "fs", "log", "served-server", "fs-server", "log-server")
TARGETS: dict[str, Sequence[str]] = {
    "sqlite": ("sqlite",),
    "served": ("served", "served-server"),
    "fs": ("fs", "fs-server"),
    "log": ("log", "log-server"),
}
"""Target names by ``--backend``."""
OnTarget = Callable[[StoreTarget | LogTarget], None]
