"""Named methods of queues: search, dead letters, dispatch, processors, policies, bulk; and their registration.

Short methods run inside the next commit. Paged methods run on a thread of ``admin.registry.PagedMethods`` and use the
committer for one page at a time. Search and dead letters are paged. ``register_methods`` adds the methods that every
server has to the call table. This module is loaded at the first call of a named method; a server that only publishes
and delivers messages never loads it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from yirangmq.admin import queue_reads
from yirangmq.admin.queue_lists import count_consumers, page, read_query, run_slices
from yirangmq.admin.queue_reads import read_page
from yirangmq.admin.registry import Done, Given, MethodArguments, PagedMethods, read_arguments
from yirangmq.broker import policies
from yirangmq.broker.admission import dry_run
from yirangmq.broker.dead_letters import KINDS
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.message_moves import BACKLOG, search_page
from yirangmq.broker.operations import QueueOperations
from yirangmq.broker.queries import check_state
from yirangmq.broker.queues import Queues
from yirangmq.broker.settle import MAX_PER_CALL
from yirangmq.core import validation
from yirangmq.core.consumer_registry import ConsumerRegistry
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.filter import FilterNode, names_state, parse
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Clock, MoveResult, Transaction
from yirangmq.core.states import State
from yirangmq.core.validation import kind
from yirangmq.format.delivery import MessageView
from yirangmq.format.envelope import NewMessage, build
from yirangmq.format.json_codec import dumps, loads
from yirangmq.wire.messages import pack

if TYPE_CHECKING:
    from yirangmq.admin.registry import MethodRegistry, ServerSources


# -- search ------------------------------------------------------------------------------------------------------------

DEFAULT_LIMIT = 100


def search(queues: Queues, given: Given) -> dict[str, Any]:
    """Return a page of messages of one state that match a filter, and the cursor of the next page."""

    def read(values: MethodArguments) -> tuple[str, State, FilterNode, int, str]:
        state = check_state(values.text("state", "ready"))
        node = parse(values.text("filter"), queues.wall_ms())
        return values.queue(), state, node, values.limit(DEFAULT_LIMIT), values.text("cursor")

    queue, state, node, limit, cursor = read_arguments(given, read)
    return pack(*read_page(partial(_step, queues, queue, state, node), limit, cursor))


def _step(
    queues: Queues, queue: str, state: State, node: FilterNode, count: int, cursor: str
) -> tuple[str, list[MessageView]]:
    page = partial(search_page, queue=queue, state=state, limit=count, cursor=cursor, node=node, bodies=True)
    return queues.read(partial(page, ahead=queues.ahead_ms()))


# -- dead letters ---------------------------------------------------------------------------------------------------


def find(queues: Queues, given: Given) -> dict[str, Any]:
    """Return a page of dead letters and the cursor of the next page.

    The queue is named by its own name or by that of its dead-letter queue."""

    def read(values: MethodArguments) -> tuple[str, FilterNode, str, int, str]:
        node = parse(values.text("filter"), queues.wall_ms())
        return values.queue(), node, _kind(values), values.limit(DEFAULT_LIMIT), values.text("cursor")

    queue, node, kind, limit, cursor = read_arguments(given, read)
    states = KINDS["all"] if names_state(node, State.PARKED) else KINDS[kind]
    places = [(source, state) for source in queues.dead_letters.sources(queue) for state in states]
    return pack(*read_page(partial(_walk, queues, places, node), limit, cursor))


def _walk(
    queues: Queues, places: list[tuple[str, State]], node: FilterNode, count: int, cursor: str
) -> tuple[str, list[MessageView]]:
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
        raise BadInput("is not a cursor of this call, or its queue was deleted", field="cursor") from None


def _kind(values: MethodArguments) -> str:
    return values.choice("state", "dead", tuple(KINDS))


def sources(queues: Queues, given: Given) -> list[str]:
    """Return the source queues of the name of a queue or of a dead-letter queue."""
    return queues.dead_letters.sources(read_arguments(given, lambda values: values.queue()))


def show(queues: Queues, given: Given) -> dict[str, Any]:
    queue, id = read_arguments(given, lambda values: (values.queue(), values.id()))
    return pack([queues.dead_letters.show(queue, id)])


def stats(queues: Queues, given: Given) -> dict[str, Any]:
    """Count the dead letters of a queue, or of all queues if none is named."""
    return queues.dead_letters.stats(read_arguments(given, lambda values: values.optional_queue()))


def requeue(queues: Queues, given: Given) -> dict[str, Any]:
    chosen, state = read_arguments(given, lambda values: (_chosen(values), _kind(values)))
    return _moved(queues.dead_letters.redrive(**chosen, state=state))


def quarantine(queues: Queues, given: Given) -> dict[str, Any]:
    return _moved(queues.dead_letters.quarantine(**read_arguments(given, _chosen)))


def purge(queues: Queues, given: Given) -> dict[str, Any]:
    chosen, state = read_arguments(given, lambda values: (_chosen(values), _kind(values)))
    return _moved(queues.dead_letters.purge(**chosen, state=state))


def purge_backlog(queues: Queues, given: Given) -> dict[str, Any]:
    """Drop waiting messages of a queue."""
    chosen, state = read_arguments(
        given, lambda values: (_selected(values), values.choice("state", "backlog", tuple(BACKLOG)))
    )
    return _moved(queues.purge(**chosen, state=state))


def _chosen(values: MethodArguments) -> dict[str, Any]:
    """Read the arguments that all moves of dead letters have."""
    return {**_selected(values), "ids": values.optional_ids()}


def _selected(values: MethodArguments) -> dict[str, Any]:
    return {
        "queue": values.queue(),
        "filter": values.text("filter"),
        "all": values.flag("all", False),
        "limit": values.take("limit", None),
        "dry_run": values.flag("dry_run", False),
    }


def _moved(moved: MoveResult) -> dict[str, Any]:
    """Return the number of messages and the ids of the first few."""
    return {"count": moved.count, "ids": moved.ids}


# -- dispatch ----------------------------------------------------------------------------------------------------------

MAX_SHOWN = 100


def describe_dispatch(
    clock: Clock, operations: QueueOperations, transaction: Transaction, given: Given
) -> dict[str, Any]:
    return policies.describe_dispatch(
        operations, transaction, read_arguments(given, lambda values: values.queue()), clock.now_ms()
    )


def change(clock: Clock, operations: QueueOperations, transaction: Transaction, given: Given) -> dict[str, Any]:
    queue, members = read_arguments(given, lambda values: (values.queue(), values.take("members", None)))
    if not isinstance(members, Mapping):
        raise BadInput(f"must be an object, not {kind(members)}", field="members")
    return policies.change(operations, transaction, queue, members, clock.now_ms())


def register(clock: Clock, operations: QueueOperations, transaction: Transaction, given: Given) -> bool:
    return policies.register(operations, transaction, *read_arguments(given, _one), clock.now_ms())


def deregister(clock: Clock, operations: QueueOperations, transaction: Transaction, given: Given) -> bool:
    return policies.deregister(operations, transaction, *read_arguments(given, _one), clock.now_ms())


def _one(values: MethodArguments) -> tuple[str, str]:
    return values.queue(), validation.check_consumer(values.take("consumer", None), "consumer")


def deliveries(operations: QueueOperations, committer: GroupCommitter, given: Given, done: Done) -> None:
    """Return deliveries from memory, without a commit."""
    limit, wanted = read_arguments(given, _wanted)
    done(policies.deliveries(operations, wanted, limit), None)


def _wanted(values: MethodArguments) -> tuple[int, dict[str, Any]]:
    id, consumer = values.take("id", None), values.take("consumer", None)
    wanted = {
        "queue": values.optional_queue(),
        "id": None if id is None else validation.check_id(id, "id"),
        "consumer": None if consumer is None else validation.check_consumer(consumer, "consumer"),
        "status": values.take("status", None),
    }
    return values.limit(MAX_SHOWN), wanted


METHODS: dict[str, Callable[[Clock, QueueOperations, Transaction, Given], Any]] = {
    "dispatch": describe_dispatch,
    "dispatch_set": change,
    "dispatch_register": register,
    "dispatch_deregister": deregister,
}


# -- processors --------------------------------------------------------------------------------------------------------

MEMBERS = frozenset({"payload", "id", "type", "version", "attributes", "content_type"})
"""Members of a message in an admission check."""


def processor_rows(operations: QueueOperations, transaction: Transaction, given: Given) -> list[dict[str, Any]]:
    """Return every queue that has a processor, or the requested queue only."""
    queue = read_arguments(given, lambda values: values.optional_queue())
    return dry_run.processor_rows(transaction, operations, queue)


def put(operations: QueueOperations, transaction: Transaction, given: Given) -> dict[str, Any] | None:
    """Validate a processor and set it; the rest of the policy is unchanged. A null document removes it."""
    queue, document = read_arguments(given, lambda values: (values.queue(), values.take("document", None)))
    return dry_run.put(transaction, operations, queue, document)


def put_paged(queues: Queues, given: Given) -> dict[str, Any] | None:
    """Like ``put``, as a paged method. Schemas are compiled on its thread, so that the commit finds them cached."""
    queue, document = read_arguments(given, lambda values: (values.queue(), values.take("document", None)))
    queues.check_policy(queue, {} if document is None else {"processor": document})
    return queues.run(lambda transaction: dry_run.put(transaction, queues.operations, queue, document))


def check(committer: GroupCommitter, given: Given, done: Done) -> None:
    """Report for each message whether it would be stored. A message is bytes, or an object with a payload of bytes."""
    queue, messages = read_arguments(given, lambda values: (values.queue(), values.take("messages", None)))
    if not isinstance(messages, list) or not 0 < len(messages) <= MAX_PER_CALL:
        raise BadInput(f"must be an array of 1 to {MAX_PER_CALL}", field="messages")
    now = committer.operations.now_ms()
    check_admission(
        committer, queue, [_envelope(queue, one, number, now) for number, one in enumerate(messages, 1)], done
    )


def check_admission(committer: GroupCommitter, queue: str, envelopes: Sequence[Envelope], done: Done) -> None:
    """Run an admission check without storing the messages. The committer serves other jobs while hooks run."""
    prepared = committer.read(
        partial(dry_run.prepare, admission=committer.operations.admission, queue=queue, envelopes=envelopes)
    )
    if prepared.needed is None:
        done(prepared.report({}), None)
        return
    committer.dry_run(
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


def put_policy(operations: QueueOperations, transaction: Transaction, given: Given) -> dict[str, Any]:
    """Validate a policy document and set it for new messages. A null document restores the defaults."""
    full = queue_reads.check_policy(operations, transaction, given)
    policies.put(transaction, operations, given["queue"], given.get("document"))
    return full


def check_policy(queues: Queues, given: Given) -> dict[str, Any]:
    """Return the full form of a policy document, without setting it. Its schemas are compiled on this thread."""
    queue, document = read_arguments(given, lambda values: (values.queue(), values.take("document", None)))
    return queues.check_policy(queue, document)


def set_policy(queues: Queues, given: Given) -> dict[str, Any]:
    """Validate a policy document and set it, page by page for stored messages. A null document restores the
    defaults."""
    queue, document = read_arguments(given, lambda values: (values.queue(), values.take("document", None)))
    return queues.set_policy(queue, document)


def pause(operations: QueueOperations, transaction: Transaction, given: Given, *, paused: bool) -> bool:
    """Pause or resume delivery of a queue. Return False if it was in that state already."""
    queue = read_arguments(given, lambda values: values.queue())
    return policies.pause(transaction, operations, queue, paused=paused)


def drop(operations: QueueOperations, transaction: Transaction, given: Given) -> list[list[str] | None]:
    """Drop messages. Return for each null, or [code, text] of its error."""
    queue, ids = read_arguments(given, lambda values: (values.queue(), values.ids()))
    errors = operations.drop(transaction, queue, ids)
    return [None if error is None else [error.code, str(error)] for error in errors]


def configure(queues: Queues, given: Given) -> None:
    """Change one member of a queue's policy document. A null value removes it."""
    queue, namespace, member, value = read_arguments(
        given,
        lambda values: (
            values.queue(), values.text("namespace"), values.text("member"), values.take("value", None),
        ),
    )  # fmt: skip
    queues.bulk.configure(queue, namespace, member, value)


