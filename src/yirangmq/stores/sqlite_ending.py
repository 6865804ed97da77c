"""The part of a batch of work after which less is left of a message, or something else: another content, an id without
content, no trace; bytes that nobody can read."""

from collections.abc import Sequence
from heapq import merge

from yirangmq.core import transitions
from yirangmq.core.message import Envelope, Message
from yirangmq.core.ports import Change
from yirangmq.core.states import WAITING, State
from yirangmq.stores import sqlite_rows as sql
from yirangmq.stores import sqlite_unreadable as unreadable
from yirangmq.stores.sqlite_changing import Changing
from yirangmq.stores.sqlite_line import Head, spans
from yirangmq.stores.sqlite_sort import is_counted, shared

TRIMMED_IN_TURN = 200
"""Queue numbers that one ``trim`` looks at beside those with new done messages."""


class Ending(Changing):
    # -- another content, none, or no trace -----------------------------------------------------------------------

    def rewrite(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        contents, lives, places = [], [], []
        for message, envelope in zip(messages, envelopes, strict=True):
            header, payload, is_json = envelope[7:10]
            size, state = len(header) + len(payload), message[3]
            contents.append((header, payload.decode() if is_json else payload, message[0]))
            if state is State.READY:
                queue = self._made_queue(message[1])
                places.append((size, queue, message.target, message.rank, message.place))
            else:
                lives.append(message[0])
            if state in WAITING:
                self._deltas_of(self._made_queue(message[1]))["bytes"] += size - message.size
            self._known.leased.pop(message[0], None)
        self._known.named.rewritten(messages, envelopes)
        for message in messages:
            self._known.arrivals.drop(message[0], message[0])
            if message[3] is State.LEASED:
                self._known.held.clear()
            self._contents.left(message[0], message[0])
        self._db.executemany(sql.REWRITE, contents)
        if lives:
            which, bindings = sql.among(lives)
            self._db.execute(sql.RESIZE_LIVES + which, bindings)
        self._db.executemany(sql.RESIZE_READY, places)

    def forget(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        self._known.due = None
        self._known.named.forget(messages)
        for message in messages:
            self._known.leased.pop(message.seq, None)
            if is_counted(message.state, message.body):
                self._deltas_of(self._made_queue(message.queue))[message.state] -= 1
            if message.state in WAITING:
                self._deltas_of(self._made_queue(message.queue))["bytes"] -= message.size
                if message.group:
                    line = (self._made_queue(message.queue), message.group, message.place)
                    self._db.execute(sql.LEAVE_GROUP, line)
        for queue in {message.queue for message in messages if message.state is State.READY}:
            ready = [message for message in messages if message.state is State.READY and message.queue == queue]
            self._leave_line(self._made_queue(queue), ready)
        for span in spans([message.seq for message in shared(messages)]):
            self._runs.cut(*span)
        which, bindings = sql.among([message.seq for message in messages])
        self._db.execute(sql.END_LIVES + which, bindings)
        if any(message.body for message in messages):
            self._end_messages([message.seq for message in messages])
        self._db.execute(sql.END_FAILURES + which, bindings)  # a redriven message has no reason, but still its failure
        self._db.executemany(sql.END_NAME, [(self._made_queue(m.queue), m.id) for m in messages])

    def trim(self, limit: int) -> int:
        total = 0
        for number, name in self._finished():
            policy = self.policy(name)
            surplus = self.counts(name).done - policy.archive.max_messages
            over = min(surplus, limit - total)
            if surplus > over:
                self._known.finished.add(number)
            if over > 0:
                self._trim(number, over, policy.tombstone_ms)
                self._deltas_of(number)["done"] -= over
                total += over
        return total

    def _finished(self) -> list[tuple[int, str]]:
        """Queues to look at: those that got done messages since they were last looked at, and some of all others in
        turn, for what another process left. The cost does not depend on the number of queues."""
        known = self._known
        grown = known.finished | {queue for queue, deltas in self._deltas.items() if deltas.get("done", 0) > 0}
        known.finished = set()
        found = {number: self._queue_name(number) for number in grown}
        top: int = self._value("SELECT max(n) FROM queue") or 0
        if known.trimmed_to < 0:  # a process that does not live long begins somewhere, not always at the first
            known.trimmed_to = known.last % top // TRIMMED_IN_TURN * TRIMMED_IN_TURN if top else 0
        first, known.trimmed_to = known.trimmed_to, known.trimmed_to + TRIMMED_IN_TURN
        found.update(self._db.execute(sql.FINISHED, (first, known.trimmed_to)))
        if known.trimmed_to >= top:
            known.trimmed_to = 0
        return sorted(found.items())

    def _trim(self, queue: int, over: int, tombstone_ms: int) -> None:
        """The oldest of those with rows of their own and of those in batches."""
        self._known.due = None
        apart = list(self._db.execute(sql.OLDEST_DONE, (queue, over)))
        batches = self._runs.oldest(queue, over)
        alone: list[int] = []
        for _, seq, batch in merge(
            ((changed_at, seq, None) for changed_at, seq in apart),
            ((batch.changed_at, batch.first, batch) for batch in batches),
        ):
            if over <= 0:
                break
            if batch is None:
                alone.append(seq)
                over -= 1
            else:
                last = min(batch.last, batch.first + over - 1)
                self._runs.strip(batch, last, batch.changed_at + tombstone_ms)
                self._end_span(batch.first, last)
                over -= last - batch.first + 1
        if alone:
            which, bindings = sql.among(alone)
            self._db.execute(sql.REMEMBER_LIFE + which, (tombstone_ms, *bindings))
            self._end_messages(alone)

    # -- what cannot be read --------------------------------------------------------------------------------------

    def heads(self, queue: str, limit: int, target: int = 0) -> list[Head]:
        try:
            return super().heads(queue, limit, target)
        except UnicodeDecodeError:
            if not self._bury_unreadable(self._made_queue(queue), limit, target):
                raise
            return self.heads(queue, limit, target)

    def _bury_unreadable(self, queue: int, limit: int, target: int) -> int:
        """Those next in line that cannot be read, or they would hold up all behind them; how many."""
        seqs = [row[0] for one in {0, target} for row in self._db.execute(sql.READY_SEQS, (queue, one, limit))]
        for _, first, last in self._runs.line(queue, limit):
            seqs += range(first, min(last, first + limit) + 1)
        self._runs.write()
        found = [sent for seq in seqs for sent in unreadable.unreadable(self._db, unreadable.ONE, (seq,))]
        deltas = self._deltas_of(queue)
        self._known.due = None
        self._known.tails.clear()
        for sent in found:
            unreadable.bury(self._db, sent)
            self._known.newest.clear()
            self._contents.left(sent.seq, sent.seq)
            for name, change in (("ready", -1), ("dead", 1), ("failed", 1)):
                deltas[name] += change
            buried = self._message(next(self._db.execute(sql.LIFE_BY_SEQ, (sent.seq,))))
            deltas["bytes"] -= buried.size
            if buried.group:
                self._pass_turn(queue, buried)
        return len(found)

    def _pass_turn(self, queue: int, buried: Message) -> None:
        """No verb sees this one leave its group, so the next one is let go here."""
        self._db.execute(sql.LEAVE_GROUP, (queue, buried.group, buried.place))
        [first] = self.group_first(buried.queue, [buried.group])
        if first is not None and first.state is State.HELD:
            self.swap([Change(first, transitions.free(first, 0, first.changed_at))])
