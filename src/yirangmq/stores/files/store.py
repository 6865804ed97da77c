"""Files store: messages as JSON files, each in the folder of its state, and the lock of the root folder.

Files can be inspected with ``ls`` and ``cat``. A change of state is one rename; all other mutable metadata is in the
file name (``stores.files.names``). The store needs only the standard library.

Lookups. Ready messages: by listing ``inbox/<priority>/<thousand places>``; its names sort in order of delivery. One
small folder is read, regardless of the backlog. Messages for one consumer are in a separate folder, ``inbox-for``. By
number or id: the index names the folder to list (``index``). By time: ``timer_index``. The next message of a group:
``secondary_indexes``. The index is derived from the names, never synced, and rebuilt whenever it is not valid
(``recovery``).

Guarantees. When ``transaction`` ends without an error, its changes are on disk (``commit``). Any number of processes
may have the folder open. Counts by state are always exact: after a crash they are counted from the names. So are the
totals (``totals``).

``RootLock`` is a ``flock`` on one file. The system releases it when a process dies. It admits one writer among all
threads and processes, or several reading processes."""

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

from yirangmq.core.backoff import Backoff
from yirangmq.core.errors import StoreBusy, StoreError, StoreFull
from yirangmq.core.message import Counts
from yirangmq.core.ports import CheckProgress, Finding, no_progress
from yirangmq.core.states import STORED_STATES
from yirangmq.fsio.disk import Disk, isdir, read_bytes
from yirangmq.fsio.errors import os_errors_translated
from yirangmq.fsio.lock import lock_within, unlock
from yirangmq.fsio.permissions import access_in, open_file
from yirangmq.stores.file_watch import FileWatch
from yirangmq.stores.files.commit import FilesCommit
from yirangmq.stores.files.index import Index
from yirangmq.stores.files.layout import SpareFiles
from yirangmq.stores.files.metadata import Policies, QueueFolders, Rotation, read_counter
from yirangmq.stores.files.recovery import FilesRecovery
from yirangmq.stores.files.timer_index import TimerIndex
from yirangmq.stores.files.transaction import FilesTransaction
from yirangmq.stores.files.undo_log import FileBatch, StoreRoot
from yirangmq.stores.files.view import DiskView
from yirangmq.stores.reserve import HISTORY_PARTS, files_reserve, trim_history

# -- lock --------------------------------------------------------------------------------------------------------------

BACKOFF = Backoff(first=0.0001, limit=0.0025, jitter=1.0)
"""Delay between two attempts to get the lock: at most 0.2 ms after the first attempt, at most 5 ms later."""
THREAD_LOCK_SECONDS = 0.05
"""Time to wait for another thread of this process, after ``never_wait`` has disabled waiting for other processes."""


