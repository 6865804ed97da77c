"""The part of a batch of work that treats a run of messages as one: ``core.ports.InRuns``."""

from yirangmq.core.message import Envelope, Message, Run
from yirangmq.core.states import State
from yirangmq.stores import sqlite_rows as sql
from yirangmq.stores.sqlite_changing import Changing
from yirangmq.stores.sqlite_runs import Batch


class Together(Changing):
    def in_runs(self) -> "Together":
        return self

    def head_runs(self, queue: str, limit: int, target: int) -> list[tuple[Run, list[Envelope]]] | None:
        number = self._queue(queue)
        if number is None or self._value(sql.IS_ANY_APART, number, target):
            return None
        found = []
        try:
            for rank, first, last in self._runs.line(number, limit):
                sent = self._runs.sent(queue, rank, (first, last), limit)
                if not sent or sent[-1][0] - first + 1 != len(sent):
                    return None  # one of them is missing
                limit -= len(sent)
                found.append((Run(_fresh(first, queue, rank, sent[0][1]), len(sent)), [one for _, one in sent]))
        except UnicodeDecodeError:
            return None
        return found

    def held_run(self, first: int, last: int) -> Run | None:
        batches = self._runs.over(first, last)
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
        self._known.due = None
        queue, first = self._made_queue(before.queue), before.seq
        last = first + count - 1
        if before.state is State.READY:
            self._runs.cut_fresh(queue, before.rank, first, last)
        else:
            self._runs.cut(first, last)
            for seq in range(first, last + 1) if self._known.leased else ():
                self._known.leased.pop(seq, None)
        ids = None
        if after.state is State.DONE:
            ids, size = self._runs.ids((first, last))
            self._deltas_of(queue)["bytes"] -= size
            if not after.body:
                self._db.execute(sql.END_MESSAGES + "BETWEEN ? AND ?", (first, last))
        fate = after.state.value, after.due_at, after.changed_at, after.consumer, after.body
        self._runs.add(Batch(first, last, queue, after.rank, *fate, ids))
        self._count_changes(before.queue, before.state, True, after.state, after.body, False, count)


def _fresh(seq: int, queue: str, rank: int, sent: Envelope) -> Message:
    """The card of the first one of a run in line."""
    return Message(seq, queue, "", State.READY, rank, seq, 0, 0, 0, 0, sent.published_at, "", "", 0, True)
