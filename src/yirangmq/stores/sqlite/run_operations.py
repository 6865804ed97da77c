"""Run operations of the SQLite transaction: lease and settle a run of messages as one row."""

from yirangmq.core.message import Envelope, Message, MessageRun, total_size
from yirangmq.core.states import State
from yirangmq.stores.sqlite import sql
from yirangmq.stores.sqlite.cache import BatchRow
from yirangmq.stores.sqlite.tables import Tables
from yirangmq.stores.sqlite.writes import StateChanges


class RunOperations:
    """Run operations (``core.ports.MessageRunOperations``): read, lease and settle a run of messages as one row."""

    def __init__(self, tables: Tables, changes: StateChanges) -> None:
        self._db, self._cache, self._queues, _, self._runs = tables
        self._changes = changes
        self.offered: dict[int, list[Envelope]] = {}
        """Envelopes that the last ``head_runs`` of this transaction read, by the first number of their run."""

    def head_runs(self, queue: str, limit: int, target: int) -> list[tuple[MessageRun, list[Envelope]]] | None:
        number = self._queues.number(queue)
        self.offered.clear()
        if number is None:
            return None
        first_runs = self._runs.first_runs(number, limit)
        if self._queues.value(sql.IS_ANY_SINGLE, number, target):
            first_runs = self._ahead_of_others(first_runs, number, target)
            if sum([last - first + 1 for _, first, last in first_runs]) < limit:
                return None
        found = []
        try:
            for rank, first, last in first_runs:
                sent = self._runs.sent(queue, rank, (first, last), limit)
                if not sent or sent[-1][0] - first + 1 != len(sent):
                    return None  # one of them is missing
                limit -= len(sent)
                envelopes = self.offered[first] = [one for _, one in sent]
                found.append((MessageRun(_fresh(first, queue, rank, sent[0][1]), len(sent)), envelopes))
        except UnicodeDecodeError:
            return None
        return found

    def _ahead_of_others(
        self, first_runs: list[tuple[int, int, int]], queue: int, target: int
    ) -> list[tuple[int, int, int]]:
        """Return the parts of ready runs that come before the first message in a single row."""
        rows = [row for one in {0, target} for row in self._db.execute(sql.FIRST_SINGLE, (queue, one))]
        rank, place = min(rows)
        return [
            (of, first, min(last, place - 1) if of == rank else last)
            for of, first, last in first_runs
            if (of, first) < (rank, place)
        ]

    def leased_run(self, first: int, last: int) -> MessageRun | None:
        leased = self._runs.leased(first, last)
        batches = [leased.batch] if leased is not None else self._runs.batches_in(first, last)
        if len(batches) != 1:
            return None
        [batch] = batches
        if batch.state != State.LEASED or batch.first > first or batch.last < last:
            return None
        shared_columns = (1, 1, batch.due_at, 0, batch.changed_at, batch.consumer, "", 0, True, 0, 0, 0)
        return MessageRun(
            Message(first, self._queues.name(batch.queue), "", State.LEASED, batch.rank, first, *shared_columns),
            last - first + 1,
        )

    def swap_run(self, run: MessageRun, after: Message) -> None:
        before, count = run
        self._cache.move_due(before.due_at, after.due_at)
        queue, last = self._queues.ensure(before.queue), before.seq + count - 1
        shared_columns = after.state.value, after.due_at, after.changed_at, after.consumer, int(after.body)
        batch = BatchRow(before.seq, last, queue, after.rank, *shared_columns, None)
        if before.state is State.READY:
            self._lease_run(batch, count)
        else:
            self._settle_run(batch)
        self._changes.count_changes(queue, before.state, True, after.state, after.body, False, count)

    def _lease_run(self, batch: BatchRow, count: int) -> None:
        """Move a run of ``count`` messages from the ready runs to a leased batch, and cache the batch."""
        self._runs.cut_fresh(batch.queue, batch.rank, batch.first, batch.last)
        sent = self.offered.pop(batch.first, [])
        if len(sent) >= count:
            self._runs.add_leased(batch, total_size(sent[:count]))
        else:
            self._runs.add(batch)

    def _settle_run(self, batch: BatchRow) -> None:
        """Change a leased batch to ``batch``, leased or done."""
        span = batch.first, batch.last
        leased = self._runs.leased(*span)
        if self._cache.leased:
            self._cache.forget_leased(*span)
        if batch.state == State.DONE:
            size = self._runs.content_bytes(span) if leased is None else leased.size
            self._queues.deltas_of(batch.queue)["bytes"] -= size
            if not batch.body:
                batch = batch._replace(ids=self._runs.ids(span)[0])
                self._changes.end_span(*span)
        if leased is not None:
            self._runs.update_leased(batch)
        else:
            self._runs.cut(*span)
            self._runs.add(batch)


def _fresh(seq: int, queue: str, rank: int, sent: Envelope) -> Message:
    """Return the first message of a ready run."""
    return Message(seq, queue, "", State.READY, rank, seq, 0, 0, 0, 0, sent.published_at, "", "", 0, True)