def redrive_failed(queues: Queues, given: Given) -> int:
    """Redrive all dead letters of this queue, in the order of arrival. Return their number."""
    return queues.bulk.redrive_failed(read_arguments(given, lambda values: values.queue()))


def drop_failed(queues: Queues, given: Given) -> int:
    """Drop all dead letters of this queue. Return their number."""
    return queues.bulk.drop_failed(read_arguments(given, lambda values: values.queue()))


def clear(queues: Queues, given: Given) -> None:
    """Delete all messages of a queue, its counters and its remembered ids. Its policy is kept."""
    queues.bulk.clear(read_arguments(given, lambda values: values.queue()))


def sweep(queues: Queues, given: Given) -> int:
    """Run all due expiries: delays, leases, time-to-live. Return the number of changed messages."""
    read_arguments(given, lambda values: None)
    return queues.sweep()


def delete_queue(queues: Queues, given: Given) -> int:
    """Delete a queue with all its messages and its policy. Return the number of deleted messages.

    The messages are deleted page by page before the queue itself, so that no commit is long."""
    queue = read_arguments(given, lambda values: values.queue())
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


def register_methods(
    methods: "MethodRegistry", operations: QueueOperations, pages: PagedMethods | None, site: "ServerSources | None"
) -> None:
    methods.add("queues", queue_reads.queues)
    methods.add("counts", queue_reads.counts)
    methods.add("peek", partial(queue_reads.peek, operations.clock))
    methods.add("show", partial(queue_reads.show, operations.clock))
    methods.add("by_id", partial(queue_reads.by_id, operations.clock))
    methods.add("next_due", queue_reads.next_due)
    methods.add("policy", queue_reads.policy)
    methods.add("policy_text", queue_reads.policy_text)
    methods.add("check_policy", partial(queue_reads.check_policy, operations))
    methods.add("set_policy", partial(put_policy, operations))
    methods.add("queue_pause", partial(pause, operations, paused=True))
    methods.add("queue_resume", partial(pause, operations, paused=False))
    methods.add("drop", partial(drop, operations))
    methods.add_entry("deliveries", partial(deliveries, operations))
    methods.add("processors", partial(processor_rows, operations))
    methods.add("processor_set", partial(put, operations))
    methods.add_entry("processor_check", check)
    if pages is not None:
        _add_paged_methods(methods, pages)
    if site is not None:
        _add_server_methods(methods, operations, site)


