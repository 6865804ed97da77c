"""The calls that every server answers, put into its table. Loaded when somebody first asks for one: a server that only
hands messages through has no need of them."""

from functools import partial
from typing import TYPE_CHECKING, Any

from yirangmq.broker.group_commit import Desk
from yirangmq.broker.operations import Verbs
from yirangmq.core import validation
from yirangmq.core.consumer_registry import Roster
from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Transaction
from yirangmq.doors import dispatching, letters, looking, processing, steering
from yirangmq.doors.paged import Done, Given, Pages
from yirangmq.doors.queue_lists import page, read_query
from yirangmq.doors.slices import in_slices
from yirangmq.doors.values import reading

if TYPE_CHECKING:
    from yirangmq.doors.calls import Calls, Site


def fill(calls: "Calls", verbs: Verbs, pages: Pages | None, site: "Site | None") -> None:
    calls.add("queues", looking.queues)
    calls.add("counts", looking.counts)
    calls.add("peek", partial(looking.peek, verbs.clock))
    calls.add("show", partial(looking.show, verbs.clock))
    calls.add("by_id", partial(looking.by_id, verbs.clock))
    calls.add("next_due", looking.next_due)
    calls.add("policy", looking.policy)
    calls.add("policy_text", looking.policy_text)
    calls.add("check_policy", partial(looking.check_policy, verbs))
    calls.add("set_policy", partial(steering.put_policy, verbs))
    calls.add("queue_pause", partial(steering.pause, verbs, paused=True))
    calls.add("queue_resume", partial(steering.pause, verbs, paused=False))
    calls.add("drop", partial(steering.drop, verbs))
    calls.add_entry("deliveries", partial(dispatching.deliveries, verbs))
    calls.add("processors", partial(processing.listed, verbs))
    calls.add("processor_set", partial(processing.put, verbs))
    calls.add_entry("processor_check", processing.check)
    if pages is not None:
        _add_long_ones(calls, pages)
    if site is not None:
        _add_site(calls, verbs, site)


def _add_long_ones(calls: "Calls", pages: Pages) -> None:
    calls.add_paged(pages, "check_policy", steering.check_policy)
    calls.add_paged(pages, "set_policy", steering.set_policy)
    calls.add_paged(pages, "processor_set", processing.put_paged)
    calls.add_paged(pages, "queue_configure", steering.configure)
    calls.add_paged(pages, "queue_clear", steering.clear)
    calls.add_paged(pages, "failed_renew", steering.renew_failed)
    calls.add_paged(pages, "failed_abandon", steering.abandon_failed)
    calls.add_paged(pages, "sweep", steering.sweep)
    calls.add_paged(pages, "delete_queue", steering.delete_queue)
    calls.add_paged(pages, "search", letters.search)
    calls.add_paged(pages, "dlq_find", letters.find)
    calls.add_paged(pages, "dlq_show", letters.show)
    calls.add_paged(pages, "dlq_stats", letters.stats)
    calls.add_paged(pages, "dlq_requeue", letters.requeue)
    calls.add_paged(pages, "dlq_quarantine", letters.quarantine)
    calls.add_paged(pages, "dlq_purge", letters.purge)


def _add_site(calls: "Calls", verbs: Verbs, site: "Site") -> None:
    def status(desk: Desk, given: Given, done: Done) -> None:
        def told(found: Any, error: QueueError | None) -> None:
            done(None, error) if error is not None else done({**site.facts(), **found}, None)

        in_slices(desk, page(site.clock, reading(given, read_query), site.rates), told)

    def connections(transaction: Transaction, given: Given) -> list[dict[str, Any]]:
        reading(given, lambda values: None)
        return site.connections()

    def health(desk: Desk, given: Given, done: Done) -> None:
        """Answers also when the store does not."""
        reading(given, lambda values: None)
        site.health.ask(desk, lambda found: done(found, None))

    def programs(desk: Desk, given: Given, done: Done) -> None:
        """A server that has a list of them puts its own in this place."""
        reading(given, lambda values: None)
        done({"programs": [], "refused": {"counts": [], "latest": []}}, None)

    calls.add_entry("programs", programs)
    calls.add_entry("status", status)
    for name, method in dispatching.METHODS.items():
        calls.add(name, partial(method, site.clock, verbs))
    calls.add("due", partial(looking.due, site.clock))
    calls.add("schedules", partial(looking.schedules, site.clock))
    calls.add("connections", connections)
    calls.add_entry("health", health)
    _add_roster(calls, site.roster)


def _add_roster(calls: "Calls", roster: Roster) -> None:
    """The consumers at work; of these nothing is stored, so there is no commit to wait for."""

    def beat(desk: Desk, given: Given, done: Done) -> None:
        done(roster.beat(given), None)

    def cards(desk: Desk, given: Given, done: Done) -> None:
        reading(given, lambda values: None)
        done(roster.cards(), None)

    def wish(desk: Desk, given: Given, done: Done) -> None:
        id, wish = reading(given, lambda values: (values.take("id", None), values.text("wish")))
        done(roster.wish(validation.check_consumer(id, "id"), wish), None)

    calls.add_entry("consumer_beat", beat)
    calls.add_entry("consumer_list", cards)
    calls.add_entry("consumer_wish", wish)
