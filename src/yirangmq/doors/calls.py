"""Every verb that is not in the hot path, by name: what the operator's commands and the client library ask for.

One table for all doors. A method takes named values and returns plain values, and is of one of three kinds: inside the
next commit, paged (a thread of its own, one page of it at a time on the desk), or with a beginning of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from yirangmq.broker.group_commit import Desk
from yirangmq.broker.operations import Verbs
from yirangmq.core.consumer_registry import Roster
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Clock, Transaction
from yirangmq.core.validation import nearest
from yirangmq.doors.health import Health
from yirangmq.doors.paged import Done, Given, PagedMethod, Pages

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
            from yirangmq.doors.usual_calls import fill

            usual, self._usual = self._usual, None
            added, self._entries = self._entries, {}
            fill(self, *usual)
            self._entries |= added
        return self._entries
