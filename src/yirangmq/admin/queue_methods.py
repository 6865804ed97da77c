"""Named methods of queues: search, dead letters, dispatch, processors, policies, bulk; and their registration.

Short methods run inside the next commit. Paged methods run on a thread of ``admin.registry.Pages`` and use the
committer for one page at a time. Search and dead letters are paged. ``fill`` adds the methods that every server has to
the call table. This module is loaded at the first call of a named method; a server that only publishes and delivers
messages never loads it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from yirangmq.admin import queue_reads
from yirangmq.admin.queue_lists import in_slices, page, read_query
from yirangmq.admin.queue_reads import gather
from yirangmq.admin.registry import Done, Given, Pages, Values, reading
from yirangmq.broker import policies
from yirangmq.broker.admission import dry_run
from yirangmq.broker.dead_letters import KINDS, DeadLetters, Moved, search_page
from yirangmq.broker.group_commit import Desk
from yirangmq.broker.operations import Verbs
from yirangmq.broker.queries import check_state
from yirangmq.broker.queues import Queues
from yirangmq.broker.settle import MOST_PER_CALL
from yirangmq.core import validation
from yirangmq.core.consumer_registry import Roster
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.filter import Node, names_state, parse
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Clock, Transaction
from yirangmq.core.states import State
from yirangmq.core.validation import kind
from yirangmq.format.delivery import Look
from yirangmq.format.envelope import NewMessage, build
from yirangmq.format.json_codec import dumps, loads
from yirangmq.wire.messages import pack

if TYPE_CHECKING:
    from yirangmq.admin.registry import Calls, Site


# -- search ------------------------------------------------------------------------------------------------------------

DEFAULT_LIMIT = 100
MOST_MOVED = 10**9


def search(queues: Queues, given: Given) -> dict[str, Any]:
    """Return a page of messages of one state that match a filter, and the cursor of the next page."""

    def read(values: Values) -> tuple[str, State, Node, int, str]:
        state = check_state(values.text("state", "ready"))
        return values.queue(), state, parse(values.text("filter")), values.limit(DEFAULT_LIMIT), values.text("cursor")

    queue, state, node, limit, cursor = reading(given, read)
    return pack(*gather(partial(_step, queues, queue, state, node), limit, cursor))


def _step(queues: Queues, queue: str, state: State, node: Node, count: int, cursor: str) -> tuple[str, list[Look]]:
    page = partial(search_page, queue=queue, state=state, limit=count, cursor=cursor, node=node, bodies=True)
    return queues.read(partial(page, ahead=queues.ahead_ms()))


# -- dead letters ---------------------------------------------------------------------------------------------------


def find(queues: Queues, given: Given) -> dict[str, Any]:
    """Return a page of dead letters and the cursor of the next page.

    The queue is named by its own name or by that of its dead-letter queue."""

    def read(values: Values) -> tuple[str, Node, str, int, str]:
        node = parse(values.text("filter"))
        return values.queue(), node, _kind(values), values.limit(DEFAULT_LIMIT), values.text("cursor")

    queue, node, kind, limit, cursor = reading(given, read)
    states = KINDS["all"] if names_state(node, State.PARKED) else KINDS[kind]
    places = [(source, state) for source in DeadLetters(queues).sources(queue) for state in states]
    return pack(*gather(partial(_walk, queues, places, node), limit, cursor))


def _walk(
    queues: Queues, places: list[tuple[str, State]], node: Node, count: int, cursor: str
) -> tuple[str, list[Look]]:
    """Read one step through the states of several queues. The cursor holds the queue, the state and the position."""
    if not places:
        return "", []
    at, inner = _where(places, cursor) if cursor else (0, "")
    inner, found = _step(queues, *places[at], node, count, inner)
    if not inner:
        at += 1
    return dumps([*places[at], inner]).decode() if at < len(places) else "", found


def _where(places: list[tuple[str, State]], cursor: str) -> tuple[int, str]:
    try:
        source, state, inner = loads(cursor.encode())
        return places.index((source, State(state))), str(inner)
    except (BadInput, ValueError, TypeError):
        raise BadInput("is not one that this call gave out, or its queue is gone", field="cursor") from None


def _kind(values: Values) -> str:
    return values.choice("state", "dead", tuple(KINDS))


def show(queues: Queues, given: Given) -> dict[str, Any]:
    queue, id = reading(given, lambda values: (values.queue(), values.id()))
    return pack([DeadLetters(queues).show(queue, id)])


def stats(queues: Queues, given: Given) -> dict[str, Any]:
    return DeadLetters(queues).stats(reading(given, lambda values: values.queue()))


def requeue(queues: Queues, given: Given) -> dict[str, Any]:
    (queue, filter, ids), limit, state, dry_run = reading(
        given, lambda values: (_which(values), _most(values), _kind(values), _dry(values))
    )
    return _moved(DeadLetters(queues).requeue(queue, filter, ids, state=state, limit=limit, dry_run=dry_run))


def quarantine(queues: Queues, given: Given) -> dict[str, Any]:
    (queue, filter, ids), limit, dry_run = reading(given, lambda values: (_which(values), _most(values), _dry(values)))
    return _moved(DeadLetters(queues).quarantine(queue, filter, ids, limit=limit, dry_run=dry_run))


def purge(queues: Queues, given: Given) -> dict[str, Any]:
    (queue, filter, ids), limit, state, dry_run = reading(
        given, lambda values: (_which(values), _most(values), _kind(values), _dry(values))
    )
    return _moved(DeadLetters(queues).purge(queue, filter, ids, state=state, limit=limit, dry_run=dry_run))


def _which(values: Values) -> tuple[str, str, list[str] | None]:
    return values.queue(), values.text("filter"), values.some_ids()


def _most(values: Values) -> int | None:
    """Return the maximum number of messages, the first that arrived, or None for all."""
    limit = values.take("limit", None)
    return None if limit is None else validation.check_count(limit, "limit", most=MOST_MOVED)


def _dry(values: Values) -> bool:
    return values.flag("dry_run", False)


def _moved(moved: Moved) -> dict[str, Any]:
    """Return the number of messages and the ids of the first few."""
    return {"count": moved.count, "ids": moved.ids}


# -- dispatch ----------------------------------------------------------------------------------------------------------

MOST_SHOWN = 100


def look(clock: Clock, verbs: Verbs, transaction: Transaction, given: Given) -> dict[str, Any]:
    return policies.look(verbs, transaction, reading(given, lambda values: values.queue()), clock.now_ms())


def change(clock: Clock, verbs: Verbs, transaction: Transaction, given: Given) -> dict[str, Any]:
    queue, members = reading(given, lambda values: (values.queue(), values.take("members", None)))
    if not isinstance(members, Mapping):
        raise BadInput(f"must be an object, not {kind(members)}", field="members")
    return policies.change(verbs, transaction, queue, members, clock.now_ms())


def register(clock: Clock, verbs: Verbs, transaction: Transaction, given: Given) -> bool:
    return policies.register(verbs, transaction, *reading(given, _one), clock.now_ms())


def deregister(clock: Clock, verbs: Verbs, transaction: Transaction, given: Given) -> bool:
    return policies.deregister(verbs, transaction, *reading(given, _one), clock.now_ms())


def _one(values: Values) -> tuple[str, str]:
    return values.queue(), validation.check_consumer(values.take("consumer", None), "consumer")


def deliveries(verbs: Verbs, desk: Desk, given: Given, done: Done) -> None:
    """Return deliveries from memory, without a commit."""
    limit, wanted = reading(given, _wanted)
    done(policies.deliveries(verbs, wanted, limit), None)


def _wanted(values: Values) -> tuple[int, dict[str, Any]]:
    id, consumer = values.take("id", None), values.take("consumer", None)
    wanted = {
        "queue": values.some_queue(),
        "id": None if id is None else validation.check_id(id, "id"),
        "consumer": None if consumer is None else validation.check_consumer(consumer, "consumer"),
        "status": values.take("status", None),
    }
    return values.limit(MOST_SHOWN), wanted


METHODS: dict[str, Callable[[Clock, Verbs, Transaction, Given], Any]] = {
    "dispatch": look,
    "dispatch_set": change,
    "dispatch_register": register,
    "dispatch_deregister": deregister,
}


# -- processors --------------------------------------------------------------------------------------------------------

MEMBERS = frozenset({"payload", "id", "type", "version", "attributes", "content_type"})
"""Members of a message in an admission check."""


def listed(verbs: Verbs, transaction: Transaction, given: Given) -> list[dict[str, Any]]:
    """Return every queue that has a processor, or the requested queue only."""
    queue = reading(given, lambda values: values.some_queue())
    return dry_run.listed(transaction, verbs, queue)


def put(verbs: Verbs, transaction: Transaction, given: Given) -> dict[str, Any] | None:
    """Validate a processor and set it; the rest of the policy is unchanged. A null document removes it."""
    queue, document = reading(given, lambda values: (values.queue(), values.take("document", None)))
    return dry_run.put(transaction, verbs, queue, document)


def put_paged(queues: Queues, given: Given) -> dict[str, Any] | None:
    """Like ``put``, as a paged method. Schemas are compiled on its thread, so that the commit finds them cached."""
    queue, document = reading(given, lambda values: (values.queue(), values.take("document", None)))
    queues.check_policy(queue, {} if document is None else {"processor": document})
    return queues.run(lambda transaction: dry_run.put(transaction, queues.verbs, queue, document))


def check(desk: Desk, given: Given, done: Done) -> None:
    """Report for each message whether it would be stored. A message is bytes, or an object with a payload of bytes."""
    queue, messages = reading(given, lambda values: (values.queue(), values.take("messages", None)))
    if not isinstance(messages, list) or not 0 < len(messages) <= MOST_PER_CALL:
        raise BadInput(f"must be an array of 1 to {MOST_PER_CALL}", field="messages")
    now = desk.verbs.now_ms()
    try_out(desk, queue, [_envelope(queue, one, number, now) for number, one in enumerate(messages, 1)], done)


def try_out(desk: Desk, queue: str, envelopes: Sequence[Envelope], done: Done) -> None:
    """Run an admission check without storing the messages. The committer serves other jobs while hooks run."""
    prepared = desk.read(partial(dry_run.tried, gate=desk.verbs.gate, queue=queue, envelopes=envelopes))
    if prepared.needed is None:
        done(prepared.report({}), None)
        return
    desk.look_at(
        prepared.needed,
        lambda verdicts, error: done(None, error) if error is not None else done(prepared.report(verdicts), None),
    )


def _envelope(queue: str, given: object, number: int, now: int) -> Envelope:
    members = {"payload": given} if isinstance(given, bytes) else given
    if not isinstance(members, dict) or not isinstance(members.get("payload"), bytes):
        raise BadInput("must be bytes, or objects with a payload of bytes", field="messages")
    if not members.keys() <= MEMBERS:
        raise BadInput(f"known members: {', '.join(sorted(MEMBERS))}", field="messages")
    return build(queue, NewMessage(**members), f"tried-{number}", now)


# -- policies and whole queues -----------------------------------------------------------------------------------------

PER_PAGE = 500


def put_policy(verbs: Verbs, transaction: Transaction, given: Given) -> dict[str, Any]:
    """Validate a policy document and set it for new messages. A null document restores the defaults."""
    full = queue_reads.check_policy(verbs, transaction, given)
    policies.put(transaction, verbs, given["queue"], given.get("document"))
    return full


def check_policy(queues: Queues, given: Given) -> dict[str, Any]:
    """Return the full form of a policy document, without setting it. Its schemas are compiled on this thread."""
    queue, document = reading(given, lambda values: (values.queue(), values.take("document", None)))
    return queues.check_policy(queue, document)


def set_policy(queues: Queues, given: Given) -> dict[str, Any]:
    """Validate a policy document and set it, page by page for stored messages. A null document restores the
    defaults."""
    queue, document = reading(given, lambda values: (values.queue(), values.take("document", None)))
    return queues.set_policy(queue, document)


def pause(verbs: Verbs, transaction: Transaction, given: Given, *, paused: bool) -> bool:
    """Pause or resume delivery of a queue. Return False if it was in that state already."""
    queue = reading(given, lambda values: values.queue())
    return policies.pause(transaction, verbs, queue, paused=paused)


def drop(verbs: Verbs, transaction: Transaction, given: Given) -> list[list[str] | None]:
    """Drop messages. Return for each null, or [code, text] of its error."""
    queue, ids = reading(given, lambda values: (values.queue(), values.ids()))
    errors = verbs.drop(transaction, queue, ids)
    return [None if error is None else [error.code, str(error)] for error in errors]


def configure(queues: Queues, given: Given) -> None:
    """Change one member of a queue's policy document. A null value removes it."""
    queue, namespace, member, value = reading(
        given,
        lambda values: (
            values.queue(), values.text("namespace"), values.text("member"), values.take("value", None),
        ),
    )  # fmt: skip
    queues.wholesale.configure(queue, namespace, member, value)


