"""The part of a batch of work that treats a run of messages as one: ``core.ports.InRuns``."""

import apsw

from yirangmq.core.message import Envelope, Message, Run, total_size
from yirangmq.core.states import State
from yirangmq.stores import sqlite_rows as sql
from yirangmq.stores.sqlite_ending import Ending
from yirangmq.stores.sqlite_ledger import Known
from yirangmq.stores.sqlite_runs import Batch


class Together(Ending):
    def __init__(self, db: apsw.Connection, known: Known) -> None:
        super().__init__(db, known)
        self._offered: dict[int, list[Envelope]] = {}
        """By the first number of a run, what was read of it last."""

    def in_runs(self) -> "Together":
        return self

    def head_runs(self, queue: str, limit: int, target: int) -> list[tuple[Run, list[Envelope]]] | None:
        number = self._queue(queue)
        self._offered.clear()
        if number is None:
            return None
        line = self._runs.line(number, limit)
        if self._value(sql.IS_ANY_APART, number, target):
            line = self._ahead_of_others(line, number, target)
            if sum([last - first + 1 for _, first, last in line]) < limit:
                return None
        found = []
        try:
            for rank, first, last in line:
                sent = self._runs.sent(queue, rank, (first, last), limit)
                if not sent or sent[-1][0] - first + 1 != len(sent):
                    return None  # one of them is missing
                limit -= len(sent)
                envelopes = self._offered[first] = [one for _, one in sent]
                found.append((Run(_fresh(first, queue, rank, sent[0][1]), len(sent)), envelopes))
        except UnicodeDecodeError:
            return None
        return found

    def _ahead_of_others(self, line: list[tuple[int, int, int]], queue: int, target: int) -> list[tuple[int, int, int]]:
        """Of runs in line, as much as stands before the first message that has a row of its own."""
        rows = [row for one in {0, target} for row in self._db.execute(sql.FIRST_APART, (queue, one))]
        rank, place = min(rows)
        return [
            (of, first, min(last, place - 1) if of == rank else last)
            for of, first, last in line
            if (of, first) < (rank, place)
        ]

    def held_run(self, first: int, last: int) -> Run | None:
        held = self._runs.held(first, last)
        batches = [held.batch] if held is not None else self._runs.over(first, last)
        if len(batches) != 1:
            return None
        [batch] = batches
        if batch.state != State.LEASED or batch.first > first or batch.last < last:
            return None
        fate = (1, 1, batch.due_at, 0, batch.changed_at, batch.consumer, "", 0, True, 0, 0, 0)
        return Run(
            Message(first, self._queue_name(batch.queue), "", State.LEASED, batch.rank, first, *fate), last - first + 1
        )

    def swap_run(self, run: Run, after: Message) -> None:
        before, count = run
        self._move_due(before.due_at, after.due_at)
        queue, last = self._made_queue(before.queue), before.seq + count - 1
        fate = after.state.value, after.due_at, after.changed_at, after.consumer, int(after.body)
        batch = Batch(before.seq, last, queue, after.rank, *fate, None)
        if before.state is State.READY:
            self._hand_out(batch)
        else:
            self._settle_run(batch)
        self._count_changes(before.queue, before.state, True, after.state, after.body, False, count)

    def _hand_out(self, batch: Batch) -> None:
        """Out of line, and leased: nobody else can end it so."""
        self._runs.cut_fresh(batch.queue, batch.rank, batch.first, batch.last)
        sent = self._offered.pop(batch.first, [])
        if len(sent) >= batch.size:
            self._runs.hold(batch, total_size(sent[: batch.size]))
        else:
            self._runs.add(batch)

    def _settle_run(self, batch: Batch) -> None:
        span = batch.first, batch.last
        held = self._runs.held(*span)
        for seq in range(batch.first, batch.last + 1) if self._known.leased else ():
            self._known.leased.pop(seq, None)
        if batch.state == State.DONE:
            size = self._runs.weight(span) if held is None else held.size
            self._deltas_of(batch.queue)["bytes"] -= size
            if not batch.body:
                batch = batch._replace(ids=self._runs.ids(span)[0])
                self._end_span(*span)
        if held is not None:
            self._runs.settle(batch)
        else:
            self._runs.cut(*span)
            self._runs.add(batch)

    def _move_due(self, old: int, new: int) -> None:
        """If this was due first, nothing is due before it either; what is, is looked up when that moment has come."""
        due = self._known.due
        if due is None:
            return
        if new and (due[0] is None or new < due[0]):
            self._known.due = new, True
        elif old and old == due[0]:
            self._known.due = old, False


def _fresh(seq: int, queue: str, rank: int, sent: Envelope) -> Message:
    """The card of the first one of a run in line."""
    return Message(seq, queue, "", State.READY, rank, seq, 0, 0, 0, 0, sent.published_at, "", "", 0, True)
