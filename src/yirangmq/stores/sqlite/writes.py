"""State changes of the SQLite transaction, batched by kind.

Changes are grouped by kind: queue, state and content before and after, and whether they carry a failure. All changes of
a kind are one statement where possible. Most batches are of one kind; the grouping functions test for that first.

``StateChanges`` moves messages from state to state; messages with the same times and consumer share a row of ``batch``
(``stores.sqlite.runs``)."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from yirangmq.core.message import (
    Message,
    group_of,
    place_of,
    rank_of,
    seq_of,
    size_of,
    target_of,
)
from yirangmq.core.ports import Change, after_of
from yirangmq.core.states import UNFINISHED, State
from yirangmq.format.json_codec import dumps
from yirangmq.stores.sqlite import statements
from yirangmq.stores.sqlite.cache import BatchRow, Span
from yirangmq.stores.sqlite.runs import members, spans
from yirangmq.stores.sqlite.tables import Tables

# -- grouping by kind --------------------------------------------------------------------------------------------------

ChangeKind = tuple[str, State, bool, State, bool, bool]
"""Queue, state and body before, state and body after, and whether there is a failure."""
SharedColumns = tuple[int, int, int, str]
"""Rank, due time, change time and consumer: the columns that all messages of a batch share."""
BATCH_STATES = (State.LEASED, State.DONE)
"""States of messages in rows of ``batch``."""


_index = Message._fields.index
_fate_of: Callable[[Message], SharedColumns] = itemgetter(*map(_index, ("rank", "due_at", "changed_at", "consumer")))
_after_queue_of: Callable[[Message], tuple[Any, ...]] = itemgetter(slice(_index("queue") + 1, None))
"""All fields after the queue, in the order of the columns."""
_lasting_of: Callable[[Message], tuple[Any, ...]] = itemgetter(
    slice(_index("rank"), _index("leases") + 1), _index("expires_at"), slice(_index("consumer"), None)
)
"""All fields of a message that may change, without state, due time and change time."""


def by_rank(messages: list[Message]) -> dict[int, list[int]]:
    """Group places by rank and keep their order; usually all messages have one rank."""
    if not messages:
        return {}
    ranks = [*map(rank_of, messages)]
    if ranks.count(ranks[0]) == len(ranks):
        return {ranks[0]: [*map(place_of, messages)]}
    places: dict[int, list[int]] = {}
    for rank, place in zip(ranks, map(place_of, messages), strict=True):
        places.setdefault(rank, []).append(place)
    return places


def by_kind(changes: Sequence[Change]) -> dict[ChangeKind, list[Change]]:
    """Group changes by kind; usually all are of one kind."""
    if not changes:
        return {}
    before, after, failure = changes[0]
    kind = after.queue, before.state, before.body, after.state, after.body, failure is not None
    queue, old, old_body, new, new_body, failed = kind
    alike = [
        change
        for change in changes
        if change.before.state is old
        and change.after.state is new
        and change.after.queue == queue
        and change.before.body == old_body
        and change.after.body == new_body
        and (change.failure is not None) == failed
    ]
    if len(alike) == len(changes):
        return {kind: alike}
    kinds: dict[ChangeKind, list[Change]] = {}
    for change in changes:
        before, after, failure = change
        key = after.queue, before.state, before.body, after.state, after.body, failure is not None
        kinds.setdefault(key, []).append(change)
    return kinds


def is_counted(state: State, body: bool) -> bool:
    """Return True if the counters of the queue include a message in this state."""
    return state is not State.DROPPED and (state is not State.DONE or body)


def batchable(messages: Sequence[Message]) -> list[Message]:
    """Return the messages that can be in a batch (schema/004-runs.sql): leased for the first time, at their original
    place, without expiry, reason, group and target."""
    return [
        message
        for message in messages
        if message.leases == 1
        and message.attempt == 1
        and message.place == message.seq
        and not (message.expires_at or message.reason or message.repeats or message.group or message.target)
        and message.state in BATCH_STATES
    ]


def is_start_alike(changes: list[Change]) -> bool:
    """Return True if each change differs only in state, due time and change time, with the same times for all."""
    due_at, changed_at = changes[0].after.due_at, changes[0].after.changed_at
    return all(
        change.after.due_at == due_at
        and change.after.changed_at == changed_at
        and _lasting_of(change.before) == _lasting_of(change.after)
        for change in changes
    )


def by_shared_columns(messages: list[Message]) -> dict[SharedColumns, list[Message]]:
    """Group messages by the columns that a batch shares: rank, due time, change time, consumer. Usually there is one
    group."""
    keys = [*map(_fate_of, messages)]
    if keys.count(keys[0]) == len(keys):
        return {keys[0]: messages}
    groups: dict[SharedColumns, list[Message]] = {}
    for columns, message in zip(keys, messages, strict=True):
        groups.setdefault(columns, []).append(message)
    return groups


# -- state changes -----------------------------------------------------------------------------------------------------

LONG_MS = 60_000
"""A message delayed longer than this, in ms, gets its payload unpacked."""


class StateChanges:
    """State changes of messages inside a transaction."""

    def __init__(self, tables: Tables) -> None:
        self._db, self._cache, self._queues, self._contents, self._runs = tables

    # -- from state to state --------------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> None:
        """Apply state changes. All messages leave their old places before any message enters a new one, because one
        change may use the place that another leaves."""
        kinds = by_kind(changes)
        removed = {kind: self._remove_old(kind, alike) for kind, alike in kinds.items()}
        for kind, alike in kinds.items():
            queue, old, old_body, new, new_body, failed = kind
            self._insert_new(kind, alike, removed[kind])
            self.count_changes(self._queues.ensure(queue), old, old_body, new, new_body, failed, len(alike))
            self._weigh(kind, alike)
            self._cache.apply_changes(old, new, alike)
            self._unpack_long_lived(new, alike)
        if any(map(group_of, map(after_of, changes))):
            self._regroup(changes)

    def _remove_old(self, kind: ChangeKind, changes: list[Change]) -> set[int]:
        """Remove messages from the ready runs and batches. Return the numbers of those that were in a batch and
        therefore have no row in ``life``."""
        queue, old, _, _, _, _ = kind
        if old is State.READY:
            self.remove_ready(self._queues.ensure(queue), [change.before for change in changes])
        elif old in BATCH_STATES:
            seqs = [message.seq for message in batchable([change.before for change in changes])]
            return members([covered for span in spans(seqs) for covered in self._runs.cut(*span)])
        return set()

    def remove_ready(self, queue: int, messages: list[Message]) -> None:
        """Remove ready messages. Only messages at their original place can be in runs, and most of them are."""
        covered: list[Span] = []
        for rank, places in by_rank(
            [message for message in messages if message.place == message.seq and not message.target]
        ).items():
            covered += self._runs.remove_ready(queue, rank, places)
        gone = members(covered)
        if len(gone) == len(messages):
            return
        apart = [message for message in messages if message.seq not in gone] if gone else messages
        if any(map(target_of, apart)):
            self._db.executemany(
                statements.END_READY, [(queue, message.target, message.rank, message.place) for message in apart]
            )
            return
        for rank, places in by_rank(apart).items():
            for low, high in spans(places):
                self._db.execute(statements.END_READY_RUN, (queue, rank, low, high))

    def _insert_new(self, kind: ChangeKind, changes: list[Change], removed: set[int]) -> None:
        """Insert messages into their new state. ``removed``: numbers of those that were in a batch and have no row."""
        name, _, _, new, _, failed = kind
        queue = self._queues.ensure(name)
        if new in BATCH_STATES:
            messages = batchable([change.after for change in changes])
            if messages:
                self._insert_batches(kind, queue, messages, removed)
            if len(messages) < len(changes):
                together = {message.seq for message in messages}
                apart = [change for change in changes if change.after.seq not in together]
                self._write_single_rows(kind, queue, apart, removed)
        else:
            self._write_single_rows(kind, queue, changes, removed)
        if failed:
            rows = [(after.seq, *failure) for _, after, failure in changes if failure is not None]
            self._db.executemany(statements.SET_FAILURE, rows)

    def _insert_batches(self, kind: ChangeKind, queue: int, messages: list[Message], removed: set[int]) -> None:
        """Insert one batch for all messages with consecutive numbers and the same shared columns."""
        _, old, old_body, new, body, _ = kind
        if old is not State.READY:
            self._end_rows([message.seq for message in messages], removed)
        for (rank, due_at, changed_at, consumer), alike in by_shared_columns(messages).items():
            for first, last in spans([message.seq for message in alike]):
                ids = _ids(alike, first, last) if new is State.DONE and not body else None
                self._runs.add(BatchRow(first, last, queue, rank, new.value, due_at, changed_at, consumer, body, ids))
                if old_body and not body:
                    self.end_span(first, last)

    def _end_rows(self, seqs: list[int], removed: set[int]) -> None:
        """Delete rows of ``life``, except of the messages in ``removed``, which have none."""
        rest = [seq for seq in seqs if seq not in removed]
        if rest:
            self._db.execute(*statements.END_LIVES.among(rest))

    def _write_single_rows(self, kind: ChangeKind, queue: int, changes: list[Change], removed: set[int]) -> None:
        """Insert or update a single row for each message."""
        _, old, old_body, new, new_body, _ = kind
        if not removed and new is State.DONE and old in BATCH_STATES:
            self._settle(changes)
            return
        if not removed and old is State.CLAIMED and new is State.LEASED and is_start_alike(changes):
            self._start(changes)
            return
        many = self._db.executemany
        afters = [change.after for change in changes]
        seqs = [after.seq for after in afters]
        rows = [(after.seq, queue, *_after_queue_of(after)) for after in afters]
        if new is State.READY:
            if old is not State.READY:
                self._end_rows(seqs, removed)
            many(statements.INSERT_READY, rows)
            many(statements.MOVE_NAME, [(after.place, queue, after.id) for after in afters])
        elif old is State.READY:
            many(statements.INSERT_LIFE, rows)
        else:
            many(statements.INSERT_LIFE, [row for seq, row in zip(seqs, rows, strict=True) if seq in removed])
            many(statements.UPDATE_LIFE, [row for seq, row in zip(seqs, rows, strict=True) if seq not in removed])
        if old_body and not new_body:
            self.end_messages(seqs)

    def _unpack_long_lived(self, new: State, changes: list[Change]) -> None:
        """Unpack the payloads of messages that will stay long, so that they do not keep shared rows of ``content``."""
        if new in (State.DEAD, State.PARKED):
            self._contents.unpack([change.after.seq for change in changes])
        elif new is State.DELAYED:
            long = [after.seq for _, after, _ in changes if after.due_at - after.changed_at > LONG_MS]
            if long:
                self._contents.unpack(long)

    def _settle(self, changes: list[Change]) -> None:
        """Change single rows from leased to done, or from done to remembered, with one statement for all messages with
        the same times."""
        together: dict[tuple[int, int, bool], list[int]] = {}
        for _, after, _ in changes:
            together.setdefault((after.due_at, after.changed_at, after.body), []).append(after.seq)
        for (due_at, changed_at, body), seqs in together.items():
            statement, bindings = statements.SETTLE_LIFE.among(seqs)
            self._db.execute(statement, (due_at, changed_at, body, *bindings))
            if not body:
                self.end_messages(seqs)

    def _start(self, changes: list[Change]) -> None:
        """Change single rows from claimed to leased with one statement; all have the same times."""
        statement, bindings = statements.START_LIFE.among([change.after.seq for change in changes])
        message = changes[0].after
        self._db.execute(statement, (message.due_at, message.changed_at, *bindings))

    def _weigh(self, kind: ChangeKind, changes: list[Change]) -> None:
        """Count the bytes that enter or leave the queue."""
        queue, old, _, new, _, _ = kind
        entered = (new in UNFINISHED) - (old in UNFINISHED)
        if entered:
            size = sum(map(size_of, map(after_of, changes)))
            self._queues.deltas_of(self._queues.ensure(queue))["bytes"] += entered * size

    def _regroup(self, changes: Sequence[Change]) -> None:
        """Update the table ``member`` of group members and their places."""
        for before, after, _ in changes:
            if after.group and (before.state in UNFINISHED, before.place) != (after.state in UNFINISHED, after.place):
                queue = self._queues.ensure(after.queue)
                if before.state in UNFINISHED:
                    self._db.execute(statements.LEAVE_GROUP, (queue, before.group, before.place))
                if after.state in UNFINISHED:
                    self._db.execute(statements.JOIN_GROUP, (queue, after.group, after.place, after.seq))

    def count_changes(
        self, queue: int, old: State, old_body: bool, new: State, new_body: bool, failed: bool, number: int
    ) -> None:
        """Count ``number`` changes of one kind. A remembered id does not count as a message of its queue."""
        deltas = self._queues.deltas_of(queue)
        # inlined ``is_counted``: four calls less for the lease and the ack of a run
        if old is not State.DROPPED and (old is not State.DONE or old_body):
            deltas[old] -= number
        if new is not State.DROPPED and (new is not State.DONE or new_body):
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

    # -- deletion of content -----------------------------------------------------------------------------------------

    def end_span(self, first: int, last: int) -> None:
        """Delete the content of messages with consecutive numbers."""
        self._db.execute(statements.END_MESSAGES.span, (first, last))
        self._contents.removed(first, last)

    def end_messages(self, seqs: list[int]) -> None:
        self._db.execute(*statements.END_MESSAGES.among(seqs))
        for span in spans(seqs):
            self._contents.removed(*span)


def _ids(messages: list[Message], first: int, last: int) -> str:
    """Return the JSON of ids that stays when the content is deleted."""
    if last - first + 1 < len(messages):
        messages = [message for message in messages if first <= message.seq <= last]
    return dumps({message.id: message.size for message in sorted(messages, key=seq_of)}).decode()
