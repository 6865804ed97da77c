"""Every verb that is not in the hot path, by name: what the operator's commands and the client library ask for.

One table for all doors. A method takes named values and returns plain values, and is of one of three kinds: inside the
next commit, paged (a thread of its own, one page of it at a time on the desk), or with a beginning of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

from yirangmq.broker.desk import Desk
from yirangmq.broker.verbs import Verbs
from yirangmq.core import names
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Clock, Transaction
from yirangmq.core.roster import Roster
from yirangmq.doors import dispatching, letters, looking, processing, steering
from yirangmq.doors.health import Health
from yirangmq.doors.paged import Done, Given, PagedMethod, Pages
from yirangmq.doors.values import reading

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
    rates: Callable[[], Mapping[str, Any]] = dict
    """By queue, as ``observe.metrics`` has them."""


class Calls:
    """The table. Parts of the server add their methods when it is put together."""

    def __init__(self, verbs: Verbs, pages: Pages | None = None, site: Site | None = None) -> None:
        self._entries: dict[str, Entry] = {}
        self._verbs = verbs
        self.add("queues", looking.queues)
        self.add("counts", looking.counts)
        self.add("peek", looking.peek)
        self.add("show", looking.show)
        self.add("by_id", looking.by_id)
        self.add("next_due", looking.next_due)
        self.add("policy", looking.policy)
        self.add("policy_text", looking.policy_text)
        self.add("check_policy", partial(looking.check_policy, verbs))
        self.add("set_policy", partial(steering.put_policy, verbs))
        self.add("queue_pause", partial(steering.pause, verbs, paused=True))
        self.add("queue_resume", partial(steering.pause, verbs, paused=False))
        self.add("drop", partial(steering.drop, verbs))
        self.add_entry("deliveries", partial(dispatching.deliveries, verbs))
        self.add("processors", partial(processing.listed, verbs))
        self.add("processor_set", partial(processing.put, verbs))
        self.add_entry("processor_check", processing.check)
        if pages is not None:
            self._add_long_ones(pages)
        if site is not None:
            self._add_site(site)

    def _add_long_ones(self, pages: Pages) -> None:
        self.add_paged(pages, "set_policy", steering.set_policy)
        self.add_paged(pages, "queue_configure", steering.configure)
        self.add_paged(pages, "queue_clear", steering.clear)
        self.add_paged(pages, "failed_renew", steering.renew_failed)
        self.add_paged(pages, "failed_abandon", steering.abandon_failed)
        self.add_paged(pages, "sweep", steering.sweep)
        self.add_paged(pages, "delete_queue", steering.delete_queue)
        self.add_paged(pages, "search", letters.search)
        self.add_paged(pages, "dlq_find", letters.find)
        self.add_paged(pages, "dlq_show", letters.show)
        self.add_paged(pages, "dlq_stats", letters.stats)
        self.add_paged(pages, "dlq_requeue", letters.requeue)
        self.add_paged(pages, "dlq_quarantine", letters.quarantine)
        self.add_paged(pages, "dlq_purge", letters.purge)

    def _add_site(self, site: Site) -> None:
        def status(transaction: Transaction, given: Given) -> dict[str, Any]:
            rates = site.rates()
            found = looking.rows(site.clock, transaction, given)
            for row in found["queues"]:
                row["rates"] = rates.get(row["queue"])
            return {**site.facts(), **found}

        def connections(transaction: Transaction, given: Given) -> list[dict[str, Any]]:
            reading(given, lambda values: None)
            return site.connections()

        def health(desk: Desk, given: Given, done: Done) -> None:
            """Answers also when the store does not."""
            reading(given, lambda values: None)
            desk.submit(site.health.signs, lambda signs, error: done(site.health.judged(signs, error), None))

        def programs(desk: Desk, given: Given, done: Done) -> None:
            """A server that has a list of them puts its own in this place."""
            reading(given, lambda values: None)
            done({"programs": [], "refused": {"counts": [], "latest": []}}, None)

        self.add_entry("programs", programs)
        self.add("status", status)
        for name, method in dispatching.METHODS.items():
            self.add(name, partial(method, site.clock, self._verbs))
        self.add("due", partial(looking.due, site.clock))
        self.add("schedules", partial(looking.schedules, site.clock))
        self.add("connections", connections)
        self.add_entry("health", health)
        self._add_roster(site.roster)

    def _add_roster(self, roster: Roster) -> None:
        """The consumers at work; of these nothing is stored, so there is no commit to wait for."""

        def beat(desk: Desk, given: Given, done: Done) -> None:
            done(roster.beat(given), None)

        def cards(desk: Desk, given: Given, done: Done) -> None:
            reading(given, lambda values: None)
            done(roster.cards(), None)

        def wish(desk: Desk, given: Given, done: Done) -> None:
            id, wish = reading(given, lambda values: (values.take("id", None), values.text("wish")))
            done(roster.wish(names.check_consumer(id, "id"), wish), None)

        self.add_entry("consumer_beat", beat)
        self.add_entry("consumer_list", cards)
        self.add_entry("consumer_wish", wish)

    def add(self, name: str, method: Method) -> None:
        """A method inside the next commit. One that raises one of our errors must have changed nothing."""

        def entry(desk: Desk, given: Given, done: Done) -> None:
            desk.submit(lambda transaction: method(transaction, given), done)

        self._entries[name] = entry

    def add_paged(self, pages: Pages, name: str, method: PagedMethod) -> None:
        self._entries[name] = lambda desk, given, done: pages.start(method, given, done)

    def add_entry(self, name: str, entry: Entry) -> None:
        """A method that begins in its own way and says ``done(value, error)`` once, on the desk's thread."""
        self._entries[name] = entry

    @property
    def names(self) -> list[str]:
        return sorted(self._entries)

    def has(self, name: str) -> bool:
        return name in self._entries

    def find(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None:
            near = get_close_matches(name[:60], self._entries, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self.names)}"
            raise BadInput(f"{name[:60]!r} is not a known method; {hint}", field="method")
        return entry
