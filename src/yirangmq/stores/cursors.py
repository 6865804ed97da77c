"""Durable subscribers' cursors, wherever they are kept: what a cursor may look like, and which place a URL means.
Knows: the places by name. Does not know: topics, subscribers."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from yirangmq.core.errors import BadInput
from yirangmq.core.topics import MOST_SEQUENCE, Cursor, Cursors, check_subscriber
from yirangmq.stores.cursors_file import FileCursors
from yirangmq.stores.cursors_sqlite import SqliteCursors

EPOCH = re.compile("[0-9a-f]{32}")
HALVES = re.compile("[\ud800-\udfff]")
"""Halves of characters, which cannot be written."""
MOST_FILTER = 16_384
SCHEMES = ("file", "sqlite")


def open_cursors(url: str) -> Cursors:
    """``file:PATH`` is one small file of JSON lines, ``sqlite:PATH`` a database."""
    scheme, _, place = url.partition(":")
    if scheme not in SCHEMES or not place:
        raise BadInput(f"{url!r} is no place for cursors; give file:PATH or sqlite:PATH", field="cursors")
    return Checked(FileCursors(Path(place)) if scheme == "file" else SqliteCursors(Path(place)))


class Place(Protocol):
    """What another implementation must offer; its input has been checked."""

    def get(self, name: str) -> Cursor | None: ...

    def all(self) -> Sequence[Cursor]: ...

    def put(self, cursors: Sequence[Cursor]) -> None: ...

    def drop(self, name: str) -> bool: ...

    def close(self) -> None: ...


class Checked:
    """Any place, with its input checked before it is touched."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def get(self, name: str) -> Cursor | None:
        return self._place.get(check_subscriber(name))

    def all(self) -> Sequence[Cursor]:
        return self._place.all()

    def put(self, cursors: Sequence[Cursor]) -> None:
        for cursor in cursors:
            check_cursor(cursor)
        if cursors:
            self._place.put(cursors)

    def drop(self, name: str) -> bool:
        return self._place.drop(check_subscriber(name))

    def floor(self) -> int | None:
        return floor_of(self._place.all())

    def close(self) -> None:
        self._place.close()


def check_cursor(cursor: Cursor) -> None:
    """``BadInput`` naming the field."""
    name, epoch, sequence, text, at_ns = cursor
    check_subscriber(name)
    _check_epoch(epoch)
    _check_number(sequence, "sequence")
    _check_filter(text)
    _check_number(at_ns, "atNs")


def _check_epoch(epoch: Any) -> None:
    if not isinstance(epoch, str) or not EPOCH.fullmatch(epoch):
        raise BadInput(f"must be 32 hexadecimal digits, not {epoch!r}", field="epoch")


def _check_number(value: Any, field: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_SEQUENCE:
        raise BadInput(f"must be a whole number from 0 to {MOST_SEQUENCE}, not {value!r}", field=field)


def _check_filter(text: Any) -> None:
    if not isinstance(text, str) or len(text) > MOST_FILTER or HALVES.search(text):
        raise BadInput(f"must be text of at most {MOST_FILTER} characters", field="filter")


def floor_of(cursors: Iterable[Cursor]) -> int | None:
    """The sequence the slowest of them needs next."""
    return min((cursor.sequence + 1 for cursor in cursors), default=None)