def renew_failed(queues: Queues, given: Given) -> int:
    """Redrive all dead letters of this queue, in the order of arrival. Return their number."""
    return queues.wholesale.renew_failed(reading(given, lambda values: values.queue()))


def abandon_failed(queues: Queues, given: Given) -> int:
    """Drop all dead letters of this queue. Return their number."""
    return queues.wholesale.abandon_failed(reading(given, lambda values: values.queue()))


def clear(queues: Queues, given: Given) -> None:
    """Delete all messages of a queue, its counters and its remembered ids. Its policy is kept."""
    queues.wholesale.clear(reading(given, lambda values: values.queue()))


def sweep(queues: Queues, given: Given) -> int:
    """Run all due expiries: delays, leases, time-to-live. Return the number of changed messages."""
    reading(given, lambda values: None)
    return queues.sweep()


def delete_queue(queues: Queues, given: Given) -> int:
    """Delete a queue with all its messages and its policy. Return the number of deleted messages.

    The messages are deleted page by page before the queue itself, so that no commit is long."""
    queue = reading(given, lambda values: values.queue())
    gone = 0
    for state in State:
        while count := queues.run(partial(_forget, queue=queue, state=state)):
            gone += count
    queues.delete_queue(queue)
    return gone


def _forget(transaction: Transaction, queue: str, state: State) -> int:
    messages = transaction.scan(queue, state, PER_PAGE).messages
    transaction.forget(messages)
    return len(messages)


