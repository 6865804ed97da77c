"""What the memory store holds, and how to change it with a way back. Knows: dicts and sorted lists.
Does not know: what the entries mean."""

import threading
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any

from yirangmq.core.message import Counts, Envelope, Failure, Message

ABSENT: Any = object()


class MemoryState:
    """What has been committed. It outlives the stores opened on it, as a file outlives a process."""

    def __init__(self) -> None:
        self.numbers = {"last": 0}
        self.policies: dict[str, str | None] = {}
        self.counts: dict[str, Counts] = {}
        self.cards: dict[int, Message] = {}
        self.envelopes: dict[int, Envelope] = {}
        self.failures: dict[int, Failure] = {}
        self.names: dict[tuple[str, str], int] = {}
        self.keys: dict[tuple[str, str], tuple[int, int, str]] = {}
        """Deduplication: (queue, key) to (until, seq, id)."""
        self.lines: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        """The ready messages of each queue and target as (rank, place, seq), sorted."""
        self.groups: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """The messages of each queue's groups that are not done with, as (place, seq), sorted."""
        self.due: list[tuple[int, int]] = []
        """(due_at, seq) of every message on which time will act, sorted."""
        self.notes: dict[str, str] = {}
        self.lock = threading.Lock()
        self.news = threading.Condition()
        self.version = 0


class Edit:
    """Changes that can all be taken back, the last one first."""

    def __init__(self) -> None:
        self._inverses: list[Callable[[], object]] = []

    @property
    def has_changed(self) -> bool:
        return bool(self._inverses)

    def undo(self) -> None:
        while self._inverses:
            self._inverses.pop()()

    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        old = table.get(key, ABSENT)
        self._inverses.append(lambda: _set(table, key, old))
        _set(table, key, value)

    def remove(self, table: dict[Any, Any], key: Any) -> None:
        if key in table:
            self.put(table, key, ABSENT)

    def enter(self, line: list[Any], entry: tuple[int, ...]) -> None:
        """Into a sorted list, at its place."""
        insort(line, entry)
        self._inverses.append(lambda: _take_out(line, entry))

    def leave(self, line: list[Any], entry: tuple[int, ...]) -> None:
        _take_out(line, entry)
        self._inverses.append(lambda: insort(line, entry))


def _set(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is ABSENT:
        table.pop(key, None)
    else:
        table[key] = value


def _take_out(line: list[Any], entry: tuple[int, ...]) -> None:
    at = bisect_left(line, entry)
    if line[at : at + 1] != [entry]:
        raise LookupError(f"{entry} is not in line")
    del line[at]
