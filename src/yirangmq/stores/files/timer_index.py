"""Timer index of the files store: time buckets with the folders in which messages are due.

``Calendar`` is the folder ``.index/due``: one text file per bucket (``Stretch``), named ``<begin>-<seconds>``, with one
folder per line. A bucket is 1 s wide for the next 2 minutes, 1 minute for the next 3 hours, and 1 hour beyond. When a
wide bucket begins, its entries move to narrow ones. A line is written before the message file it refers to, so no line
is ever missing. A line may be stale, so it is compared with the names in the folder. Like the rest of the index, the
buckets are never synced.

``Timed`` reads the buckets in one transaction: the due messages, and the next due time. It lists each bucket once."""

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from yirangmq.core.message import Message
from yirangmq.fsio.permissions import access_in, open_file
from yirangmq.stores.files.names import Card, due_in

# -- time buckets on disk ----------------------------------------------------------------------------------------------

NEAR_MS = 120_000
FAR_MS = 10_800_000
SECOND, MINUTE, HOUR = 1, 60, 3600


class Stretch(NamedTuple):
    """A time bucket: ``begin`` in seconds since 1970, and its width in seconds."""

    begin: int
    seconds: int

    @property
    def begin_ms(self) -> int:
        return self.begin * 1000

    @property
    def end_ms(self) -> int:
        return (self.begin + self.seconds) * 1000

    def holds(self, moment: int) -> bool:
        return self.begin_ms <= moment < self.end_ms


class Note(NamedTuple):
    """An entry of the timer index: a message in this folder is due at this time.

    ``folder``: queue, and the path below it. ``due_at``: in ms."""

    due_at: int
    folder: str


def stretch_of(due_at: int, now: int) -> Stretch:
    ahead = due_at - now
    seconds = SECOND if ahead < NEAR_MS else MINUTE if ahead < FAR_MS else HOUR
    return Stretch(due_at // 1000 // seconds * seconds, seconds)


class Calendar:
    """Timer index on disk: the bucket files in ``.index/due``."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._access = access_in(folder)

    def stretches(self) -> list[Stretch]:
        """Return all buckets, sorted by begin, then by width."""
        return sorted(Stretch(*map(int, name.split("-"))) for name in os.listdir(self._folder))

    def folders(self, stretch: Stretch) -> list[str]:
        """Return the distinct folders of a bucket, in the order they were added."""
        try:
            with open(self._path(stretch)) as file:
                return [folder for folder in dict.fromkeys(file.read().splitlines()) if folder]
        except FileNotFoundError:
            return []

    def note(self, notes: Iterable[Note], now: int) -> None:
        lines: dict[Stretch, dict[str, None]] = {}
        for due_at, folder in notes:
            lines.setdefault(stretch_of(due_at, now), {})[folder] = None
        self.write(lines)

    def write(self, lines: Mapping[Stretch, Iterable[str]]) -> None:
        for stretch, folders in lines.items():
            fd = open_file(self._path(stretch), os.O_WRONLY | os.O_APPEND, self._access)
            try:
                _append(fd, "".join(f"\n{folder}" for folder in folders).encode())
            finally:
                os.close(fd)

    def strike(self, stretch: Stretch) -> None:
        """Remove a bucket in which no message is due any more."""
        try:
            os.unlink(self._path(stretch))
        except FileNotFoundError:
            pass

    def clear(self) -> None:
        for name in os.listdir(self._folder):
            os.unlink(f"{self._folder}/{name}")

    def _path(self, stretch: Stretch) -> str:
        return f"{self._folder}/{stretch.begin}-{stretch.seconds}"


def _append(fd: int, lines: bytes) -> None:
    """Append lines; each begins with its line break, so that a line truncated by a full disk does not join the next."""
    if os.write(fd, lines) < len(lines):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# -- due messages of a transaction -------------------------------------------------------------------------------------


class Due(NamedTuple):
    """A message file found by the due time in its name, in ms."""

    due_at: int
    folder: str
    name: str


class Timed:
    """Due messages as one transaction sees them. ``names`` lists the files of a folder, ``card_at`` reads one."""

    def __init__(
        self, calendar: Calendar, names: Callable[[str], list[str]], card_at: Callable[[str, str], Card | None]
    ) -> None:
        self._calendar = calendar
        self._names = names
        self._card_at = card_at
        self._stretches: list[Stretch] | None = None
        self._due: dict[Stretch, list[Due]] = {}

    def due(self, now: int, limit: int, holds: Callable[[Message], bool], *, tidy: bool) -> list[Card]:
        """Return at most ``limit`` due messages for which ``holds`` returns True, the earliest due time first.

        ``tidy``: also split wide buckets that have started and remove empty ones. Needs the exclusive lock."""
        if tidy:
            self._come_nearer(now)
        found: dict[int, Card] = {}
        for stretch in self._all_stretches():
            if stretch.begin_ms > now or self._have_enough(found, limit, stretch):
                break
            for due_at, folder, name in self._opened(stretch):
                if due_at > now:
                    break
                card = self._card_at(folder, name)
                if card is not None and holds(card.message):
                    found[card.message.seq] = card
            if tidy:
                self._tidy(stretch)
        return sorted(found.values(), key=_due_order)[:limit]

    def _have_enough(self, found: dict[int, Card], limit: int, stretch: Stretch) -> bool:
        if len(found) < limit:
            return False
        return sorted(card.message.due_at for card in found.values())[limit - 1] < stretch.begin_ms

    def next_due(self, holds: Callable[[Message], bool]) -> int | None:
        best: int | None = None
        for stretch in self._all_stretches():
            if best is not None and stretch.begin_ms > best:
                break
            for due_at, folder, name in self._opened(stretch):
                card = self._card_at(folder, name)
                if card is not None and holds(card.message):
                    best = due_at if best is None else min(best, due_at)
                    break
        return best

    def _all_stretches(self) -> list[Stretch]:
        if self._stretches is None:
            self._stretches = self._calendar.stretches()
        return list(self._stretches)

    def _opened(self, stretch: Stretch) -> list[Due]:
        """Return the message files due in a bucket, sorted by due time. Their names in the listed folders decide."""
        found = self._due.get(stretch)
        if found is None:
            found = []
            for folder in self._calendar.folders(stretch):
                for name in self._names(folder):
                    due_at = due_in(name)
                    if stretch.holds(due_at):
                        found.append(Due(due_at, folder, name))
            found.sort()
            self._due[stretch] = found
        return found

    def _come_nearer(self, now: int) -> None:
        """Split each wide bucket that has started into narrow ones, one folder at a time."""
        for stretch in self._all_stretches():
            if stretch.begin_ms > now:
                return
            if stretch.seconds > 1:
                for folder in self._calendar.folders(stretch):
                    dues = {due_in(name) for name in self._names(folder)}
                    self._calendar.note([Note(due_at, folder) for due_at in dues if stretch.holds(due_at)], now)
                self._calendar.strike(stretch)
                self._stretches = None

    def _tidy(self, stretch: Stretch) -> None:
        """Remove a bucket if no message is due in it."""
        if not self._opened(stretch) and self._stretches is not None:
            self._calendar.strike(stretch)
            self._stretches.remove(stretch)


def _due_order(card: Card) -> tuple[int, int]:
    return card.message.due_at, card.message.seq
