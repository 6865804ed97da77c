"""Dead-letter queue operations (count, redrive, quarantine, purge), and paged search of messages by filter.

A dead letter is a message in state ``dead`` of its source queue; ``dlq.queue`` of that queue's policy is a second name
for the same messages. Every operation here accepts either name.

An operation first lists the matching messages (8 bytes each), then moves them page by page, one commit per page. Each
page checks state and filter again. A search reads envelopes and failures only if the filter or the result needs
them."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from yirangmq.broker import dead_letter_sources
from yirangmq.broker.queries import shown
from yirangmq.broker.queues import Queues
from yirangmq.broker.settle import MAX_PER_CALL
from yirangmq.core import transitions, validation
from yirangmq.core.errors import BadInput, NotFound, WrongState
from yirangmq.core.filter import FilterNode, Lookup, MatchAll, fields_of, matches, names_state, parse
from yirangmq.core.message import RANK_LAST, Envelope, Message, MessageFailure
from yirangmq.core.ports import Change, MoveResult, Transaction
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
MAX_LETTERS = 10**9
"""Upper bound of a ``limit``."""
SAMPLE = 10
"""Number of message ids in a result."""
Names = list[str]
EVERYTHING = MatchAll()
KINDS = {"dead": (State.DEAD,), "parked": (State.PARKED,), "all": (State.DEAD, State.PARKED)}
"""States by the word that a caller passes. Parked messages are found only by ``parked``, ``all``, or the filter
``state=parked``."""


class DeadLetterMove(NamedTuple):
    """A move of dead letters to the state ``goal``.

    A message named by id that is in ``goal`` already is skipped, so that a repeated call succeeds."""

    goal: State
    decide: Callable[[Transaction, Sequence[Message], int], list[Message]]


class DeadLetterSelection(NamedTuple):
    """Selection of dead letters: by filter and state, by id in any state, or all of a state.

    ``limit`` bounds the number of messages; the first to arrive are taken."""

    queue: str
    filter: str
    ids: Sequence[str] | None
    all: bool
    state: str
    limit: int | None = None


class DeadLetters:
    """Operations on dead letters: ``Queues.dead_letters``. A client has the same (``client.admin_calls``).

    ``queue`` is the name of a source queue or of a dead-letter queue. A move runs in pages of one commit each, so that
    other commits run in between. Every move needs a filter, ids, or ``all=True``."""

    def __init__(self, queues: Queues, progress: Callable[[int, int], None] | None = None) -> None:
        """``progress(moved, total)`` is called after each page of a move."""
        if not isinstance(queues, Queues):
            raise BadInput("a client has them as its own attribute: client.dead_letters", field="queues")
        self._queues = queues
        self._progress = progress

    # -- reading --------------------------------------------------------------------------------------------------

    def sources(self, queue: str) -> Names:
        """Return the source queues of this name: the queues with this ``dlq.queue``, and the queue of that name."""
        validation.check_queue(queue)
        return self._queues.read(partial(dead_letter_sources.sources, name=queue))

    def list(
        self, queue: str, filter: str = "", *, state: str = "dead", limit: int | None = None
    ) -> Iterator[MessageView]:
        """Iterate over the matching dead letters, oldest first within each source queue and state.

        ``state`` is ``dead``, ``parked`` or ``all``."""
        node = parse(filter, self._queues.wall_ms())
        places = [(source, wanted) for source in self.sources(queue) for wanted in _states(state, node)]
        found = (view for place in places for view in search(self._queues, *place, node))
        return islice(
            found, limit if limit is None else validation.check_count(limit, "limit", least=0, most=MAX_LETTERS)
        )

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

    def stats(self, queue: str | None = None) -> dict[str, Any]:
        """Count the dead letters of a name, or of all queues (None): by queue, by reason, and by UTC day of death."""
        reasons: Counter[str] = Counter()
        days: dict[str, Counter[str]] = {}
        oldest = newest = None
        numbers = dict(self._numbers(queue))
        for source in [source for source, (dead, _) in numbers.items() if dead]:
            for view in search(self._queues, source, State.DEAD, EVERYTHING, bodies=False):
                reason, moment = view.message.reason, view.message.changed_at
                reasons[reason] += 1
                days.setdefault(iso(moment)[:10], Counter())[reason] += 1
                oldest = moment if oldest is None else min(oldest, moment)
                newest = moment if newest is None else max(newest, moment)
        return {
            "queue": queue,
            "sources": [*numbers],
            "total": reasons.total(),
            "parked": sum(parked for _, parked in numbers.values()),
            "byQueue": [{"queue": source, "total": dead, "parked": kept} for source, (dead, kept) in numbers.items()],
            "byReason": dict(reasons.most_common()),
            "byDay": [
                {"day": day, "total": counted.total(), "byReason": dict(counted.most_common())}
                for day, counted in sorted(days.items())
            ],
            "oldest": None if oldest is None else iso(oldest),
            "newest": None if newest is None else iso(newest),
        }

    def _numbers(self, queue: str | None) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield the dead and parked messages of each source queue. Of all queues, only those that have some."""
        if queue is not None:
            sources = self.sources(queue)
            yield from self._queues.read(partial(_numbers_of, queues=sources))
            return
        after, is_first = "", True
        while after or is_first:
            page = self._queues.read(partial(_numbers_page, after=after))
            yield from ((name, found) for name, found in page if any(found))
            after, is_first = page[-1][0] if len(page) == CARDS_PER_PAGE else "", False

    # -- moves ----------------------------------------------------------------------------------------------------

    def redrive(
        self,
        queue: str,
        filter: str = "",
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        state: str = "dead",
        limit: int | None = None,
        dry_run: bool = False,
    ) -> MoveResult:
        """Make dead letters ready again, in order of arrival, with their attempts reset."""
        choice = DeadLetterSelection(queue, filter, ids, all, state, limit)
        return self._move(DeadLetterMove(State.READY, _redriven), choice, dry_run)

    def quarantine(
        self,
        queue: str,
        filter: str = "",
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> MoveResult:
        """Park dead letters for inspection. Parked messages do not expire and move only on request by state or id."""
        choice = DeadLetterSelection(queue, filter, ids, all, "dead", limit)
        return self._move(DeadLetterMove(State.PARKED, _parked), choice, dry_run)

    def purge(
        self,
        queue: str,
        filter: str = "",
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        state: str = "dead",
        limit: int | None = None,
        dry_run: bool = False,
    ) -> MoveResult:
        """Drop dead letters permanently."""
        choice = DeadLetterSelection(queue, filter, ids, all, state, limit)
        return self._move(DeadLetterMove(State.DROPPED, _dropped), choice, dry_run)

    def _move(self, move: DeadLetterMove, choice: DeadLetterSelection, dry_run: bool) -> MoveResult:
        """Select the messages, then move them page by page. Each page checks state and filter again."""
        validation.check_selection(choice.filter, choice.ids, all=choice.all)
        if choice.limit is not None:
            validation.check_count(choice.limit, "limit", most=MAX_LETTERS)
        node = parse(choice.filter, self._queues.wall_ms())
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
        self, choice: DeadLetterSelection, sources: Names, node: FilterNode, states: Sequence[State], goal: State
    ) -> Sequence[Message]:
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
        seqs: Sequence[int],
        node: FilterNode,
        states: Sequence[State],
        move: DeadLetterMove,
    ) -> Names:
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


def _numbers_of(transaction: Transaction, queues: Sequence[str]) -> list[tuple[str, tuple[int, int]]]:
    counts = [(queue, transaction.counts(queue)) for queue in queues]
    return [(queue, (found.dead, found.parked)) for queue, found in counts]


def _numbers_page(transaction: Transaction, after: str) -> list[tuple[str, tuple[int, int]]]:
    return _numbers_of(transaction, transaction.queues(after, CARDS_PER_PAGE))
