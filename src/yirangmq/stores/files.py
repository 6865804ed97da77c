"""Messages as JSON files in folders that can be looked at with ``ls`` and ``cat``: a message's folder is its state,
a change of state is one rename, and everything that changes in its life stands in its name (format/filenames.py).

How things are found. Ready messages: by listing ``inbox/<priority>/<thousand places>``, whose names sort in order of
delivery; one small folder is read, however many wait; those for one consumer lie apart, in ``inbox-for``. By number or
id: the index says which folder to list (files_index.py). By time: so does its calendar (files_due.py). Who is next in a
group: so do its chains (files_chains.py). The index is derived from the names, never synced, and made anew whenever it
cannot be trusted (files_recover.py).

What is promised. When ``transaction`` ends without an error its changes are on disk (files_commit.py). Any number of
processes may have the same folder open; they take turns by a lock (files_lock.py). Counts by state are exact, always:
after a crash they are counted from the names. So are the totals (published, acked …; files_totals.py).

Bare Python is enough: nothing here needs a package."""

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from yirangmq.core.errors import StoreError, StoreFull
from yirangmq.core.ports import Finding
from yirangmq.fsio.disk import Disk, isdir, read_bytes
from yirangmq.fsio.errors import translated
from yirangmq.fsio.permissions import access_in
from yirangmq.stores.files_commit import Commit
from yirangmq.stores.files_counter import read_counter
from yirangmq.stores.files_deeds import Deeds, Home
from yirangmq.stores.files_due import Calendar
from yirangmq.stores.files_index import Index
from yirangmq.stores.files_lock import RootLock
from yirangmq.stores.files_policies import Policies
from yirangmq.stores.files_queues import QueueFolders, Rotation
from yirangmq.stores.files_recover import Recovery
from yirangmq.stores.files_spares import Spares
from yirangmq.stores.files_transaction import FilesTransaction
from yirangmq.stores.files_view import View
from yirangmq.stores.history import HISTORY_PARTS, give_up_history
from yirangmq.stores.reserve import files_reserve
from yirangmq.stores.watch import FileWatch

DURABILITIES = ("full", "os")
"""``os`` leaves out the syncs: safe against a killed process, not against a power cut."""

MOST_WATCHED = 5000
"""Inboxes watched for files that are dropped there by hand; the system allows a user 8192 watches or more. Commits of
other processes are heard of for all queues; a file dropped into another inbox is found at the queue's next use."""
UNDO_SECONDS = 60.0
"""For so long after a disk refused to take a refused batch back, the store refuses everything rather than show it. Then
it goes on with what is there."""


