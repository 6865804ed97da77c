"""Dead-letter queue operations (count, redrive, quarantine, purge), and paged search of messages by filter.

A dead letter is a message in state ``dead`` of its source queue; ``dlq.queue`` of that queue's policy is a second name
for the same messages. Every operation here accepts either name.

An operation first lists the matching messages (8 bytes each), then moves them page by page, one commit per page. Each
page checks state and filter again. A search reads envelopes and failures only if the filter or the result needs
them."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from yirangmq.broker.queries import shown
from yirangmq.broker.queues import Queues
from yirangmq.broker.settle import MAX_PER_CALL
from yirangmq.core import transitions, validation
from yirangmq.core.errors import BadInput, BadPolicy, NotFound, WrongState
from yirangmq.core.filter import FilterNode, Lookup, fields_of, matches, names_state, parse
from yirangmq.core.message import RANK_LAST, Envelope, Message, MessageFailure
from yirangmq.core.policy import DLQ_SUFFIX, MAX_DLQ_NAME_CHARS
from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageView
from yirangmq.format.envelope import header_of, iso, payload_value

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


# -- dead letters ------------------------------------------------------------------------------------------------------

MAX_PER_COMMIT = 500
"""Upper bound of messages moved per commit: a large redrive shares the committer with other callers."""
SAMPLE = 10
"""Number of message ids in a result."""
KINDS = {"dead": (State.DEAD,), "parked": (State.PARKED,), "all": (State.DEAD, State.PARKED)}
"""States by the word that a caller passes. Parked messages are found only by ``parked``, ``all``, or the filter
``state=parked``."""


@dataclass(frozen=True, slots=True)
class MoveResult:
    """Result of a move: the number of messages, and the ids of the first ``SAMPLE``."""

    count: int
    ids: list[str]


class DeadLetterMove(NamedTuple):
    """A move of dead letters to the state ``goal``.

    A message named by id that is in ``goal`` already is skipped, so that a repeated call succeeds."""

    goal: State
    decide: Callable[[Transaction, Sequence[Message], int], list[Message]]


class DeadLetterSelection(NamedTuple):
    """Selection of dead letters, by filter and state, or by id in any state.

    ``limit`` bounds the number of messages; the first to arrive are taken."""

    queue: str
    filter: str
    ids: Sequence[str] | None
    state: str
    limit: int | None = None


class DeadLetters:
    """Operations on dead letters. A move runs in pages of one commit each, so that other commits run in between."""

    def __init__(self, queues: Queues, progress: Callable[[int, int], None] | None = None) -> None:
        """``progress(moved, total)`` is called after each page of a move."""
        self._queues = queues
        self._progress = progress

    # -- reading --------------------------------------------------------------------------------------------------

    def sources(self, queue: str) -> list[str]:
        """Return the source queues of this name: the queues with this ``dlq.queue``, and the queue of that name."""
        validation.check_queue(queue)

        def work(transaction: Transaction) -> list[str]:
            """Find candidates without reading every queue: a queue without a policy uses the default name."""
            likely = {queue, queue.removesuffix(DLQ_SUFFIX)} - {""}
            known = {*transaction.queues_with_policy(), *(name for name in likely if transaction.has_queue(name))}
            if len(queue) >= MAX_DLQ_NAME_CHARS:  # the default name is shortened if the queue name is too long
                known |= {*transaction.queues(prefix=queue.removesuffix(DLQ_SUFFIX))}
            return [name for name in sorted(known) if queue in (name, _shown_as(transaction, name))]

        return self._queues.read(work)

    def shown_by(self, queue: str) -> list[str]:
        """Return the source queues if this name is only an alias for dead letters; an empty list if it is a queue."""
        sources = self.sources(queue)
        return [] if queue in sources else sources

    def find(
        self, queue: str, filter: str = "", state: str = "dead", limit: int | None = None, *, bodies: bool = True
    ) -> Iterator[MessageView]:
        """Yield the matching dead letters, oldest first within each source queue and state."""
        node = parse(filter)
        states = _states(state, node)
        left = limit
        for source in self.sources(queue):
            for wanted in states:
                for view in search(self._queues, source, wanted, node, bodies=bodies):
                    if left is not None:
                        if left <= 0:
                            return
                        left -= 1
                    yield view

    def show(self, queue: str, id: str) -> MessageView:
        """Return one dead letter, by either name of its queue."""
        for source in self.sources(queue):
            try:
                view = self._queues.show(source, id)
            except NotFound:
                continue
            if view.message.state not in KINDS["all"]:
                raise WrongState(f"message {id!r} of queue {source!r} is {view.message.state}, not a dead letter")
            return view
        raise NotFound(f"no dead letter {id!r} under {queue!r}")

    def stats(self, queue: str) -> dict[str, Any]:
        """Count dead letters by reason, and by the UTC day of their death (``byDay``); with oldest and newest time."""
        reasons: Counter[str] = Counter()
        days: dict[str, Counter[str]] = {}
        oldest = newest = None
        for view in self.find(queue, bodies=False):
            reason, moment = view.message.reason, view.message.changed_at
            reasons[reason] += 1
            days.setdefault(iso(moment)[:10], Counter())[reason] += 1
            oldest = moment if oldest is None else min(oldest, moment)
            newest = moment if newest is None else max(newest, moment)
        sources = self.sources(queue)
        return {
            "queue": queue,
            "sources": sources,
            "total": reasons.total(),
            "parked": sum(self._queues.counts(source).parked for source in sources),
            "byReason": dict(reasons.most_common()),
            "byDay": [
                {"day": day, "total": counted.total(), "byReason": dict(counted.most_common())}
                for day, counted in sorted(days.items())
            ],
            "oldest": None if oldest is None else iso(oldest),
            "newest": None if newest is None else iso(newest),
        }

    # -- moves ----------------------------------------------------------------------------------------------------

    def requeue(
        self,
        queue: str,
        filter: str = "",
        ids: Sequence[str] | None = None,
        *,
        state: str = "dead",
        limit: int | None = None,
        dry_run: bool = False,
    ) -> MoveResult:
        """Redrive: make dead letters ready again, in order of arrival, with their attempts reset."""
        return self._move(
            DeadLetterMove(State.READY, _redriven), DeadLetterSelection(queue, filter, ids, state, limit), dry_run
        )

    def quarantine(
        self,
        queue: str,
        filter: str = "",
        ids: Sequence[str] | None = None,
        *,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> MoveResult:
        """Park dead letters for inspection. Parked messages do not expire and move only on request by state or id."""
        return self._move(
            DeadLetterMove(State.PARKED, _parked), DeadLetterSelection(queue, filter, ids, "dead", limit), dry_run
        )

    def purge(
        self,
        queue: str,
        filter: str = "",
        ids: Sequence[str] | None = None,
        *,
        state: str = "dead",
        limit: int | None = None,
        dry_run: bool = False,
    ) -> MoveResult:
        """Drop dead letters permanently."""
        return self._move(
            DeadLetterMove(State.DROPPED, _dropped), DeadLetterSelection(queue, filter, ids, state, limit), dry_run
        )

    def _move(self, move: DeadLetterMove, choice: DeadLetterSelection, dry_run: bool) -> MoveResult:
        """Select the messages, then move them page by page. Each page checks state and filter again."""
        node = parse(choice.filter)
        states = _states(choice.state, node) if choice.ids is None else KINDS["all"]
        states = tuple(state for state in states if state is not move.goal)
        chosen = self._chosen(choice, node, states, move.goal)[: choice.limit]
        if dry_run:
            first = self._queues.read(lambda transaction: transaction.by_seq(chosen[:SAMPLE].tolist()))
            return MoveResult(len(chosen), [message.id for message in first if message is not None])
        count = 0
        moved: list[str] = []
        for begin in range(0, len(chosen), MAX_PER_COMMIT):
            page = chosen[begin : begin + MAX_PER_COMMIT].tolist()
            done = self._queues.run(partial(self._apply, seqs=page, node=node, states=states, move=move))
            count += len(done)
            moved.extend(done[: SAMPLE - len(moved)])
            if self._progress is not None:
                self._progress(begin + len(page), len(chosen))
        return MoveResult(count, moved)

    def _chosen(
        self, choice: DeadLetterSelection, node: FilterNode, states: Sequence[State], goal: State
    ) -> "array[int]":
        """Return the sequence numbers of the selected messages in order of arrival, 8 bytes each."""
        sources = self.sources(choice.queue)
        if choice.ids is not None:
            return array("q", sorted(message.seq for message in self._named(choice, sources, node, states, goal)))
        chosen: array[int] = array("q")
        for source in sources:
            for state in states:
                chosen.extend(view.message.seq for view in search(self._queues, source, state, node, bodies=False))
        return array("q", sorted(chosen))

    def _named(
        self, choice: DeadLetterSelection, sources: list[str], node: FilterNode, states: Sequence[State], goal: State
    ) -> list[Message]:
        """Return the messages named by id. Raise if one is unknown or not a dead letter; then nothing is moved."""
        ids = choice.ids or []
        validation.check_count(len(ids), "ids", most=MAX_PER_CALL)
        wanted = list(dict.fromkeys(validation.check_id(id) for id in ids))

        def work(transaction: Transaction) -> list[Message]:
            columns = [transaction.by_id(source, wanted) for source in sources]
            found: list[Message] = []
            for id, *row in zip(wanted, *columns, strict=True):
                known = [message for message in row if message is not None]
                if not known:
                    raise NotFound(f"no message {id!r} under {choice.queue!r}", field="id")
                movable = [message for message in known if message.state in states]
                if not movable and all(message.state is not goal for message in known):
                    raise WrongState(f"message {id!r} is {known[0].state}, not a dead letter", field="id")
                found.extend(movable)
            return [view.message for view in matching(transaction, found, node, self._queues.ahead_ms())]

        return self._queues.read(work)

    def _apply(
        self,
        transaction: Transaction,
        *,
        seqs: list[int],
        node: FilterNode,
        states: Sequence[State],
        move: DeadLetterMove,
    ) -> list[str]:
        found = [message for message in transaction.by_seq(seqs) if message is not None and message.state in states]
        found = [view.message for view in matching(transaction, found, node, self._queues.ahead_ms())]
        afters = move.decide(transaction, found, self._queues.now_ms())
        changes = [Change(before, after) for before, after in zip(found, afters, strict=True)]
        self._queues.operations.swap(transaction, changes, self._queues.now_ms())
        self._queues.event_buffer.moved(move.goal, found)
        return [message.id for message in found]


def _states(state: str, node: FilterNode) -> tuple[State, ...]:
    if state not in KINDS:
        raise BadInput(f"{state!r} is not one of {', '.join(KINDS)}", field="state")
    return KINDS["all"] if names_state(node, State.PARKED) else KINDS[state]


def _redriven(transaction: Transaction, messages: Sequence[Message], now: int) -> list[Message]:
    place = transaction.places(len(messages)) if messages else 0
    return [transitions.redrive(message, now, place + offset) for offset, message in enumerate(messages)]


def _parked(transaction: Transaction, messages: Sequence[Message], now: int) -> list[Message]:
    return [transitions.park(message, now) for message in messages]


def _dropped(transaction: Transaction, messages: Sequence[Message], now: int) -> list[Message]:
    return [transitions.drop(message, transaction.policy(message.queue), now) for message in messages]


def _shown_as(transaction: Transaction, queue: str) -> str:
    """Return the name of a queue's dead letters, "" if its policy cannot be parsed (edited by hand)."""
    try:
        return transaction.policy(queue).dlq.queue
    except BadPolicy:
        return ""
