"""The messages on which time acts, found by the calendar: those that are due, and when the next one is. As the view it
belongs to: one per transaction, and what was listed once is not listed again.

Knows: the calendar, names of files. Does not know: what time does to a message."""

from collections.abc import Callable
from typing import NamedTuple

from yirangmq.core.message import Message
from yirangmq.format.filenames import Card, due_in
from yirangmq.stores.files_due import Calendar, Note, Stretch


class Due(NamedTuple):
    due_at: int
    folder: str
    name: str


class Timed:
    """``names`` lists the files of a folder, ``card_at`` reads one of them."""

    def __init__(
        self, calendar: Calendar, names: Callable[[str], list[str]], card_at: Callable[[str, str], Card | None]
    ) -> None:
        self._calendar = calendar
        self._names = names
        self._card_at = card_at
        self._stretches: list[Stretch] | None = None
        self._due: dict[Stretch, list[Due]] = {}

    def due(self, now: int, limit: int, holds: Callable[[Message], bool], *, tidy: bool) -> list[Card]:
        """Those on which time acts, the longest overdue first, if that still ``holds``."""
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
        """What is due in this stretch, by its folders' names, in order."""
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
        """A long stretch that has begun is divided into short ones, a folder at a time."""
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
        """Strike a stretch in which nothing is due any more."""
        if not self._opened(stretch) and self._stretches is not None:
            self._calendar.strike(stretch)
            self._stretches.remove(stretch)


def _due_order(card: Card) -> tuple[int, int]:
    return card.message.due_at, card.message.seq