class FilesStore:
    """``core.ports.Store`` on one folder."""

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
        """``index_folder``: elsewhere, to read a store that cannot be written; then nothing is written to it."""
        if durability not in DURABILITIES:
            raise StoreError(f"durability must be one of {', '.join(DURABILITIES)}, not {durability!r}")
        self._path = path
        self._root = str(path.absolute())
        self._durability = durability
        self._home = Home(self._root, disk or Disk(), durability == "full")
        self._closed = False
        self._hollow: set[str] = set()
        self._undone: tuple[Deeds, int, float] | None = None
        """A refused batch that could not be taken back, the generation of the index at that time, and until when it is
        tried again."""
        self._is_unclean = False
        with translated(path):
            self._home.disk.access = access_in(self._root)
            if not index_folder:
                self._make_root()
            read_counter(self._root)  # refuses a later version before anything is touched
            self._lock = RootLock(f"{self._root}/.lock", busy_seconds, read_only=bool(index_folder))
            with contextlib.ExitStack() as opened:
                opened.callback(self._lock.close)
                self._reads_only = bool(index_folder)
                self._made_from = b""
                self._index = Index(self._root, index_folder)
                opened.callback(self._index.close)
                self._calendar = Calendar(f"{self._index.folder}/due")
                self._policies = Policies(self._root)
                self._queue_folders = QueueFolders(self._root)
                self._rotation = Rotation()
                self._spares = Spares(self._root)
                self._reserve = files_reserve(self._root, 0 if index_folder else reserve_bytes)
                self._has_added = self._is_trimming = False
                with self._locked(shared=False):
                    self._trust()
                    self._reserve.make()
                self._seen = self._index.generation
                self._watched: list[str] = []
                self._watched_folders = QueueFolders(self._root)
                """Of the thread that waits, which has no lock."""
                self._watch = self._make_watch()
                opened.pop_all()

    def _make_root(self) -> None:
        missing = []
        folder = self._root
        while not isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):  # others may open the same new store at this moment
                self._home.disk.mkdir(folder)
            if self._home.full:
                self._home.disk.fsync_folder(os.path.dirname(folder))

    # -- transactions ---------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[FilesTransaction]:
        if self._closed:
            raise StoreError("the store is closed")
        with translated(self._path), self._locked(shared=not write):
            if self._reads_only:
                self._trust()
            elif self._undone is not None or self._is_unclean or not self._index.load():
                self._lock.change(shared=False)
                self._trust()
            view = View(self._root, self._index, self._calendar, self._queue_folders)
            work = FilesTransaction(self._root, self._index, view, self._policies, self._rotation, write=write)
            if self._reserve.size:
                self._has_added = False
                work.on_add = self._before_adding
            yield work
            if not work.pending.is_empty or work.last != self._index.last:
                if not write:
                    raise StoreError("a transaction for reading has changed something")
                self._commit(work, view)
            if view.is_doubtful or self._is_unclean:
                self._doubt()
            self._seen = self._index.generation

    def never_wait(self) -> None:
        """From now on ``StoreBusy`` is raised at once where another process holds the lock: an event loop that uses the
        store tries again by a timer, and does other work meanwhile."""
        self._lock.never_wait()

    def _commit(self, work: FilesTransaction, view: View) -> None:
        before = self._index.generation
        is_short = self._reserve.is_short or self._is_trimming
        commit = Commit(self._home, self._index, self._calendar, self._spares, work, is_short=is_short)
        try:
            self._hollow = commit.run([*self._hollow, *view.hollow])
        except BaseException:
            if commit.refused_undo is not None:
                self._undone = commit.refused_undo, self._index.generation, monotonic() + UNDO_SECONDS
            raise
        self._is_unclean = commit.is_unclean
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
        """The reserve is used up, or could not be made."""
        return self._reserve.is_short

    def _before_adding(self) -> None:
        """Other processes use the same reserve: new messages never take its space."""
        self._has_added = True
        if self._reserve.look():
            self._reserve.make()
        if self._reserve.is_short:
            raise StoreFull(f"no space left for {self._root} beside its reserve; free some, or consume: that goes on")

    def relieve(self) -> bool:
        """A transaction found no space: for messages that were to be added history gives way, for all else the reserve
        is released until there is room for it again."""
        if self._closed or not self._reserve.size:
            return False
        is_for_new, was_short = self._has_added, self._reserve.look()
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
                    give_up_history(work, limit)
                    break
        finally:
            self._is_trimming = False

    def _doubt(self) -> None:
        """The index is made anew by whoever comes next. If that cannot be written down, this process remembers it."""
        try:
            self._index.doubt()
        except OSError:
            self._is_unclean = True

    def _take_back(self) -> None:
        """With the lock held: a refused batch that the disk would not take back is taken back now, so that nothing of
        it is seen. Not if another process has brought the store in order since, which has settled the matter."""
        if self._undone is None:
            return
        deeds, generation, until = self._undone
        if self._index.seen() == generation:
            deeds.undo(at_any_cost=monotonic() > until)
            if not deeds.is_undone:
                raise OSError(errno.EIO, "a refused batch cannot be taken back yet")
        self._undone = None

    @contextmanager
    def _locked(self, *, shared: bool) -> Iterator[None]:
        self._lock.acquire(shared=shared)
        try:
            yield
        finally:
            self._lock.release()

    def _trust(self) -> None:
        """With the lock held: an index that can be believed, and a disk in order."""
        if self._reads_only:
            state = read_bytes(f"{self._root}/.index/state") or b""
            if not self._index.load() or state != self._made_from:
                self._recovery().look()
                self._made_from = state
            return
        is_sound = self._index.load()
        self._take_back()
        if not is_sound or self._is_unclean:
            self._recovery().run()
            self._is_unclean = False

    def _recovery(self) -> Recovery:
        return Recovery(self._home, self._index, self._calendar)

    # -- news -----------------------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> None:
        """Until another process has committed, or a file was dropped, or the time is over."""
        if self._closed:
            return
        generation = self._index.seen()
        if generation != self._seen:
            self._seen = generation
            return
        if self._inboxes() != self._watched:
            self._watch.close()
            self._watch = self._make_watch()
            return  # whatever came before the new watch is found by looking
        self._watch.wait(timeout)

    def _inboxes(self) -> list[str]:
        names = self._watched_folders.names()[:MOST_WATCHED]
        return [f"{self._root}/{name}/inbox" for name in names]

    def _make_watch(self) -> FileWatch:
        self._watched = self._inboxes()
        return FileWatch([Path(path) for path in (self._index.state_path, self._root, *self._watched)])

    # -- the rest -------------------------------------------------------------------------------------------------

    def check(self, *, repair: bool) -> Iterator[Finding]:
        if self._closed:
            raise StoreError("the store is closed")
        with translated(self._path), self._locked(shared=False):
            findings = self._recovery().check(trusted=self._index.load(), repair=repair)
        yield from findings

    def used_bytes(self) -> int:
        """Bytes of the messages that wait, with their headers; the disk rounds each file up to its blocks."""
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