def _add_paged_methods(methods: "MethodRegistry", pages: PagedMethods) -> None:
    methods.add_paged(pages, "check_policy", check_policy)
    methods.add_paged(pages, "set_policy", set_policy)
    methods.add_paged(pages, "processor_set", put_paged)
    methods.add_paged(pages, "queue_configure", configure)
    methods.add_paged(pages, "queue_clear", clear)
    methods.add_paged(pages, "queue_purge", purge_backlog)
    methods.add_paged(pages, "failed_renew", redrive_failed)
    methods.add_paged(pages, "failed_abandon", drop_failed)
    methods.add_paged(pages, "sweep", sweep)
    methods.add_paged(pages, "delete_queue", delete_queue)
    methods.add_paged(pages, "search", search)
    methods.add_paged(pages, "dlq_find", find)
    methods.add_paged(pages, "dlq_sources", sources)
    methods.add_paged(pages, "dlq_show", show)
    methods.add_paged(pages, "dlq_stats", stats)
    methods.add_paged(pages, "dlq_requeue", requeue)
    methods.add_paged(pages, "dlq_quarantine", quarantine)
    methods.add_paged(pages, "dlq_purge", purge)


def _add_server_methods(methods: "MethodRegistry", operations: QueueOperations, site: "ServerSources") -> None:
    def status(committer: GroupCommitter, given: Given, done: Done) -> None:
        def on_done(found: Any, error: QueueError | None) -> None:
            done(None, error) if error is not None else done({**site.facts(), **found}, None)

        query = read_arguments(given, read_query)
        consumers = count_consumers(site.registry, committer.waiting_consumers)
        run_slices(committer, page(site.clock, query, site.rates, consumers), on_done)

    def connections(transaction: Transaction, given: Given) -> list[dict[str, Any]]:
        read_arguments(given, lambda values: None)
        return site.connections()

    def health(committer: GroupCommitter, given: Given, done: Done) -> None:
        """Return the health report, also while the store does not answer."""
        read_arguments(given, lambda values: None)
        site.health.request(committer, lambda found: done(found, None))

    def programs(committer: GroupCommitter, given: Given, done: Done) -> None:
        """Return an empty report. A server with a list of programs replaces this entry."""
        read_arguments(given, lambda values: None)
        done({"programs": [], "refused": {"counts": [], "latest": []}}, None)

    methods.add_entry("programs", programs)
    methods.add_entry("status", status)
    for name, method in METHODS.items():
        methods.add(name, partial(method, site.clock, operations))
    methods.add("due", partial(queue_reads.due, site.clock))
    methods.add("schedules", partial(queue_reads.schedules, site.clock))
    methods.add("connections", connections)
    methods.add_entry("health", health)
    _add_consumer_methods(methods, site.registry)


def _add_consumer_methods(methods: "MethodRegistry", registry: ConsumerRegistry) -> None:
    """Add the methods of running consumers. The registry is in memory, so they answer without a commit."""

    def report(committer: GroupCommitter, given: Given, done: Done) -> None:
        done(registry.report(given), None)

    def entries(committer: GroupCommitter, given: Given, done: Done) -> None:
        read_arguments(given, lambda values: None)
        done(registry.entries(), None)

    def wish(committer: GroupCommitter, given: Given, done: Done) -> None:
        id, wish = read_arguments(given, lambda values: (values.take("id", None), values.text("wish")))
        done(registry.wish(validation.check_consumer(id, "id"), wish), None)

    methods.add_entry("consumer_beat", report)
    methods.add_entry("consumer_list", entries)
    methods.add_entry("consumer_wish", wish)
