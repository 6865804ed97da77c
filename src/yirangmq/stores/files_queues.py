"""The queues of a files store: folders below the root that have an inbox. One cache per opening of a store.

A listing is reused while the root's modification time is unchanged, so that the cost of a commit does not depend on the
number of queues. Only folders that were not seen before are looked into."""

import os
import time
from bisect import bisect_right

from yirangmq.core.validation import QUEUE
from yirangmq.fsio.disk import exists, isdir, subfolders
from yirangmq.stores.files_policies import FILE

SETTLED_NS = 50_000_000
"""A listing made sooner after the root changed is not reused: a change within the same tick of the file system's clock
would not be noticed."""
IN_TURN = 200
"""Queues that one round of housekeeping looks at beside those that changed."""
LOOKED_AT = 500
"""Queues in which one call of ``policied`` looks for a policy that was put there by hand."""


class QueueFolders:
    def __init__(self, root: str) -> None:
        self._root = root
        self._stamp: int | None = None
        self._names: list[str] = []
        self._known: set[str] = set()
        self._incomplete: list[str] = []
        """Folders without an inbox: it may come without a change of the root."""
        self._policied: set[str] | None = None
        self._looked_to = ""

    def names(self) -> list[str]:
        """In order. Not to be changed."""
        stamp = os.stat(self._root).st_mtime_ns
        if stamp != self._stamp or any(self._has_inbox(name) for name in self._incomplete):
            self._list(stamp)
        return self._names

    def _list(self, stamp: int) -> None:
        now = time.time_ns()
        found = {name for name in subfolders(self._root) if QUEUE.fullmatch(name)}
        known = self._known & found
        known |= {name for name in found - known if self._has_inbox(name)}
        self._known, self._names = known, sorted(known)
        self._incomplete = sorted(found - known)
        self._stamp = stamp if now - stamp > SETTLED_NS else None

    def _has_inbox(self, name: str) -> bool:
        return isdir(f"{self._root}/{name}/inbox")

    def has(self, name: str) -> bool:
        return self._has_inbox(name)

    def policied(self) -> set[str]:
        """Queues with a policy file. The first call looks into all, later ones into those and some others in turn."""
        names = self.names()
        if self._policied is None:
            looked_at = names
        else:
            begin = bisect_right(names, self._looked_to)
            looked_at = [*names[begin : begin + LOOKED_AT], *self._policied]
            self._looked_to = names[begin + LOOKED_AT - 1] if begin + LOOKED_AT < len(names) else ""
        fresh = {name for name in looked_at if exists(f"{self._root}/{name}/{FILE}")}
        self._policied = (self._policied or set()).difference(looked_at) | fresh
        return self._policied

    def note_policy(self, name: str) -> None:
        """It was set here."""
        if self._policied is not None:
            self._policied.add(name)


class Rotation:
    """Which queues housekeeping looks at next, so that a commit looks at few of them. One per opening of a store."""

    def __init__(self) -> None:
        self.finished: set[str] = set()
        """Queues that got done messages since their history was last trimmed."""
        self._at: dict[str, str] = {}
        self.due: tuple[int, int | None] | None = None
        """A commit, and the moment before which nothing on disk was due after it (None: never)."""

    def next(self, what: str, names: list[str]) -> list[str]:
        """Some of the queues, in turn, for one kind of housekeeping."""
        if len(names) <= IN_TURN:
            return names
        after = self._at.get(what)
        if after is None:  # a process that does not live long begins somewhere, not always at the first
            begin = time.time_ns() // 1000 % len(names) // IN_TURN * IN_TURN
        else:
            begin = bisect_right(names, after)
        found = names[begin : begin + IN_TURN]
        self._at[what] = found[-1] if begin + IN_TURN < len(names) else ""
        return found