class RootLock:
    """Lock of a store's root folder, shared or exclusive. One instance per open store, used by all threads.

    Threads of one process exclude each other even for reading."""

    def __init__(self, path: str, busy_seconds: float, *, read_only: bool = False) -> None:
        """``busy_seconds``: timeout of ``acquire``. ``read_only``: do not create the lock file. If it does not exist,
        lock the folder instead; no writer locks the folder."""
        if read_only and not os.path.exists(path):
            path = os.path.dirname(path)
        self._path = path
        self._flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        self._busy_seconds = self._thread_lock_seconds = busy_seconds
        self._thread_lock = threading.RLock()
        self._access = access_in(os.path.dirname(path))
        self._fd = self._open()
        self._pid = os.getpid()
        self._held = False

    def never_wait(self) -> None:
        """Raise ``StoreBusy`` immediately while another process holds the lock, from now on. Wait at most
        ``THREAD_LOCK_SECONDS`` for another thread of this process."""
        self._busy_seconds, self._thread_lock_seconds = 0.0, THREAD_LOCK_SECONDS

    def acquire(self, *, shared: bool) -> None:
        """Wait for the lock. Raise ``StoreBusy`` after the timeout."""
        if not self._thread_lock.acquire(timeout=self._thread_lock_seconds):
            raise StoreBusy(f"another thread holds {self._path}; try again")
        try:
            if self._held:
                raise StoreError("a transaction inside a transaction")
            self._follow_fork()
            if self._fd < 0:  # closed after an error
                self._fd = self._open()
            self._wait(shared=shared)
            while not self._is_current_file():
                self._reopen()
                self._wait(shared=shared)
            self._held = True
        except BaseException:
            if not self._held:
                self._unlock()
            self._thread_lock.release()
            raise

    def change(self, *, shared: bool) -> None:
        """Release the lock and acquire it in the other mode. Another process may get it in between."""
        unlock(self._fd)
        self._wait(shared=shared)

    def release(self) -> None:
        """Release the lock. It never raises, because the work under the lock has succeeded already."""
        try:
            self._held = False
            self._unlock()
        finally:
            self._thread_lock.release()

    def _unlock(self) -> None:
        """Release the ``flock``. If that fails, close the file, which releases it; ``acquire`` reopens the file."""
        if self._fd < 0:
            return
        try:
            unlock(self._fd)
        except OSError:
            self._close()

    def _follow_fork(self) -> None:
        """Reopen the lock file in a forked child, because an inherited descriptor shares the parent's lock."""
        if os.getpid() != self._pid:
            self._reopen()
            self._pid = os.getpid()

    def _reopen(self) -> None:
        self._close()
        self._fd = self._open()

    def _open(self) -> int:
        if not self._flags & os.O_CREAT:
            return os.open(self._path, self._flags | os.O_CLOEXEC)
        return open_file(self._path, self._flags, self._access)

    def _close(self) -> None:
        """Close the lock file. The descriptor is reset first, because the system may reuse its number."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def _is_current_file(self) -> bool:
        """Return False if the lock file was removed or replaced; other processes then lock another file."""
        try:
            return os.stat(self._path).st_ino == os.fstat(self._fd).st_ino
        except FileNotFoundError:
            return False

    def _wait(self, *, shared: bool) -> None:
        if not lock_within(self._fd, self._busy_seconds, shared=shared, backoff=BACKOFF):
            raise StoreBusy(f"{self._path} is held by another process; try again")

    def close(self) -> None:
        with self._thread_lock:
            self._close()


# -- store -------------------------------------------------------------------------------------------------------------

DURABILITIES = ("full", "os")
"""``os`` skips all syncs: committed changes survive a killed process, but not a power cut."""

MAX_WATCHED_INBOXES = 5000
"""Upper bound of inboxes watched for dropped files; the system allows a user at least 8192 watches. Commits of other
processes are noticed for all queues. A file dropped into an unwatched inbox is found when the queue is next used."""
UNDO_SECONDS = 60.0
"""Time limit for retrying a failed undo. Until then the store refuses all work rather than show the failed batch in
part. After it the store continues with the files as they are."""


class FilesStore:
    """``core.ports.Store`` on one folder. Threads and processes may share the folder; ``RootLock`` serializes them."""

    def __init__(
        self,
        path: Path,
        *,
        durability: str = "full",
        disk: Disk | None = None,
        busy_seconds: float = 30,
        index_folder: str = "",
        reserve_bytes: int = 0,
    ) -> None:
        """``index_folder``: folder for the index outside of the store. The store is then opened read-only, and nothing
        is written to its folder."""
        if durability not in DURABILITIES:
            raise StoreError(f"durability must be one of {', '.join(DURABILITIES)}, not {durability!r}")
        self._path = path
        self._root = str(path.absolute())
        self._durability = durability
        self._store_root = StoreRoot(self._root, disk or Disk(), durability == "full")
        self._closed = False
        self._empty_folders: set[str] = set()
        self._failed_undo: tuple[FileBatch, int, float] | None = None
        """The undo log of a failed batch that could not be undone, the generation of the index then, and the deadline
        for retries."""
        self._needs_cleanup = False
        with os_errors_translated(path):
            self._store_root.disk.access = access_in(self._root)
            if not index_folder:
                self._make_root()
            read_counter(self._root)  # raises for a later format before anything is changed
            self._lock = RootLock(f"{self._root}/.lock", busy_seconds, read_only=bool(index_folder))
            with contextlib.ExitStack() as opened:
                opened.callback(self._lock.close)
                self._is_read_only = bool(index_folder)
                self._built_from_state = b""
                self._index = Index(self._root, index_folder)
                opened.callback(self._index.close)
                self._timer_index = TimerIndex(f"{self._index.folder}/due")
                self._policies = Policies(self._root)
                self._queue_folders = QueueFolders(self._root)
                self._rotation = Rotation()
                self._spares = SpareFiles(self._root)
                self._reserve = files_reserve(self._root, 0 if index_folder else reserve_bytes)
                self._has_added = self._is_trimming = False
                with self._locked(shared=False):
                    self._ensure_valid()
                    self._reserve.make()
                self._seen = self._index.generation
                self._watched: list[str] = []
                self._watched_folders = QueueFolders(self._root)
                """Queue list for the thread in ``wait``, which does not hold the lock."""
                self._watch = self._make_watch()
                opened.pop_all()

    def _make_root(self) -> None:
        missing = []
        folder = self._root
        while not isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another process may open the same new store
                self._store_root.disk.mkdir(folder)
            if self._store_root.full:
                self._store_root.disk.fsync_folder(os.path.dirname(folder))

    # -- transactions ---------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[FilesTransaction]:
        if self._closed:
            raise StoreError("the store is closed")
        with os_errors_translated(self._path), self._locked(shared=not write):
            if self._is_read_only:
                self._ensure_valid()
            elif self._failed_undo is not None or self._needs_cleanup or not self._index.load():
                self._lock.change(shared=False)
                self._ensure_valid()
            view = DiskView(self._root, self._index, self._timer_index, self._queue_folders)
            work = FilesTransaction(self._root, self._index, view, self._policies, self._rotation, write=write)
            if self._reserve.size:
                self._has_added = False
                work.on_add = self._check_reserve
            yield work
            if not work.pending.is_empty or work.last != self._index.last:
                if not write:
                    raise StoreError("a read-only transaction has changed the store")
                self._commit(work, view)
            if view.is_index_stale or self._needs_cleanup:
                self._invalidate_index()
            self._seen = self._index.generation

    def never_wait(self) -> None:
        """Raise ``StoreBusy`` immediately while another process holds the lock, from now on. An event loop that uses
        the store then retries by a timer and does other work meanwhile."""
        self._lock.never_wait()

    def _commit(self, work: FilesTransaction, view: DiskView) -> None:
        before = self._index.generation
        is_short = self._reserve.is_short or self._is_trimming
        commit = FilesCommit(self._store_root, self._index, self._timer_index, self._spares, work, is_short=is_short)
        try:
            self._empty_folders = commit.run([*self._empty_folders, *view.empty_folders])
        except BaseException:
            if commit.failed_undo is not None:
                self._failed_undo = commit.failed_undo, self._index.generation, monotonic() + UNDO_SECONDS
            raise
        self._needs_cleanup = commit.needs_cleanup
        pending = work.pending
        known = self._rotation.due
        if known is not None:
            moments = [moment for moment in (known[1], pending.next_due()) if moment is not None]
            is_next = known[0] == before
            self._rotation.due = (self._index.generation, min(moments, default=None)) if is_next else None
        self._rotation.finished.update(queue for queue, one in pending.deltas.items() if one.get("done", 0) > 0)
        for queue, text in pending.policies.items():
            if text is not None:
                self._queue_folders.note_policy(queue)
        if is_short:
            self._reserve.make()

    # -- a full disk ----------------------------------------------------------------------------------------------

    @property
    def is_short(self) -> bool:
        """True if the disk reserve is used up or could not be allocated."""
        return self._reserve.is_short

    def _check_reserve(self) -> None:
        """Refuse new messages with ``StoreFull`` unless the disk reserve is complete. New messages never use its space.
        Other processes share the reserve, so it is checked on disk."""
        self._has_added = True
        if self._reserve.refresh():
            self._reserve.make()
        if self._reserve.is_short:
            raise StoreFull(
                f"no space left for {self._root} beside its reserve; free some space, or consume messages, which "
                "still works"
            )

    def relieve(self) -> bool:
        """Free disk space after a transaction failed with a full disk. Return True if the caller should retry.

        Trim the history if the transaction added messages, or if the reserve was used up before. Release the reserve if
        the transaction added none, or if the reserve was used up before; it is allocated again when there is space."""
        if self._closed or not self._reserve.size:
            return False
        is_for_new, was_short = self._has_added, self._reserve.refresh()
        if not is_for_new or was_short:
            self._reserve.release()
        if is_for_new or was_short:
            self._trim_history()
        return True

    def _trim_history(self) -> None:
        self._is_trimming = True
        try:
            for limit in HISTORY_PARTS:
                with contextlib.suppress(StoreError), self.transaction() as work:
                    trim_history(work, limit)
                    break
        finally:
            self._is_trimming = False

    def _invalidate_index(self) -> None:
        """Invalidate the index, so that the next transaction rebuilds it. If the mark cannot be written, remember it in
        this process."""
        try:
            self._index.invalidate()
        except OSError:
            self._needs_cleanup = True

    def _retry_undo(self) -> None:
        """Retry the undo of a failed batch, so that no part of it is visible. Needs the lock.

        Nothing is undone if another process has recovered the store since, because recovery has dealt with the batch.
        Raise ``OSError`` if the undo fails again before the deadline."""
        if self._failed_undo is None:
            return
        batch, generation, until = self._failed_undo
        if self._index.latest_generation() == generation:
            batch.undo(skip_errors=monotonic() > until)
            if not batch.is_undone:
                raise OSError(errno.EIO, "a refused batch cannot be undone yet")
        self._failed_undo = None

    @contextmanager
    def _locked(self, *, shared: bool) -> Iterator[None]:
        self._lock.acquire(shared=shared)
        try:
            yield
        finally:
            self._lock.release()

    def _ensure_valid(self) -> None:
        """Ensure a valid index and a consistent store: retry a failed undo, run recovery if needed. Needs the lock."""
        if self._is_read_only:
            state = read_bytes(f"{self._root}/.index/state") or b""
            if not self._index.load() or state != self._built_from_state:
                self._recovery().refresh()
                self._built_from_state = state
            return
        is_sound = self._index.load()
        self._retry_undo()
        if not is_sound or self._needs_cleanup:
            self._recovery().run()
            self._needs_cleanup = False

    def _recovery(self) -> FilesRecovery:
        return FilesRecovery(self._store_root, self._index, self._timer_index)

    # -- notification ---------------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> None:
        """Block until another process has committed, a file was dropped into an inbox, or the timeout is over."""
        if self._closed:
            return
        generation = self._index.latest_generation()
        if generation != self._seen:
            self._seen = generation
            return
        if self._inboxes() != self._watched:
            self._watch.close()
            self._watch = self._make_watch()
            return  # the caller checks for changes made before the new watch
        self._watch.wait(timeout)

    def _inboxes(self) -> list[str]:
        names = self._watched_folders.names()[:MAX_WATCHED_INBOXES]
        return [f"{self._root}/{name}/inbox" for name in names]

    def _make_watch(self) -> FileWatch:
        self._watched = self._inboxes()
        return FileWatch([Path(path) for path in (self._index.state_path, self._root, *self._watched)])

    # -- check and statistics -------------------------------------------------------------------------------------

    def check(self, *, repair: bool, progress: CheckProgress = no_progress) -> Iterator[Finding]:
        if self._closed:
            raise StoreError("the store is closed")
        with os_errors_translated(self._path), self._locked(shared=False):
            is_trusted = self._index.load()
            totals = self._index.totals() if is_trusted else Counts()
            expected = sum(getattr(totals, state.value) for state in STORED_STATES)

            def report(done: int) -> None:
                progress("", done, expected if done <= expected else 0)

            findings = self._recovery().check(trusted=is_trusted, repair=repair, progress=report)
        yield from findings

    def used_bytes(self) -> int:
        """Return the bytes of all unfinished messages, with their headers. The disk usage is larger, because each file
        takes whole blocks."""
        with self.transaction(write=False):
            return self._index.totals().bytes

    def durability(self) -> str:
        return self._durability

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._watch.close()
            self._index.close()
            self._lock.close()
