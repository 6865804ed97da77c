"""One batch of work on the queue tables; see ``core.ports.Transaction`` for what each method promises."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import apsw

from yirangmq.core import decide, names
from yirangmq.core.message import Counts, Envelope, Failure, Message
from yirangmq.core.policy import QueuePolicy, read_policy
from yirangmq.core.ports import Change, Page, Stored, new_stored
from yirangmq.core.states import WAITING, State
from yirangmq.format.jsontext import loads
from yirangmq.stores import sqlite_rows as sql
from yirangmq.stores import sqlite_unreadable as unreadable
from yirangmq.stores.sqlite_sort import Kind, by_kind, by_rank, is_counted


@dataclass(slots=True)
class Known:
    """What a process remembers between transactions. Queue numbers never change; policies are re-read by text."""

    numbers: dict[str, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    policies: dict[str, tuple[str | None, QueuePolicy]] = field(default_factory=dict)
    leased: dict[int, Message] = field(default_factory=dict)
    """Cards this process leased out, so that an ack need not read them back. Thrown away with the rest when another
    process has written, or a transaction of ours failed."""


MOST_CARDS = 20_000
"""Leased cards kept in memory, at some 300 bytes each; beyond it they are read back."""


class SqliteTransaction:
    def __init__(self, db: apsw.Connection, known: Known) -> None:
        self._db = db
        self._known = known
        self._deltas: dict[int, defaultdict[str, int]] = {}
        self._last: int | None = None
        self._policies: dict[str, QueuePolicy] = {}
        self._runs: dict[tuple[int, int], list[int]] = {}

    # -- numbers and names ----------------------------------------------------------------------------------------

    def places(self, count: int) -> int:
        if self._last is None:
            self._last = self._value("SELECT last FROM sequence")
        first: int = self._last + 1
        self._last += count
        return first

    def _value(self, statement: str, *bindings: Any) -> Any:
        """The first column of the first row; None without one."""
        row = self._db.execute(statement, bindings).fetchone()
        return None if row is None else row[0]

    def _queue(self, name: str) -> int | None:
        number: int | None = self._known.numbers.get(name)
        if number is None:
            number = self._value("SELECT n FROM queue WHERE name = ?", name)
            if number is not None:
                self._known.numbers[name] = number
        return number

    def _made_queue(self, name: str) -> int:
        number = self._queue(name)
        if number is None:
            number = int(self._value("INSERT INTO queue (name) VALUES (?) RETURNING n", name))
            self._known.numbers[name] = number
        return number

    def _queue_name(self, number: int) -> str:
        name = self._known.names.get(number)
        if name is None:
            name = self._known.names[number] = str(self._value("SELECT name FROM queue WHERE n = ?", number))
        return name

    def _message(self, row: Sequence[Any]) -> Message:
        return sql.message_of(row, self._queue_name(row[1]))

    def _deltas_of(self, queue: int) -> defaultdict[str, int]:
        deltas = self._deltas.get(queue)
        if deltas is None:
            deltas = self._deltas[queue] = defaultdict(int)
        return deltas

    def flush(self) -> None:
        """Write what was counted up in memory; called once, just before the commit."""
        for queue, deltas in self._deltas.items():
            changed = {name: delta for name, delta in deltas.items() if delta}
            if changed:
                sets = ", ".join(f"{name} = {name} + ?" for name in changed)
                self._db.execute(f"UPDATE queue SET {sets} WHERE n = ?", (*changed.values(), queue))
        if self._last is not None:
            self._db.execute("UPDATE sequence SET last = ?", (self._last,))

    # -- policies and queues --------------------------------------------------------------------------------------

    def policy(self, queue: str) -> QueuePolicy:
        policy = self._policies.get(queue)
        if policy is None:
            policy = self._policies[queue] = self._read_policy(queue)
        return policy

    def _read_policy(self, queue: str) -> QueuePolicy:
        text = self.policy_text(queue)
        known = self._known.policies.get(queue)
        if known is None or known[0] != text:
            known = (text, read_policy(loads(text.encode()) if text else {}, queue))
            self._known.policies[queue] = known
        return known[1]

    def policy_text(self, queue: str) -> str | None:
        text: str | None = self._value("SELECT policy FROM queue WHERE name = ?", queue)
        return text

    def set_policy(self, queue: str, text: str | None) -> None:
        self._db.execute("UPDATE queue SET policy = ? WHERE n = ?", (text, self._made_queue(queue)))
        self._policies.pop(queue, None)

    def queues(self) -> list[str]:
        return [row[0] for row in self._db.execute("SELECT name FROM queue ORDER BY name")]

    def counts(self, queue: str) -> Counts:
        row = self._db.execute(f"SELECT n, {', '.join(sql.COUNTED)} FROM queue WHERE name = ?", (queue,)).fetchone()
        if row is None:
            return Counts()
        stored = Counts(*row[1:])
        pending: dict[str, int] = self._deltas.get(row[0]) or {}
        return stored._replace(**{name: getattr(stored, name) + delta for name, delta in pending.items()})

    def delete_queue(self, queue: str) -> None:
        number = self._queue(queue)
        if number is None:
            return
        self._db.execute("DELETE FROM failure WHERE seq IN (SELECT seq FROM name WHERE queue = ?)", (number,))
        for table in ("message", "name", "ready", "life", "member", "dedup"):
            self._db.execute(f"DELETE FROM {table} WHERE queue = ?", (number,))
        self._db.execute("DELETE FROM queue WHERE n = ?", (number,))
        self._deltas.pop(number, None)
        self._known.leased.clear()
        self._known.numbers.pop(queue, None)
        self._known.names.pop(number, None)
        self._known.policies.pop(queue, None)
        self._policies.pop(queue, None)

    def note(self, key: str) -> str | None:
        text: str | None = self._value("SELECT text FROM note WHERE key = ?", key)
        return text

    def notes(self, prefix: str) -> dict[str, str]:
        return dict(self._db.execute(sql.NOTES, (prefix, prefix + "\uffff")))

    def set_note(self, key: str, text: str | None) -> None:
        names.check_note(key)
        if text is None:
            self._db.execute("DELETE FROM note WHERE key = ?", (key,))
        else:
            self._db.execute("INSERT OR REPLACE INTO note VALUES (?, ?)", (key, text))

    # -- adding ---------------------------------------------------------------------------------------------------

    def add(
        self, envelopes: Sequence[Envelope], now: int, dedup_until: int, draft_until: int | None = None
    ) -> list[Stored]:
        if not envelopes:
            return []
        queue = self._made_queue(envelopes[0].queue)
        if any(envelope.dedup_key is not None for envelope in envelopes):
            return self._add_checked(queue, envelopes, now, dedup_until, draft_until)
        first = self.places(len(envelopes))
        try:
            self._insert(queue, envelopes, first, now, draft_until)
        except apsw.ConstraintError:
            self._db.execute("DELETE FROM message WHERE seq >= ?", (first,))
            return self._add_checked(queue, envelopes, now, dedup_until, draft_until)
        return [new_stored((seq, envelope[1], False, "")) for seq, envelope in enumerate(envelopes, first)]

    def _insert(self, queue: int, envelopes: Sequence[Envelope], first: int, now: int, draft_until: int | None) -> None:
        """Rows of a contiguous run of numbers; the narrow tables are filled from them inside SQLite."""
        rows = [sql.message_row(seq, queue, envelope) for seq, envelope in enumerate(envelopes, first)]
        self._db.executemany(sql.INSERT_MESSAGE, rows)
        last = first + len(rows) - 1
        self._db.execute(sql.NAME_NEW, (first, last))
        deltas = self._deltas_of(queue)
        if draft_until is not None:
            self._db.execute(sql.DRAFT_NEW, (first, last, draft_until))
            deltas["draft"] += len(rows)
            return
        if any(row[10] for row in rows):
            self._db.execute(sql.MEMBERS_NEW, (first, last))
        self._db.execute(sql.READY_NEW, (first, last, now))
        ready = self._db.changes()
        if ready < len(rows):
            self._db.execute(sql.DELAY_NEW, (first, last, now))
        deltas["published"] += len(rows)
        deltas["ready"] += ready
        deltas["delayed"] += len(rows) - ready
        deltas["bytes"] += sum([len(envelope[8]) + len(envelope[7]) for envelope in envelopes])

    def _add_checked(
        self, queue: int, envelopes: Sequence[Envelope], now: int, dedup_until: int, draft_until: int | None
    ) -> list[Stored]:
        """The careful way: look each id and key up first, also within the batch."""
        first = self.places(len(envelopes))
        accepted: list[Envelope] = []
        results: list[Stored] = []
        ids: dict[str, int] = {}
        keys: dict[str, tuple[int, str]] = {}
        for envelope in envelopes:
            known = self._known_one(queue, envelope, now, ids, keys)
            if known is not None:
                results.append(known)
                continue
            seq = first + len(accepted)
            accepted.append(envelope)
            ids[envelope.id] = seq
            if envelope.dedup_key is not None and dedup_until > now:
                keys[envelope.dedup_key] = (seq, envelope.id)
            results.append(Stored(seq, envelope.id, False))
        if accepted:
            self._insert(queue, accepted, first, now, draft_until)
        rows = [(queue, key, dedup_until, seq, id) for key, (seq, id) in keys.items()]
        self._db.executemany(sql.HOLD_KEY, rows)
        return results

    def _known_one(
        self, queue: int, envelope: Envelope, now: int, ids: dict[str, int], keys: dict[str, tuple[int, str]]
    ) -> Stored | None:
        """The message that already has this id, or this deduplication key."""
        id, key = envelope.id, envelope.dedup_key
        seq = ids.get(id) or self._value("SELECT seq FROM name WHERE queue = ? AND id = ?", queue, id)
        if seq is not None:
            return Stored(seq, id, True)
        if key is None:
            return None
        if key in keys:
            return Stored(*keys[key], True)
        found = self._db.execute(sql.KEY_HOLDER, (queue, key, now)).fetchone()
        return Stored(found[0], found[1], True) if found else None

    def rewrite(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        for message, envelope in zip(messages, envelopes, strict=True):
            queue = self._made_queue(message.queue)
            row = sql.message_row(message.seq, queue, envelope)
            self._db.execute(sql.REWRITE, (row[8], row[9], message.seq))
            if message.state is State.READY:
                place = (queue, message.target, message.rank, message.place)
                self._db.execute(sql.RESIZE_READY, (envelope.size, *place))
            else:
                self._db.execute(sql.RESIZE_LIFE, (envelope.size, message.seq))
            if message.state in WAITING:
                self._deltas_of(queue)["bytes"] += envelope.size - message.size
            self._known.leased.pop(message.seq, None)

    def key_holders(self, queue: str, keys: Sequence[str], now: int) -> list[tuple[int, str] | None]:
        number = self._queue(queue)
        return [self._db.execute(sql.KEY_HOLDER, (number, key, now)).fetchone() for key in keys]

    def hold_keys(self, queue: str, holders: Mapping[str, tuple[int, str]], until: int) -> None:
        number = self._made_queue(queue)
        rows = [(number, key, until, seq, id) for key, (seq, id) in holders.items()]
        self._db.executemany(sql.HOLD_KEY, rows)

    def free_keys(self, queue: str, keys: Sequence[str]) -> None:
        number = self._queue(queue)
        self._db.executemany(sql.FREE_KEY, [(number, key) for key in keys])

    # -- reading --------------------------------------------------------------------------------------------------

    def heads(self, queue: str, limit: int, target: int = 0) -> list[tuple[Message, Envelope]]:
        number = self._queue(queue)
        if number is None:
            return []
        try:
            found = [sql.head_of(row, queue) for row in self._db.execute(sql.HEADS, (number, limit, 0))]
            if target and self._value(sql.HAS_TARGET, number, target):
                own = [sql.head_of(row, queue) for row in self._db.execute(sql.HEADS, (number, limit, target))]
                self._runs = {}
                return sorted(found + own, key=lambda head: (head[0].rank, head[0].place))[:limit]
        except UnicodeDecodeError:
            if not sum(self._bury_unreadable(number, one, limit) for one in {0, target}):
                raise
            return self.heads(queue, limit, target)
        self._runs = {(number, rank): places for rank, places in by_rank([message for message, _ in found]).items()}
        return found

    def _bury_unreadable(self, queue: int, target: int, limit: int) -> int:
        """Those next in line that cannot be read, or they would hold up all behind them; how many."""
        found = list(unreadable.unreadable(self._db, unreadable.HEADS, (queue, target, limit)))
        deltas = self._deltas_of(queue)
        for sent in found:
            unreadable.bury(self._db, sent)
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
            self.swap([Change(first, decide.free(first, 0, first.changed_at))])

    def group_first(self, queue: str, groups: Sequence[int]) -> list[Message | None]:
        number = self._queue(queue)
        firsts = [self._value(sql.GROUP_FIRST, number, group) for group in groups]
        return self.by_seq([seq or 0 for seq in firsts])

    def by_seq(self, seqs: Sequence[int]) -> list[Message | None]:
        if not seqs:
            return []
        leased = self._known.leased
        missing = [seq for seq in seqs if seq not in leased]
        if not missing:
            return [leased[seq] for seq in seqs]
        which, bindings = sql.among(missing)
        found = {row[0]: self._message(row) for row in self._db.execute(sql.LIFE_BY_SEQS + which, bindings)}
        return [leased.get(seq) or found.get(seq) or self._ready_by_seq(seq) for seq in seqs]

    def _ready_by_seq(self, seq: int) -> Message | None:
        row = self._db.execute("SELECT queue, id FROM message WHERE seq = ?", (seq,)).fetchone()
        return self._ready_by_name(row[0], row[1]) if row else None

    def by_id(self, queue: str, ids: Sequence[str]) -> list[Message | None]:
        number = self._queue(queue)
        if number is None:
            return [None] * len(ids)
        return [self._by_name(number, id) for id in ids]

    def _by_name(self, queue: int, id: str) -> Message | None:
        seq = self._value("SELECT seq FROM name WHERE queue = ? AND id = ?", queue, id)
        if seq is None:
            return None
        row = self._db.execute(sql.LIFE_BY_SEQ, (seq,)).fetchone()
        return self._message(row) if row else self._ready_by_name(queue, id)

    def _ready_by_name(self, queue: int, id: str) -> Message | None:
        row = self._db.execute(sql.READY_BY_NAME, (queue, id)).fetchone()
        return self._message(row) if row else None

    def envelopes(self, messages: Sequence[Message]) -> list[Envelope | None]:
        return [self._envelope(message.queue, message.seq) for message in messages]

    def _envelope(self, queue: str, seq: int) -> Envelope | None:
        try:
            row = self._db.execute(sql.ENVELOPE, (seq,)).fetchone()
        except UnicodeDecodeError:
            return unreadable.envelope_as_bytes(self._db, queue, seq)
        return sql.envelope_of(queue, *row) if row else None

    def failures(self, messages: Sequence[Message]) -> list[Failure | None]:
        rows = [self._db.execute(sql.FAILURE, (message.seq,)).fetchone() for message in messages]
        return [Failure(*row) if row else None for row in rows]

    def scan(self, queue: str, state: State, limit: int, cursor: str = "") -> Page:
        number = self._queue(queue)
        if number is None:
            return Page([], "")
        if state is State.READY:
            rows = self._db.execute(sql.SCAN_READY, (number, *sql.read_cursor(cursor, 3), limit))
            found = [self._message(row) for row in rows]
            return sql.page_of(found, limit, lambda last: (last.target, last.rank, last.place))
        low, high = sql.read_cursor(cursor)
        if state in (State.DEAD, State.PARKED):
            rows = self._db.execute(sql.SCAN_DEAD, (number, state.value, low, high, limit))
            return sql.page_of([self._message(row) for row in rows], limit, lambda last: (last.changed_at, last.seq))
        rows = self._db.execute(sql.SCAN_LIFE, (number, state.value, high, limit))
        return sql.page_of([self._message(row) for row in rows], limit, lambda last: (0, last.seq))

    # -- changing -------------------------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> None:
        """Sort the changes by kind, then one statement for all of a kind."""
        kinds = by_kind(changes)
        # Places are left before they are taken, also across kinds.
        for kind, alike in kinds.items():
            if kind[1] is State.READY:
                self._leave_line(self._made_queue(kind[0]), alike)
        for kind, alike in kinds.items():
            self._swap_alike(self._made_queue(kind[0]), kind[1], kind[3], alike)
            self._count_changes(*kind, len(alike))
            self._weigh(kind, alike)
            self._remember(kind[1], kind[3], alike)
        if any(after[15] for _, after, _ in changes):
            self._regroup(changes)

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

    def _leave_line(self, queue: int, changes: list[Change]) -> None:
        """Take messages out of line: a whole run as ``heads`` found it in one go, others one by one."""
        anyones = [before for before, _, _ in changes if not before[16]]
        for rank, places in by_rank(anyones).items():
            if places == self._runs.pop((queue, rank), None):
                self._db.execute(sql.END_READY_RUN, (queue, rank, places[0], places[-1]))
            else:
                self._db.executemany(sql.END_READY, [(queue, 0, rank, place) for place in places])
        if len(anyones) < len(changes):
            others = [(queue, before[16], before[4], before[5]) for before, _, _ in changes if before[16]]
            self._db.executemany(sql.END_READY, others)

    def _settle(self, changes: list[Change]) -> None:
        """The commonest changes, leased to done and done to remembered, alike for all acknowledged together."""
        together: dict[tuple[int, int, bool], list[int]] = {}
        for _, after, _ in changes:
            together.setdefault((after[8], after[10], after[14]), []).append(after[0])
        for (due_at, changed_at, body), seqs in together.items():
            which, bindings = sql.among(seqs)
            self._db.execute(sql.SETTLE_LIFE + which, (due_at, changed_at, body, *bindings))
            if not body:
                self._db.execute(sql.END_MESSAGES + which, bindings)

    def _swap_alike(self, queue: int, old: State, new: State, changes: list[Change]) -> None:
        """Changes of one queue, all from one state to another."""
        if new is State.DONE and old in (State.LEASED, State.DONE):
            self._settle(changes)
            return
        many = self._db.executemany
        rows = [(after[0], queue, *after[2:]) for _, after, _ in changes]
        if new is State.READY:
            self._runs.clear()  # this one may stand inside a run
            if old is not State.READY:
                many(sql.END_LIFE, [row[:1] for row in rows])
            many(sql.INSERT_READY, rows)
            many(sql.MOVE_NAME, [(row[5], queue, row[2]) for row in rows])
        else:
            many(sql.INSERT_LIFE if old is State.READY else sql.UPDATE_LIFE, rows)
        before, after, failure = changes[0]
        if before.body and not after.body:
            many(sql.END_MESSAGE, [row[:1] for row in rows])
        if failure is not None:
            many(sql.SET_FAILURE, [(after[0], *failure) for _, after, failure in changes if failure is not None])

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

    def forget(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        for message in messages:
            self._known.leased.pop(message.seq, None)
        for message in messages:
            if is_counted(message.state, message.body):
                self._deltas_of(self._made_queue(message.queue))[message.state] -= 1
            if message.state in WAITING:
                self._deltas_of(self._made_queue(message.queue))["bytes"] -= message.size
                if message.group:
                    line = (self._made_queue(message.queue), message.group, message.place)
                    self._db.execute(sql.LEAVE_GROUP, line)
        which, bindings = sql.among([message.seq for message in messages])
        self._db.execute(sql.END_LIVES + which, bindings)
        if any(message.body for message in messages):
            self._db.execute(sql.END_MESSAGES + which, bindings)
        self._db.execute(sql.END_FAILURES + which, bindings)  # a redriven message has no reason, but still its failure
        ready = [(self._made_queue(m.queue), m.target, m.rank, m.place) for m in messages if m.state is State.READY]
        self._db.executemany(sql.END_READY, ready)
        self._db.executemany(sql.END_NAME, [(self._made_queue(m.queue), m.id) for m in messages])

    # -- time -----------------------------------------------------------------------------------------------------

    def due(self, now: int, limit: int) -> list[Message]:
        found = [self._message(row) for row in self._db.execute(sql.DUE, (now, limit))]
        aged = [self._message(row) for row in self._db.execute(sql.AGED, (now, limit))]
        if aged:
            found = sorted(found + aged, key=lambda message: (message.due_at, message.seq))
        return found[:limit]

    def next_due(self) -> int | None:
        first = self._value("SELECT min(due_at) FROM life WHERE due_at > 0")
        second = self._value("SELECT min(expires_at) FROM ready WHERE expires_at > 0")
        return min((moment for moment in (first, second) if moment is not None), default=None)

    def forget_keys(self, now: int, limit: int) -> int:
        self._db.execute(
            "DELETE FROM dedup WHERE (queue, key) IN (SELECT queue, key FROM dedup WHERE until <= ? LIMIT ?)",
            (now, limit),
        )
        return self._db.changes()

    def trim(self, limit: int) -> int:
        total = 0
        for number, name in list(self._db.execute("SELECT n, name FROM queue WHERE done > 0")):
            policy = self.policy(name)
            over = min(self.counts(name).done - policy.archive.max_messages, limit - total)
            if over > 0:
                seqs = [row[0] for row in self._db.execute(sql.OLDEST_DONE, (number, over))]
                which, bindings = sql.among(seqs)
                self._db.execute(sql.REMEMBER_LIFE + which, (policy.tombstone_ms, *bindings))
                self._db.execute(sql.END_MESSAGES + which, bindings)
                self._deltas_of(number)["done"] -= over
                total += over
        return total
