"""Search of messages by filter, and moves of the messages found to another state, page by page.

A move first lists the matching messages (8 bytes each), then moves them in pages of one commit each, so that other
commits run in between. Each page checks state and filter again. A search reads envelopes and failures only if the
filter or the result needs them. ``broker.dead_letters`` moves dead letters, ``purge`` drops the backlog of a queue."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from yirangmq.broker.queries import shown
from yirangmq.broker.queues import Queues
from yirangmq.broker.settle import MAX_PER_CALL
from yirangmq.core import transitions, validation
from yirangmq.core.errors import BadInput, NotFound, WrongState
from yirangmq.core.filter import FilterNode, Lookup, fields_of, matches, parse
from yirangmq.core.message import RANK_LAST, Envelope, Message, MessageFailure
from yirangmq.core.ports import Change, MoveResult, Transaction
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageView
from yirangmq.format.envelope import header_of, payload_value

# -- search by filter --------------------------------------------------------------------------------------------------

CARDS_PER_PAGE = 500
BODIES_PER_PAGE = 50
"""Messages per page with and without payloads. A payload may have 1 MiB or more, a ``FeedMessage`` has about 100 bytes;
two page sizes keep memory flat."""
FROM_ENVELOPE = frozenset({"type", "version", "traceId", "publishedAt", "attributes", "payload"})
FROM_FAILURE = frozenset({"reasonMessage", "failedAt", "consumerId"})


def search(queues: Queues, queue: str, state: State, node: FilterNode, *, bodies: bool = True) -> Iterator[MessageView]:
    """Yield every match of one state, in the order of ``Transaction.scan``.

    Without ``bodies`` a ``MessageView`` has its envelope and its failure only if the filter needed them."""
    heavy = bodies or bool(fields_of(node) & FROM_ENVELOPE)
    limit = BODIES_PER_PAGE if heavy else CARDS_PER_PAGE
    cursor = ""
    while True:
        ahead = queues.ahead_ms()
        page = partial(search_page, queue=queue, state=state, limit=limit, cursor=cursor, node=node, bodies=bodies)
        cursor, found = queues.read(partial(page, ahead=ahead))
        yield from found
        if not cursor:
            return


def matching(transaction: Transaction, messages: Sequence[Message], node: FilterNode, ahead: int) -> list[MessageView]:
    """Return the matching messages, with the parts that the filter needed.

    Times in the filter are wall-clock times; the wall clock is ``ahead`` ms ahead of store time. Times in the result
    are store times."""
    wanted = fields_of(node)
    nothing: list[None] = [None] * len(messages)
    envelopes = transaction.envelopes(messages) if wanted & FROM_ENVELOPE else nothing
    failures = transaction.failures(messages) if wanted & FROM_FAILURE else nothing
    parts = zip(messages, envelopes, failures, strict=True)
    found = [MessageView(message, sent, failure, transaction.policy(message.queue)) for message, sent, failure in parts]
    as_shown = [shown(view, ahead) for view in found] if ahead else found
    lookups = (lookup_of(one.message, one.envelope, one.failure) for one in as_shown)
    return [view for view, lookup in zip(found, lookups, strict=True) if matches(node, lookup)]


def lookup_of(message: Message, envelope: Envelope | None, failure: MessageFailure | None) -> Lookup:
    """Return the field lookup of the filter language for one message. Values are as in its dead-letter record."""
    header: dict[str, Any] = {}

    def from_header(name: str) -> object:
        if envelope is not None and not header:
            header.update(header_of(envelope))
        return header.get(name)

    def lookup(field: str) -> object:
        match field:
            case "reasonCode":
                return message.reason or None
            case "reasonMessage":
                return failure.reason_message if failure else None
            case "failedAt":
                return failure.failed_at if failure else None
            case "consumerId":
                return (failure.consumer if failure else message.consumer) or None
            case "attempt":
                return message.attempt
            case "messageId":
                return message.id
            case "sourceQueue":
                return message.queue
            case "state":
                return message.state.value
            case "priority":
                return None if message.rank == RANK_LAST else message.rank
            case "publishedAt":
                return envelope.published_at if envelope else None
            case "payload":
                return payload_value(envelope) if envelope and envelope.is_json else None
            case _:
                return from_header(field)

    return lookup


def search_page(
    transaction: Transaction,
    *,
    queue: str,
    state: State,
    limit: int,
    cursor: str,
    node: FilterNode,
    bodies: bool,
    ahead: int,
) -> tuple[str, list[MessageView]]:
    """Return one page of ``search``: the cursor of the next page, and the matches."""
    page = transaction.scan(queue, state, limit, cursor)
    found = matching(transaction, page.messages, node, ahead)
    if bodies:
        messages = [view.message for view in found]
        parts = zip(found, transaction.envelopes(messages), transaction.failures(messages), strict=True)
        found = [MessageView(view.message, envelope, failure, view.rules) for view, envelope, failure in parts]
    return page.cursor, [shown(view, ahead) for view in found] if ahead else found


# -- moves -------------------------------------------------------------------------------------------------------------

MAX_PER_COMMIT = 500
"""Upper bound of messages moved per commit: a large move shares the committer with other callers."""
MAX_MOVED = 10**9
"""Upper bound of a ``limit``."""
SAMPLE = 10
"""Number of message ids in a result."""


class StateMove(NamedTuple):
    """A move of messages to the state ``goal``.

    A message named by id that is in ``goal`` already is skipped, so that a repeated call succeeds."""

    goal: State
    decide: Callable[[Transaction, Sequence[Message], int], list[Message]]


class MessageSelection(NamedTuple):
    """Selection of messages of some queues: by filter and states, by id, or all in these states.

    ``name`` is what the caller named, for errors. ``limit`` bounds the number of messages; the first to arrive are
    taken."""

    name: str
    sources: Sequence[str]
    states: Sequence[State]
    node: FilterNode
    ids: Sequence[str] | None = None
    limit: int | None = None


class MessageMover:
    """Moves messages in pages of ``MAX_PER_COMMIT``. Calls block."""

    def __init__(self, queues: Queues, progress: Callable[[int, int], None] | None = None) -> None:
        """``progress(moved, total)`` is called after each page."""
        self._queues = queues
        self._progress = progress

    def move(self, move: StateMove, choice: MessageSelection, *, dry_run: bool) -> MoveResult:
        """Select the messages, then move them page by page. Each page checks state and filter again."""
        if choice.limit is not None:
            validation.check_count(choice.limit, "limit", most=MAX_MOVED)
        choice = choice._replace(states=tuple(state for state in choice.states if state is not move.goal))
        chosen = self._chosen(choice, move.goal)[: choice.limit]
        if dry_run:
            first = self._queues.read(lambda transaction: transaction.by_seq(chosen[:SAMPLE].tolist()))
            return MoveResult(len(chosen), [message.id for message in first if message is not None])
        count = 0
        moved: list[str] = []
        for begin in range(0, len(chosen), MAX_PER_COMMIT):
            page = chosen[begin : begin + MAX_PER_COMMIT].tolist()
            done = self._queues.run(partial(self._apply, seqs=page, choice=choice, move=move))
            count += len(done)
            moved.extend(done[: SAMPLE - len(moved)])
            if self._progress is not None:
                self._progress(begin + len(page), len(chosen))
        return MoveResult(count, moved)

    def _chosen(self, choice: MessageSelection, goal: State) -> "array[int]":
        """Return the sequence numbers of the selected messages in order of arrival, 8 bytes each."""
        if choice.ids is not None:
            return array("q", sorted(message.seq for message in self._named(choice, choice.ids, goal)))
        chosen: array[int] = array("q")
        for source in choice.sources:
            for state in choice.states:
                found = search(self._queues, source, state, choice.node, bodies=False)
                chosen.extend(view.message.seq for view in found)
        return array("q", (seq for seq, _ in groupby(sorted(chosen))))  # once, also if it changed its state meanwhile

    def _named(self, choice: MessageSelection, ids: Sequence[str], goal: State) -> list[Message]:
        """Return the messages named by id. Raise if one is unknown or not a dead letter; then nothing is moved."""
        validation.check_count(len(ids), "ids", most=MAX_PER_CALL)
        wanted = list(dict.fromkeys(validation.check_id(id) for id in ids))

        def work(transaction: Transaction) -> list[Message]:
            columns = [transaction.by_id(source, wanted) for source in choice.sources]
            found: list[Message] = []
            for id, *row in zip(wanted, *columns, strict=True):
                known = [message for message in row if message is not None]
                if not known:
                    raise NotFound(f"no message {id!r} under {choice.name!r}", field="id")
                movable = [message for message in known if message.state in choice.states]
                if not movable and all(message.state is not goal for message in known):
                    raise WrongState(f"message {id!r} is {known[0].state}, not a dead letter", field="id")
                found.extend(movable)
            return [view.message for view in matching(transaction, found, choice.node, self._queues.ahead_ms())]

        return self._queues.read(work)

    def _apply(
        self, transaction: Transaction, *, seqs: Sequence[int], choice: MessageSelection, move: StateMove
    ) -> list[str]:
        rows = transaction.by_seq(seqs)
        found = [message for message in rows if message is not None and message.state in choice.states]
        found = [view.message for view in matching(transaction, found, choice.node, self._queues.ahead_ms())]
        afters = move.decide(transaction, found, self._queues.now_ms())
        changes = [Change(before, after) for before, after in zip(found, afters, strict=True)]
        self._queues.operations.swap(transaction, changes, self._queues.now_ms())
        self._queues.event_buffer.moved(move.goal, found)
        return [message.id for message in found]


def _redriven(transaction: Transaction, messages: Sequence[Message], now: int) -> list[Message]:
    place = transaction.places(len(messages)) if messages else 0
    return [transitions.redrive(message, now, place + offset) for offset, message in enumerate(messages)]


def _parked(transaction: Transaction, messages: Sequence[Message], now: int) -> list[Message]:
    return [transitions.park(message, now) for message in messages]


def _dropped(transaction: Transaction, messages: Sequence[Message], now: int) -> list[Message]:
    return [transitions.drop(message, transaction.policy(message.queue), now) for message in messages]


REDRIVE = StateMove(State.READY, _redriven)
PARK = StateMove(State.PARKED, _parked)
DROP = StateMove(State.DROPPED, _dropped)


# -- backlog -----------------------------------------------------------------------------------------------------------

BACKLOG = {
    "backlog": (State.READY, State.DELAYED, State.HELD),
    "ready": (State.READY,),
    "delayed": (State.DELAYED,),
    "held": (State.HELD,),
}
"""States by the word that a caller passes. A held message waits behind another one of its group."""


def purge(
    queues: Queues,
    queue: str,
    filter: str,
    *,
    all: bool,
    state: str,
    limit: int | None,
    dry_run: bool,
    progress: Callable[[int, int], None] | None = None,
) -> MoveResult:
    """Drop waiting messages of a queue. Messages that are leased, dead, parked or done stay, and the policy as well."""
    validation.check_queue(queue)
    validation.check_selection(filter, None, all=all)
    if state not in BACKLOG:
        raise BadInput(f"{state!r} is not one of {', '.join(BACKLOG)}", field="state")
    node = parse(filter, queues.wall_ms())
    if not queues.read(lambda transaction: transaction.has_queue(queue)):
        raise NotFound(f"there is no queue {queue!r}", field="queue")
    choice = MessageSelection(queue, [queue], BACKLOG[state], node, limit=limit)
    return MessageMover(queues, progress).move(DROP, choice, dry_run=dry_run)
