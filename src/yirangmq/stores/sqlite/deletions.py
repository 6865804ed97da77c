"""Rewrites, deletions and history trimming of the SQLite transaction.

``MessageDeletions`` replaces contents, deletes messages, and reduces history to remembered ids. It also moves messages
that no longer decode from the head of a queue to the dead letters."""

from collections.abc import Sequence
from heapq import merge

from yirangmq.core import transitions
from yirangmq.core.message import Envelope, Message
from yirangmq.core.ports import Change
from yirangmq.core.states import UNFINISHED, State
from yirangmq.stores.sqlite import corrupt_rows as unreadable
from yirangmq.stores.sqlite import sql, statements
from yirangmq.stores.sqlite.reads import MessageLookup
from yirangmq.stores.sqlite.runs import ReadyMessage, spans
from yirangmq.stores.sqlite.tables import Tables
from yirangmq.stores.sqlite.writes import StateChanges, batchable, is_counted

TRIM_ROTATION = 200
"""Queue numbers that one ``trim`` checks in addition to the queues with new done messages."""


class MessageDeletions:
    """Rewrites and deletions of messages, and history trimming, inside a transaction."""

    def __init__(self, tables: Tables, lookup: MessageLookup, changes: StateChanges) -> None:
        self._db, self._cache, self._queues, self._contents, self._runs = tables
        self._lookup = lookup
        self._changes = changes

    # -- rewrite, delete, trim ------------------------------------------------------------------------------------

    def rewrite(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        contents, lives, places = [], [], []
        for message, envelope in zip(messages, envelopes, strict=True):
            header, payload = envelope.header, envelope.payload
            size, state = len(header) + len(payload), message.state
            contents.append((header, payload.decode() if envelope.is_json else payload, message.seq))
            if state is State.READY:
                queue = self._queues.ensure(message.queue)
                places.append((size, queue, message.target, message.rank, message.place))
            else:
                lives.append(message.seq)
            if state in UNFINISHED:
                self._queues.deltas_of(self._queues.ensure(message.queue))["bytes"] += size - message.size
        self._cache.replace_contents(messages, envelopes)
        for message in messages:
            self._contents.removed(message.seq, message.seq)
        self._db.executemany(statements.REWRITE, contents)
        if lives:
            self._db.execute(*statements.RESIZE_LIVES.among(lives))
        self._db.executemany(statements.RESIZE_READY, places)

    def forget(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        self._cache.forget_messages(messages)
        for message in messages:
            if is_counted(message.state, message.body):
                self._queues.deltas_of(self._queues.ensure(message.queue))[message.state] -= 1
            if message.state in UNFINISHED:
                self._queues.deltas_of(self._queues.ensure(message.queue))["bytes"] -= message.size
                if message.group:
                    group_row = (self._queues.ensure(message.queue), message.group, message.place)
                    self._db.execute(statements.LEAVE_GROUP, group_row)
        for queue in {message.queue for message in messages if message.state is State.READY}:
            ready = [message for message in messages if message.state is State.READY and message.queue == queue]
            self._changes.remove_ready(self._queues.ensure(queue), ready)
        for span in spans([message.seq for message in batchable(messages)]):
            self._runs.cut(*span)
        seqs = [message.seq for message in messages]
        self._db.execute(*statements.END_LIVES.among(seqs))
        if any(message.body for message in messages):
            self._changes.end_messages(seqs)
        # A redriven message has no reason, but still its failure.
        self._db.execute(*statements.END_FAILURES.among(seqs))
        self._db.executemany(statements.END_NAME, [(self._queues.ensure(m.queue), m.id) for m in messages])

    def trim(self, limit: int) -> int:
        total = 0
        for number, name in self._finished():
            policy = self._queues.policy(name)
            surplus = self._queues.counts(name).done - policy.archive.max_messages
            over = min(surplus, limit - total)
            if surplus > over:
                self._cache.finished.add(number)
            if over > 0:
                self._trim(number, over, policy.tombstone_ms)
                self._queues.deltas_of(number)["done"] -= over
                total += over
        return total

    def _finished(self) -> list[tuple[int, str]]:
        """Return the queues to trim: those with new done messages since they were last checked, and some of all others
        in rotation, for messages that another process left. The cost does not depend on the number of queues."""
        known = self._cache
        grown = known.finished | {queue for queue, deltas in self._queues.deltas.items() if deltas.get("done", 0) > 0}
        known.finished = set()
        found = {number: self._queues.name(number) for number in grown}
        top: int = self._queues.value(sql.LAST_QUEUE) or 0
        if known.trimmed_to < 0:  # short-lived processes start at different queues
            known.trimmed_to = known.last % top // TRIM_ROTATION * TRIM_ROTATION if top else 0
        first, known.trimmed_to = known.trimmed_to, known.trimmed_to + TRIM_ROTATION
        found.update(self._db.execute(sql.FINISHED, (first, known.trimmed_to)))
        if known.trimmed_to >= top:
            known.trimmed_to = 0
        return sorted(found.items())

    def _trim(self, queue: int, over: int, tombstone_ms: int) -> None:
        """Delete the content of the oldest done messages, merged from single rows and batches."""
        self._cache.forget_due()
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
                self._runs.delete_content(batch, last, batch.changed_at + tombstone_ms)
                self._changes.end_span(batch.first, last)
                over -= last - batch.first + 1
        if alone:
            statement, bindings = statements.REMEMBER_LIFE.among(alone)
            self._db.execute(statement, (tombstone_ms, *bindings))
            self._changes.end_messages(alone)

    # -- unreadable messages --------------------------------------------------------------------------------------

    def heads(self, queue: str, limit: int, target: int = 0) -> list[ReadyMessage]:
        try:
            return self._lookup.heads(queue, limit, target)
        except UnicodeDecodeError:
            if not self._kill_unreadable(self._queues.ensure(queue), limit, target):
                raise
            return self.heads(queue, limit, target)

    def _kill_unreadable(self, queue: int, limit: int, target: int) -> int:
        """Move the next ready messages that do not decode to the dead letters, because they would block all messages
        after them. Return their number."""
        seqs = [row[0] for one in {0, target} for row in self._db.execute(sql.READY_SEQS, (queue, one, limit))]
        for _, first, last in self._runs.first_runs(queue, limit):
            seqs += range(first, min(last, first + limit) + 1)
        self._runs.write()
        found = [sent for seq in seqs for sent in unreadable.unreadable(self._db, unreadable.ONE, (seq,))]
        deltas = self._queues.deltas_of(queue)
        self._cache.forget_places()
        for sent in found:
            unreadable.move_to_dead_letters(self._db, sent)
            self._contents.removed(sent.seq, sent.seq)
            for name, change in (("ready", -1), ("dead", 1), ("failed", 1)):
                deltas[name] += change
            buried = self._queues.message(next(self._db.execute(sql.LIFE_BY_SEQ, (sent.seq,))))
            deltas["bytes"] -= buried.size
            if buried.group:
                self._advance_group(queue, buried)
        return len(found)

    def _advance_group(self, queue: int, buried: Message) -> None:
        """Remove a message from its group and make the next one ready, because no operation does this here."""
        self._db.execute(statements.LEAVE_GROUP, (queue, buried.group, buried.place))
        [first] = self._lookup.group_first(buried.queue, [buried.group])
        if first is not None and first.state is State.HELD:
            self._changes.swap([Change(first, transitions.free(first, 0, first.changed_at))])