# -- registration ------------------------------------------------------------------------------------------------------


def fill(calls: "Calls", verbs: Verbs, pages: Pages | None, site: "Site | None") -> None:
    calls.add("queues", queue_reads.queues)
    calls.add("counts", queue_reads.counts)
    calls.add("peek", partial(queue_reads.peek, verbs.clock))
    calls.add("show", partial(queue_reads.show, verbs.clock))
    calls.add("by_id", partial(queue_reads.by_id, verbs.clock))
    calls.add("next_due", queue_reads.next_due)
    calls.add("policy", queue_reads.policy)
    calls.add("policy_text", queue_reads.policy_text)
    calls.add("check_policy", partial(queue_reads.check_policy, verbs))
    calls.add("set_policy", partial(put_policy, verbs))
    calls.add("queue_pause", partial(pause, verbs, paused=True))
    calls.add("queue_resume", partial(pause, verbs, paused=False))
    calls.add("drop", partial(drop, verbs))
    calls.add_entry("deliveries", partial(deliveries, verbs))
    calls.add("processors", partial(listed, verbs))
    calls.add("processor_set", partial(put, verbs))
    calls.add_entry("processor_check", check)
    if pages is not None:
        _add_long_ones(calls, pages)
    if site is not None:
        _add_site(calls, verbs, site)


