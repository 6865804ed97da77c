"""Messages in one SQLite file. One writing connection per process, short immediate transactions, WAL with full sync:
when ``transaction`` ends without an error, its changes are on disk. The schema is in ``schema/*.sql``."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from yirangmq.core.errors import BadInput
from yirangmq.core.message import Counts, Envelope, Failure, Message
from yirangmq.core.policy import QueuePolicy, read_policy
from yirangmq.core.ports import Change, Finding, Page, Stored
from yirangmq.core.states import State
from yirangmq.format.jsontext import dumps, loads
from yirangmq.stores.sqlite_open import open_connection, translated
from yirangmq.stores.watch import FileWatch

COUNTED = Counts._fields
LIFE = "seq, queue, id, state, rank, place, attempt, leases, due_at, expires_at, changed_at, consumer, reason, repeats, body"

_INSERT_MESSAGE = "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_NAME_THEM = "INSERT INTO name SELECT queue, id, seq, seq FROM message WHERE seq BETWEEN ? AND ?"
_READY_THEM = (
    "INSERT INTO ready SELECT queue, rank, seq, seq, 0, 0, expires_at, published_at, '', '', 0 "
    "FROM message WHERE seq BETWEEN ? AND ? AND available_at <= ?"
)
_DELAY_THEM = (
    f"INSERT INTO life ({LIFE}) SELECT seq, queue, id, 'delayed', rank, seq, 0, 0, "
    "CASE WHEN expires_at BETWEEN 1 AND available_at THEN expires_at ELSE available_at END, "
    "expires_at, published_at, '', '', 0, 1 FROM message WHERE seq BETWEEN ? AND ? AND available_at > ?"
)
_HEADS = (
    "SELECT r.seq, m.id, r.rank, r.place, r.attempt, r.leases, r.expires_at, r.changed_at, r.consumer, r.reason, r.repeats, "
    "m.published_at, m.available_at, m.dedup_key, m.header, m.payload "
    "FROM ready r CROSS JOIN message m ON m.seq = r.seq WHERE r.queue = ? ORDER BY r.rank, r.place LIMIT ?"
)
_INSERT_LIFE = f"INSERT INTO life ({LIFE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPDATE_LIFE = (
    "UPDATE life SET state = ?, attempt = ?, leases = ?, due_at = ?, expires_at = ?, changed_at = ?, consumer = ?, "
    "reason = ?, repeats = ?, body = ? WHERE seq = ?"
)
_INSERT_READY = "INSERT INTO ready VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_READY_COLUMNS = (
    "r.seq, n.id, r.rank, r.place, r.attempt, r.leases, r.expires_at, r.changed_at, r.consumer, r.reason, r.repeats"
)


class SqliteStore:
    """``core.ports.Store`` on one file."""

    def __init__(self, path: Path, *, durability: str = "full", busy_seconds: float = 30) -> None:
        self._path = path
        self._durability = durability
        with translated(None, path):
            self._db = open_connection(path, durability, busy_seconds)
        self._lock = threading.RLock()
        self._queues: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._policies: dict[str, tuple[str | None, QueuePolicy]] = {}
        self._watch = FileWatch([Path(f"{path}-wal")])

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator["SqliteTransaction"]:
        with self._lock, translated(self._db, self._path):
            self._db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                work = SqliteTransaction(self._db, self._queues, self._names, self._policies)
                yield work
                work.flush()
                self._db.execute("COMMIT")
            except BaseException:
                self._queues.clear()
                self._names.clear()
                self._policies.clear()
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def wait(self, timeout: float) -> None:
        self._watch.wait(timeout)

    def check(self, *, repair: bool) -> Iterator[Finding]:
        from yirangmq.stores.sqlite_check import check

        with self._lock:
            yield from check(self._db, self._path, repair=repair)

    def durability(self) -> str:
        return self._durability

    def close(self) -> None:
        with self._lock:
            self._watch.close()
            self._db.close()


class SqliteTransaction:
    """One batch; see ``core.ports.Transaction`` for what each method promises."""

    def __init__(
        self,
        db: apsw.Connection,
        queues: dict[str, int],
        names: dict[int, str],
        policies: dict[str, tuple[str | None, QueuePolicy]],
    ) -> None:
        self._db = db
        self._queues = queues
        self._names = names
        self._policies = policies
        self._deltas: dict[int, dict[str, int]] = {}
        self._last: int | None = None

    # -- numbers and names ----------------------------------------------------------------------------------------

    def places(self, count: int) -> int:
        if self._last is None:
            self._last = self._number("SELECT last FROM sequence")
        first = self._last + 1
        self._last += count
        return first

    def _queue(self, name: str) -> int | None:
        number = self._queues.get(name)
        if number is None:
            row = self._db.execute("SELECT n FROM queue WHERE name = ?", (name,)).fetchone()
            if row is None:
                return None
            number = self._queues[name] = row[0]
        return number

    def _made_queue(self, name: str) -> int:
        number = self._queue(name)
        if number is None:
            number = self._number("INSERT INTO queue (name) VALUES (?) RETURNING n", (name,))
            self._queues[name] = number
        return number

    def _queue_name(self, number: int) -> str:
        name = self._names.get(number)
        if name is None:
            row = self._db.execute("SELECT name FROM queue WHERE n = ?", (number,)).fetchone()
            name = self._names[number] = row[0]
        return name

    def _number(self, sql: str, bindings: tuple[Any, ...] = ()) -> int:
        return int(self._db.execute(sql, bindings).fetchone()[0])

    def _count(self, queue: int, **deltas: int) -> None:
        mine = self._deltas.get(queue)
        if mine is None:
            mine = self._deltas[queue] = defaultdict(int)
        for name, delta in deltas.items():
            mine[name] += delta

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
        text = self.policy_text(queue)
        known = self._policies.get(queue)
        if known is None or known[0] != text:
            known = self._policies[queue] = (text, read_policy(loads(text.encode()) if text else {}, queue))
        return known[1]

    def policy_text(self, queue: str) -> str | None:
        row = self._db.execute("SELECT policy FROM queue WHERE name = ?", (queue,)).fetchone()
        return row[0] if row else None

    def set_policy(self, queue: str, text: str | None) -> None:
        self._db.execute("UPDATE queue SET policy = ? WHERE n = ?", (text, self._made_queue(queue)))

    def queues(self) -> list[str]:
        return [row[0] for row in self._db.execute("SELECT name FROM queue ORDER BY name")]

    def counts(self, queue: str) -> Counts:
        row = self._db.execute(f"SELECT {', '.join(COUNTED)} FROM queue WHERE name = ?", (queue,)).fetchone()
        stored = Counts(*row) if row else Counts()
        number = self._queue(queue)
        pending = self._deltas.get(number, {}) if number is not None else {}
        return stored._replace(**{name: getattr(stored, name) + delta for name, delta in pending.items()})

    def delete_queue(self, queue: str) -> None:
        number = self._queue(queue)
        if number is None:
            return
        self._db.execute(
            "DELETE FROM failure WHERE seq IN (SELECT seq FROM life WHERE queue = ?1 "
            "UNION ALL SELECT seq FROM ready WHERE queue = ?1)",
            (number,),
        )
        for table in ("message", "name", "ready", "life", "dedup"):
            self._db.execute(f"DELETE FROM {table} WHERE queue = ?", (number,))
        self._db.execute("DELETE FROM queue WHERE n = ?", (number,))
        self._deltas.pop(number, None)
        self._queues.pop(queue, None)
        self._names.pop(number, None)
        self._policies.pop(queue, None)

    # -- adding ---------------------------------------------------------------------------------------------------

    def add(self, envelopes: Sequence[Envelope], now: int, dedup_until: int) -> list[Stored]:
        if not envelopes:
            return []
        queue = self._made_queue(envelopes[0].queue)
        if any(envelope.dedup_key is not None for envelope in envelopes):
            return self._add_checked(queue, envelopes, now, dedup_until)
        first = self.places(len(envelopes))
        try:
            self._insert(queue, envelopes, first, now)
        except apsw.ConstraintError:
            self._db.execute("DELETE FROM message WHERE seq >= ?", (first,))
            return self._add_checked(queue, envelopes, now, dedup_until)
        return [Stored(seq, envelope.id, False) for seq, envelope in enumerate(envelopes, first)]

    def _insert(self, queue: int, envelopes: Sequence[Envelope], first: int, now: int) -> None:
        """Rows of a contiguous run of numbers; the narrow tables are filled from them inside SQLite."""
        self._db.executemany(
            _INSERT_MESSAGE,
            [
                (
                    seq,
                    queue,
                    id,
                    rank,
                    published,
                    available,
                    expires,
                    key,
                    header,
                    payload.decode() if is_json else payload,
                )
                for seq, (_, id, rank, published, available, expires, key, header, payload, is_json) in enumerate(
                    envelopes, first
                )
            ],
        )
        last = first + len(envelopes) - 1
        self._db.execute(_NAME_THEM, (first, last))
        self._db.execute(_READY_THEM, (first, last, now))
        ready = self._db.changes()
        if ready < len(envelopes):
            self._db.execute(_DELAY_THEM, (first, last, now))
        self._count(queue, published=len(envelopes), ready=ready, delayed=len(envelopes) - ready)

    def _add_checked(self, queue: int, envelopes: Sequence[Envelope], now: int, dedup_until: int) -> list[Stored]:
        """The careful way: look each id and key up first, also within the batch."""
        first = self.places(len(envelopes))
        accepted: list[Envelope] = []
        results: list[Stored] = []
        ids: dict[str, int] = {}
        keys: dict[str, tuple[int, str]] = {}
        for envelope in envelopes:
            known = self._known(queue, envelope, now, ids, keys)
            if known is not None:
                results.append(known)
                continue
            seq = first + len(accepted)
            accepted.append(envelope)
            ids[envelope.id] = seq
            if envelope.dedup_key is not None:
                keys[envelope.dedup_key] = (seq, envelope.id)
            results.append(Stored(seq, envelope.id, False))
        if accepted:
            self._insert(queue, accepted, first, now)
        self._db.executemany(
            "INSERT OR REPLACE INTO dedup VALUES (?, ?, ?, ?, ?)",
            [(queue, key, dedup_until, seq, id) for key, (seq, id) in keys.items()],
        )
        return results

    def _known(
        self, queue: int, envelope: Envelope, now: int, ids: dict[str, int], keys: dict[str, tuple[int, str]]
    ) -> Stored | None:
        if envelope.id in ids:
            return Stored(ids[envelope.id], envelope.id, True)
        row = self._db.execute("SELECT seq FROM name WHERE queue = ? AND id = ?", (queue, envelope.id)).fetchone()
        if row is not None:
            return Stored(row[0], envelope.id, True)
        if envelope.dedup_key is None:
            return None
        if envelope.dedup_key in keys:
            return Stored(*keys[envelope.dedup_key], True)
        row = self._db.execute(
            "SELECT seq, id FROM dedup WHERE queue = ? AND key = ? AND until > ?", (queue, envelope.dedup_key, now)
        ).fetchone()
        return Stored(row[0], row[1], True) if row else None

    # -- reading --------------------------------------------------------------------------------------------------

    def heads(self, queue: str, limit: int) -> list[tuple[Message, Envelope]]:
        number = self._queue(queue)
        if number is None:
            return []
        ready = State.READY
        found = []
        for row in self._db.execute(_HEADS, (number, limit)):
            seq, id, rank, place, attempt, leases, expires, changed, consumer, reason, repeats, *sent = row
            published, available, key, header, payload = sent
            message = Message(
                seq,
                queue,
                id,
                ready,
                rank,
                place,
                attempt,
                leases,
                expires,
                expires,
                changed,
                consumer,
                reason,
                repeats,
                True,
            )
            found.append((message, _envelope(queue, id, rank, published, available, expires, key, header, payload)))
        return found

    def by_seq(self, seqs: Sequence[int]) -> list[Message | None]:
        rows = self._db.execute(
            f"SELECT {LIFE} FROM life WHERE seq IN (SELECT value FROM json_each(?))", (dumps(list(seqs)).decode(),)
        )
        found: dict[int, Message | None] = {row[0]: self._from_life(row) for row in rows}
        return [found[seq] if seq in found else self._ready_by_seq(seq) for seq in seqs]

    def _ready_by_seq(self, seq: int) -> Message | None:
        row = self._db.execute("SELECT queue, id FROM message WHERE seq = ?", (seq,)).fetchone()
        return self._ready_by_name(row[0], row[1]) if row else None

    def by_id(self, queue: str, ids: Sequence[str]) -> list[Message | None]:
        number = self._queue(queue)
        if number is None:
            return [None] * len(ids)
        return [self._by_name(number, id) for id in ids]

    def _by_name(self, queue: int, id: str) -> Message | None:
        columns = ", ".join(f"l.{name.strip()}" for name in LIFE.split(","))
        row = self._db.execute(
            f"SELECT {columns} FROM name n JOIN life l ON l.seq = n.seq WHERE n.queue = ? AND n.id = ?", (queue, id)
        ).fetchone()
        return self._from_life(row) if row else self._ready_by_name(queue, id)

    def _ready_by_name(self, queue: int, id: str) -> Message | None:
        row = self._db.execute(
            f"SELECT {_READY_COLUMNS} FROM name n JOIN message m ON m.seq = n.seq "
            "JOIN ready r ON r.queue = n.queue AND r.rank = m.rank AND r.place = n.place WHERE n.queue = ? AND n.id = ?",
            (queue, id),
        ).fetchone()
        return self._from_ready(queue, row) if row else None

    def _from_life(self, row: Sequence[Any]) -> Message:
        seq, queue, id, state, *rest, body = row
        return Message(seq, self._queue_name(queue), id, State(state), *rest, bool(body))

    def _from_ready(self, queue: int, row: Sequence[Any]) -> Message:
        seq, id, rank, place, attempt, leases, expires, changed, consumer, reason, repeats = row
        name = self._queue_name(queue)
        return Message(
            seq,
            name,
            id,
            State.READY,
            rank,
            place,
            attempt,
            leases,
            expires,
            expires,
            changed,
            consumer,
            reason,
            repeats,
            True,
        )

    def envelopes(self, messages: Sequence[Message]) -> list[Envelope | None]:
        found: list[Envelope | None] = []
        for message in messages:
            row = self._db.execute(
                "SELECT id, rank, published_at, available_at, expires_at, dedup_key, header, payload "
                "FROM message WHERE seq = ?",
                (message.seq,),
            ).fetchone()
            found.append(_envelope(message.queue, *row) if row else None)
        return found

    def failures(self, messages: Sequence[Message]) -> list[Failure | None]:
        found: list[Failure | None] = []
        for message in messages:
            row = self._db.execute(
                "SELECT reason_code, reason_message, failed_at, attempt, consumer FROM failure WHERE seq = ?",
                (message.seq,),
            ).fetchone()
            found.append(Failure(*row) if row else None)
        return found

    def scan(self, queue: str, state: State, limit: int, cursor: str = "") -> Page:
        number = self._queue(queue)
        if number is None:
            return Page([], "")
        low, high = _read_cursor(cursor)
        if state is State.READY:
            rows = self._db.execute(
                f"SELECT {_READY_COLUMNS.replace('n.id', 'm.id')} FROM ready r CROSS JOIN message m ON m.seq = r.seq "
                "WHERE r.queue = ? AND (r.rank, r.place) > (?, ?) ORDER BY r.rank, r.place LIMIT ?",
                (number, low, high, limit),
            )
            found = [self._from_ready(number, row) for row in rows]
            return _page(found, limit, lambda last: (last.rank, last.place))
        if state in (State.DEAD, State.PARKED):
            rows = self._db.execute(
                f"SELECT {LIFE} FROM life WHERE queue = ? AND state = ? AND state IN ('dead', 'parked') "
                "AND (changed_at, seq) > (?, ?) ORDER BY changed_at, seq LIMIT ?",
                (number, state.value, low, high, limit),
            )
            return _page([self._from_life(row) for row in rows], limit, lambda last: (last.changed_at, last.seq))
        rows = self._db.execute(
            f"SELECT {LIFE} FROM life WHERE queue = ? AND state = ? AND seq > ? ORDER BY seq LIMIT ?",
            (number, state.value, high, limit),
        )
        return _page([self._from_life(row) for row in rows], limit, lambda last: (0, last.seq))

    # -- changing -------------------------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> None:
        ready = State.READY
        leaving: list[tuple[int, int, int]] = []
        entering: list[tuple[Any, ...]] = []
        lives: list[tuple[Any, ...]] = []
        updates: list[tuple[Any, ...]] = []
        ended: list[tuple[int]] = []
        bodies: list[tuple[int]] = []
        places: list[tuple[int, int, str]] = []
        failures: list[tuple[Any, ...]] = []
        for before, after, failure in changes:
            queue = self._made_queue(after.queue)
            (
                seq,
                _,
                id,
                state,
                rank,
                place,
                attempt,
                leases,
                due_at,
                expires_at,
                changed_at,
                consumer,
                reason,
                repeats,
                body,
            ) = after
            if before.state is ready:
                leaving.append((queue, before.rank, before.place))
            if state is ready:
                if before.state is not ready:
                    ended.append((seq,))
                entering.append(
                    (queue, rank, place, seq, attempt, leases, expires_at, changed_at, consumer, reason, repeats)
                )
                if place != before.place:
                    places.append((place, queue, id))
            elif before.state is ready:
                lives.append(
                    (
                        seq,
                        queue,
                        id,
                        state.value,
                        rank,
                        place,
                        attempt,
                        leases,
                        due_at,
                        expires_at,
                        changed_at,
                        consumer,
                        reason,
                        repeats,
                        body,
                    )
                )
            else:
                updates.append(
                    (state.value, attempt, leases, due_at, expires_at, changed_at, consumer, reason, repeats, body, seq)
                )
            if before.body and not body:
                bodies.append((seq,))
            if failure is not None:
                failures.append((seq, *failure))
            self._count_change(queue, before, after, failure)
        many = self._db.executemany
        for sql, rows in (
            ("DELETE FROM ready WHERE queue = ? AND rank = ? AND place = ?", leaving),
            ("DELETE FROM life WHERE seq = ?", ended),
            (_INSERT_READY, entering),
            (_INSERT_LIFE, lives),
            (_UPDATE_LIFE, updates),
            ("UPDATE name SET place = ? WHERE queue = ? AND id = ?", places),
            ("DELETE FROM message WHERE seq = ?", bodies),
            ("INSERT OR REPLACE INTO failure VALUES (?, ?, ?, ?, ?, ?)", failures),
        ):
            if rows:
                many(sql, rows)  # type: ignore[arg-type]

    def _count_change(self, queue: int, before: Message, after: Message, failure: Failure | None) -> None:
        mine = self._deltas.get(queue)
        if mine is None:
            mine = self._deltas[queue] = defaultdict(int)
        old, new = before.state, after.state
        if old is not new or before.body != after.body:
            if old is not State.DROPPED and (old is not State.DONE or before.body):
                mine[old.value] -= 1
            if new is State.DROPPED:
                mine["dropped"] += 1
            elif new is not State.DONE or after.body:
                mine[new.value] += 1
        if new is State.DONE and old is not State.DONE:
            mine["acked"] += 1
        elif new is State.READY and (old is State.DEAD or old is State.PARKED):
            mine["redriven"] += 1
        if failure is not None:
            mine["failed"] += 1

    def forget(self, messages: Sequence[Message]) -> None:
        for message in messages:
            queue = self._made_queue(message.queue)
            if message.state is not State.DROPPED and (message.state is not State.DONE or message.body):
                self._count(queue, **{message.state.value: -1})
        seqs = [(message.seq,) for message in messages]
        self._db.executemany("DELETE FROM message WHERE seq = ?", seqs)
        self._db.executemany("DELETE FROM life WHERE seq = ?", seqs)
        self._db.executemany("DELETE FROM failure WHERE seq = ?", seqs)
        self._db.executemany(
            "DELETE FROM ready WHERE queue = ? AND rank = ? AND place = ?",
            [(self._made_queue(m.queue), m.rank, m.place) for m in messages if m.state is State.READY],
        )
        self._db.executemany(
            "DELETE FROM name WHERE queue = ? AND id = ?", [(self._made_queue(m.queue), m.id) for m in messages]
        )

    # -- time -----------------------------------------------------------------------------------------------------

    def due(self, now: int, limit: int) -> list[Message]:
        rows = self._db.execute(
            f"SELECT {LIFE} FROM life WHERE due_at > 0 AND due_at <= ? ORDER BY due_at LIMIT ?", (now, limit)
        )
        found = [self._from_life(row) for row in rows]
        if len(found) < limit:
            aged = self._db.execute(
                f"SELECT r.queue, {_READY_COLUMNS.replace('n.id', 'm.id')} FROM ready r JOIN message m ON m.seq = r.seq "
                "WHERE r.expires_at > 0 AND r.expires_at <= ? ORDER BY r.expires_at LIMIT ?",
                (now, limit - len(found)),
            )
            found.extend(self._from_ready(row[0], row[1:]) for row in aged)
        return found

    def next_due(self) -> int | None:
        first = self._db.execute("SELECT min(due_at) FROM life WHERE due_at > 0").fetchone()[0]
        second = self._db.execute("SELECT min(expires_at) FROM ready WHERE expires_at > 0").fetchone()[0]
        return min((moment for moment in (first, second) if moment is not None), default=None)

    def forget_keys(self, now: int, limit: int) -> int:
        self._db.execute(
            "DELETE FROM dedup WHERE (queue, key) IN (SELECT queue, key FROM dedup WHERE until <= ? LIMIT ?)",
            (now, limit),
        )
        return self._db.changes()

    def surplus(self, limit: int) -> list[Message]:
        found: list[Message] = []
        for number, name, done in list(self._db.execute("SELECT n, name, done FROM queue WHERE done > 0")):
            over = min(done - self.policy(name).archive.max_messages, limit - len(found))
            if over > 0:
                rows = self._db.execute(
                    f"SELECT {LIFE} FROM life WHERE queue = ? AND state = 'done' AND body = 1 ORDER BY changed_at LIMIT ?",
                    (number, over),
                )
                found.extend(self._from_life(row) for row in rows)
        return found


def _envelope(
    queue: str,
    id: str,
    rank: int,
    published: int,
    available: int,
    expires: int,
    key: str | None,
    header: str,
    payload: str | bytes,
) -> Envelope:
    if isinstance(payload, str):
        return Envelope(queue, id, rank, published, available, expires, key, header, payload.encode(), True)
    return Envelope(queue, id, rank, published, available, expires, key, header, payload, False)


def _read_cursor(cursor: str) -> tuple[int, int]:
    if not cursor:
        return -1, -1
    try:
        low, high = cursor.split(".")
        return int(low), int(high)
    except ValueError:
        raise BadInput(f"{cursor!r} is not a cursor of this listing", field="cursor") from None


def _page(found: list[Message], limit: int, place: Callable[[Message], tuple[int, int]]) -> Page:
    if len(found) < limit or not found:
        return Page(found, "")
    low, high = place(found[-1])
    return Page(found, f"{low}.{high}")
