"""The part of a batch of work that moves messages from state to state.

Changes are sorted by kind, and all of a kind is one statement where that can be."""

from collections.abc import Sequence
from operator import itemgetter

from yirangmq.core.message import Message
from yirangmq.core.ports import Change
from yirangmq.core.states import WAITING, State
from yirangmq.format.json_codec import dumps
from yirangmq.stores import sqlite_rows as sql
from yirangmq.stores.sqlite_line import Span, members, spans
from yirangmq.stores.sqlite_reading import Reading
from yirangmq.stores.sqlite_runs import Batch
from yirangmq.stores.sqlite_sort import SHARED, Kind, by_fate, by_kind, by_rank, is_counted, is_start_alike, shared

_by_number = itemgetter(0)
MOST_CARDS = 20_000
"""Leased cards kept in memory, at some 300 bytes each; beyond it they are read back."""


LONG_MS = 60_000
"""A message delayed longer than this has its payload by itself."""


class Changing(Reading):
    # -- from state to state --------------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> None:
        """Places are left before they are taken, also across kinds."""
        self._known.due = None
        kinds = by_kind(changes)
        left = {kind: self._leave(kind, alike) for kind, alike in kinds.items()}
        for kind, alike in kinds.items():
            self._enter(kind, alike, left[kind])
            self._count_changes(*kind, len(alike))
            self._weigh(kind, alike)
            self._remember(kind[1], kind[3], alike)
            self._known.named.moved(kind[1], kind[3], alike)
            self._keep_apart(kind[3], alike)
        if any(after[15] for _, after, _ in changes):
            self._regroup(changes)

    def _leave(self, kind: Kind, changes: list[Change]) -> set[int]:
        """Out of line, out of batches; which of them were in runs and so have no row of their own."""
        if kind[1] is State.READY:
            self._leave_line(self._made_queue(kind[0]), [before for before, _, _ in changes])
        elif kind[1] in SHARED:
            seqs = [card[0] for card in shared([before for before, _, _ in changes])]
            return members([covered for span in spans(seqs) for covered in self._runs.cut(*span)])
        return set()

    def _leave_line(self, queue: int, cards: list[Message]) -> None:
        """Those that never were anywhere else mostly stand in runs, the others never do."""
        covered: list[Span] = []
        for rank, places in by_rank([card for card in cards if card[5] == card[0] and not card[16]]).items():
            covered += self._runs.leave_line(queue, rank, places)
        gone = members(covered)
        if len(gone) == len(cards):
            return
        apart = [card for card in cards if card[0] not in gone] if gone else cards
        if any(card[16] for card in apart):
            self._db.executemany(sql.END_READY, [(queue, card[16], card[4], card[5]) for card in apart])
            return
        for rank, places in by_rank(apart).items():
            for low, high in spans(places):
                self._db.execute(sql.END_READY_RUN, (queue, rank, low, high))

    def _enter(self, kind: Kind, changes: list[Change], left: set[int]) -> None:
        """``left``: who of them was in a run, and has no row."""
        queue = self._made_queue(kind[0])
        if kind[3] in SHARED:
            cards = shared([after for _, after, _ in changes])
            if cards:
                self._enter_together(kind, queue, cards, left)
            if len(cards) < len(changes):
                together = {card[0] for card in cards}
                self._enter_apart(kind, queue, [change for change in changes if change[1][0] not in together], left)
        else:
            self._enter_apart(kind, queue, changes, left)
        if kind[5]:
            rows = [(after[0], *failure) for _, after, failure in changes if failure is not None]
            self._db.executemany(sql.SET_FAILURE, rows)

    def _enter_together(self, kind: Kind, queue: int, cards: list[Message], left: set[int]) -> None:
        """As one row for all who share their fate."""
        if kind[1] is not State.READY:
            self._end_rows([card[0] for card in cards], left)
        is_done = kind[3] is State.DONE
        for (rank, due_at, changed_at, consumer), alike in by_fate(cards).items():
            for first, last in spans([card[0] for card in alike]):
                ids = _ids(alike, first, last) if is_done and not kind[4] else None
                batch = Batch(first, last, queue, rank, kind[3].value, due_at, changed_at, consumer, kind[4], ids)
                self._runs.add(batch)
                if kind[2] and not kind[4]:
                    self._end_span(first, last)

    def _end_rows(self, seqs: list[int], left: set[int]) -> None:
        rest = [seq for seq in seqs if seq not in left]
        if rest:
            which, bindings = sql.among(rest)
            self._db.execute(sql.END_LIVES + which, bindings)

    def _enter_apart(self, kind: Kind, queue: int, changes: list[Change], left: set[int]) -> None:
        """Each in a row of its own."""
        _, old, old_body, new, new_body, _ = kind
        if not left and new is State.DONE and old in SHARED:
            self._settle(changes)
            return
        if not left and old is State.CLAIMED and new is State.LEASED and is_start_alike(changes):
            self._start(changes)
            return
        many = self._db.executemany
        rows = [(after[0], queue, *after[2:]) for _, after, _ in changes]
        if new is State.READY:
            if old is not State.READY:
                self._end_rows([row[0] for row in rows], left)
            many(sql.INSERT_READY, rows)
            many(sql.MOVE_NAME, [(row[5], queue, row[2]) for row in rows])
        elif old is State.READY:
            many(sql.INSERT_LIFE, rows)
        else:
            many(sql.INSERT_LIFE, [row for row in rows if row[0] in left])
            many(sql.UPDATE_LIFE, [row for row in rows if row[0] not in left])
        if old_body and not new_body:
            self._end_messages([row[0] for row in rows])

    def _keep_apart(self, new: State, changes: list[Change]) -> None:
        """Who will stay long takes its payload out of what it shares with others."""
        if new in (State.DEAD, State.PARKED):
            self._contents.take_out(*sql.among([after[0] for _, after, _ in changes]))
        elif new is State.DELAYED:
            long = [after[0] for _, after, _ in changes if after[8] - after[10] > LONG_MS]
            if long:
                self._contents.take_out(*sql.among(long))

    def _settle(self, changes: list[Change]) -> None:
        """Leased to done and done to remembered, alike for all acknowledged together."""
        together: dict[tuple[int, int, bool], list[int]] = {}
        for _, after, _ in changes:
            together.setdefault((after[8], after[10], after[14]), []).append(after[0])
        for (due_at, changed_at, body), seqs in together.items():
            which, bindings = sql.among(seqs)
            self._db.execute(sql.SETTLE_LIFE + which, (due_at, changed_at, body, *bindings))
            if not body:
                self._end_messages(seqs)

    def _start(self, changes: list[Change]) -> None:
        """Claimed to leased, alike for all fetched together."""
        which, bindings = sql.among([after[0] for _, after, _ in changes])
        card = changes[0][1]
        self._db.execute(sql.START_LIFE + which, (card[8], card[10], *bindings))

    def _weigh(self, kind: Kind, changes: list[Change]) -> None:
        """Bytes of what enters or leaves the queue."""
        entered = (kind[3] in WAITING) - (kind[1] in WAITING)
        if entered:
            self._deltas_of(self._made_queue(kind[0]))["bytes"] += entered * sum([after[17] for _, after, _ in changes])

    def _regroup(self, changes: Sequence[Change]) -> None:
        """Who is a member of a group, and where in its line."""
        for before, after, _ in changes:
            if after.group and (before.state in WAITING, before.place) != (after.state in WAITING, after.place):
                queue = self._made_queue(after.queue)
                if before.state in WAITING:
                    self._db.execute(sql.LEAVE_GROUP, (queue, before.group, before.place))
                if after.state in WAITING:
                    self._db.execute(sql.JOIN_GROUP, (queue, after.group, after.place, after.seq))

    def _remember(self, old: State, new: State, changes: list[Change]) -> None:
        leased = self._known.leased
        if new is State.LEASED:
            if len(leased) + len(changes) <= MOST_CARDS:
                leased.update([(after[0], after) for _, after, _ in changes])
            else:
                leased.clear()
        elif old is State.LEASED:
            for _, after, _ in changes:
                leased.pop(after[0], None)

    def _count_changes(
        self, queue: str, old: State, old_body: bool, new: State, new_body: bool, failed: bool, number: int
    ) -> None:
        """``number`` changes of one kind. A remembered id is no longer a message of its queue."""
        deltas = self._deltas_of(self._made_queue(queue))
        if is_counted(old, old_body):
            deltas[old] -= number
        if is_counted(new, new_body):
            deltas[new] += number
        if old is not new:
            if new is State.DONE:
                deltas["acked"] += number
            elif new is State.DROPPED:
                deltas["dropped"] += number
            elif new is State.READY and old in (State.DEAD, State.PARKED):
                deltas["redriven"] += number
            elif new is State.READY and old is State.DRAFT:
                deltas["published"] += number
        if failed:
            deltas["failed"] += number

    # -- content that goes -------------------------------------------------------------------------------------------

    def _end_span(self, first: int, last: int) -> None:
        """Content of messages whose numbers follow each other."""
        self._db.execute(sql.END_MESSAGES + "BETWEEN ? AND ?", (first, last))
        self._contents.left(first, last)

    def _end_messages(self, seqs: list[int]) -> None:
        which, bindings = sql.among(seqs)
        self._db.execute(sql.END_MESSAGES + which, bindings)
        for span in spans(seqs):
            self._contents.left(*span)


def _ids(cards: list[Message], first: int, last: int) -> str:
    """What is kept of messages when their content goes."""
    if last - first + 1 < len(cards):
        cards = [card for card in cards if first <= card[0] <= last]
    return dumps({card[2]: card[17] for card in sorted(cards, key=_by_number)}).decode()