def _add_long_ones(calls: "Calls", pages: Pages) -> None:
    calls.add_paged(pages, "check_policy", check_policy)
    calls.add_paged(pages, "set_policy", set_policy)
    calls.add_paged(pages, "processor_set", put_paged)
    calls.add_paged(pages, "queue_configure", configure)
    calls.add_paged(pages, "queue_clear", clear)
    calls.add_paged(pages, "failed_renew", renew_failed)
    calls.add_paged(pages, "failed_abandon", abandon_failed)
    calls.add_paged(pages, "sweep", sweep)
    calls.add_paged(pages, "delete_queue", delete_queue)
    calls.add_paged(pages, "search", search)
    calls.add_paged(pages, "dlq_find", find)
    calls.add_paged(pages, "dlq_show", show)
    calls.add_paged(pages, "dlq_stats", stats)
    calls.add_paged(pages, "dlq_requeue", requeue)
    calls.add_paged(pages, "dlq_quarantine", quarantine)
    calls.add_paged(pages, "dlq_purge", purge)


def _add_site(calls: "Calls", verbs: Verbs, site: "Site") -> None:
    def status(desk: Desk, given: Given, done: Done) -> None:
        def told(found: Any, error: QueueError | None) -> None:
            done(None, error) if error is not None else done({**site.facts(), **found}, None)

        in_slices(desk, page(site.clock, reading(given, read_query), site.rates), told)

    def connections(transaction: Transaction, given: Given) -> list[dict[str, Any]]:
        reading(given, lambda values: None)
        return site.connections()

    def health(desk: Desk, given: Given, done: Done) -> None:
        """Return the health report, also while the store does not answer."""
        reading(given, lambda values: None)
        site.health.ask(desk, lambda found: done(found, None))

    def programs(desk: Desk, given: Given, done: Done) -> None:
        """Return an empty report. A server with a list of programs replaces this entry."""
        reading(given, lambda values: None)
        done({"programs": [], "refused": {"counts": [], "latest": []}}, None)

    calls.add_entry("programs", programs)
    calls.add_entry("status", status)
    for name, method in METHODS.items():
        calls.add(name, partial(method, site.clock, verbs))
    calls.add("due", partial(queue_reads.due, site.clock))
    calls.add("schedules", partial(queue_reads.schedules, site.clock))
    calls.add("connections", connections)
    calls.add_entry("health", health)
    _add_roster(calls, site.roster)


def _add_roster(calls: "Calls", roster: Roster) -> None:
    """Add the methods of running consumers. The registry is in memory, so they answer without a commit."""

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
