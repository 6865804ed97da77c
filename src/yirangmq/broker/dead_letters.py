"""Dead-letter queue operations: list, show, count, redrive, quarantine, purge.

A dead letter is a message in state ``dead`` of its source queue; ``dlq.queue`` of that queue's policy is a second name
for the same messages. Every operation here accepts either name."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from yirangmq.broker import dead_letter_sources
from yirangmq.broker.message_moves import (
    CARDS_PER_PAGE,
    DROP,
    MAX_MOVED,
    PARK,
    REDRIVE,
    MessageMover,
    MessageSelection,
    StateMove,
    search,
)
from yirangmq.broker.queues import Queues
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotFound, WrongState
from yirangmq.core.filter import FilterNode, MatchAll, names_state, parse
from yirangmq.core.ports import MoveResult, Transaction
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageView
from yirangmq.format.envelope import iso

Names = list[str]
EVERYTHING = MatchAll()
KINDS = {"dead": (State.DEAD,), "parked": (State.PARKED,), "all": (State.DEAD, State.PARKED)}
"""States by the word that a caller passes. Parked messages are found only by ``parked``, ``all``, or the filter
``state=parked``."""


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
            raise BadInput("use the attribute client.dead_letters of the client", field="queues")
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
            found, limit if limit is None else validation.check_count(limit, "limit", least=0, most=MAX_MOVED)
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
        return self._move(REDRIVE, choice, dry_run)

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
        return self._move(PARK, choice, dry_run)

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
        return self._move(DROP, choice, dry_run)

    def _move(self, move: StateMove, choice: DeadLetterSelection, dry_run: bool) -> MoveResult:
        validation.check_selection(choice.filter, choice.ids, all=choice.all)
        node = parse(choice.filter, self._queues.wall_ms())
        states = _states(choice.state, node) if choice.ids is None else KINDS["all"]
        sources = self.sources(choice.queue)
        selection = MessageSelection(choice.queue, sources, states, node, choice.ids, choice.limit)
        return MessageMover(self._queues, self._progress).move(move, selection, dry_run=dry_run)


def _states(state: str, node: FilterNode) -> tuple[State, ...]:
    if state not in KINDS:
        raise BadInput(f"{state!r} is not one of {', '.join(KINDS)}", field="state")
    return KINDS["all"] if names_state(node, State.PARKED) else KINDS[state]


def _numbers_of(transaction: Transaction, queues: Sequence[str]) -> list[tuple[str, tuple[int, int]]]:
    counts = [(queue, transaction.counts(queue)) for queue in queues]
    return [(queue, (found.dead, found.parked)) for queue, found in counts]


def _numbers_page(transaction: Transaction, after: str) -> list[tuple[str, tuple[int, int]]]:
    return _numbers_of(transaction, transaction.queues(after, CARDS_PER_PAGE))
