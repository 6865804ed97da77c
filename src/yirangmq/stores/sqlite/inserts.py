"""Inserts of the SQLite transaction: publishing and deduplication keys.

``add`` inserts a batch without a lookup. After a constraint violation it deletes the rows again and looks up each id
and key. A single plain message is looked up first, because its inserts are deferred and must not fail."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count, repeat
from operator import itemgetter
from typing import Any

import apsw

from yirangmq.core.message import Envelope, id_of, total_size
from yirangmq.core.ports import AddResult, new_add_result
from yirangmq.stores.sqlite import sql, statements
from yirangmq.stores.sqlite.cache import MAX_CACHED_QUEUES
from yirangmq.stores.sqlite.payloads import pack_payloads, unpacked_payloads
from yirangmq.stores.sqlite.tables import Tables

_SHARED = ("rank", "published_at", "available_at", "expires_at", "dedup_key", "header", "group", "target")
"""The fields of an envelope that many messages share."""
_kind_of = itemgetter(*map(Envelope._fields.index, _SHARED))
Kinds = set[tuple[Any, ...]]


class MessageInserts:
    """Publishing and deduplication keys inside a transaction."""

    def __init__(self, tables: Tables) -> None:
        self._db, self._cache, self._queues, self._contents, self._runs = tables
        self.on_add: Callable[[], None] | None = None
        """Called before messages are added, if the store has a reserve that may be in use."""
        self.has_added = False
        """True if the transaction was to add messages."""
        self.written = 0
        """Bytes of payloads and headers that the transaction published."""

    # -- adding ---------------------------------------------------------------------------------------------------

    def add(
        self, envelopes: Sequence[Envelope], now: int, dedup_until: int, draft_until: int | None = None
    ) -> list[AddResult]:
        if not envelopes:
            return []
        self.has_added = True
        if self.on_add is not None:
            self.on_add()
        queue = self._queues.ensure(envelopes[0].queue)
        if len(envelopes) == 1 and draft_until is None:
            _, _, _, _, available, expires, key, _, _, _, group, target = envelopes[0]
            if key is None and available <= now and not (expires or group or target):
                return [self._add_plain(queue, envelopes[0])]
        kinds = set(map(_kind_of, envelopes))
        if any(key is not None for _, _, _, _, key, _, _, _ in kinds):
            return self._add_checked(queue, envelopes, now, dedup_until, draft_until)
        first = self._queues.places(len(envelopes))
        try:
            self._insert(queue, envelopes, kinds, first, now, draft_until)
        except apsw.ConstraintError:
            self._db.execute(statements.UNDO_MESSAGES, (first,))
            self._db.execute(statements.UNDO_CONTENT, (first,))
            return self._add_checked(queue, envelopes, now, dedup_until, draft_until)
        return [*map(new_add_result, zip(count(first), map(id_of, envelopes), repeat(False), repeat("")))]

    def _add_plain(self, queue: int, envelope: Envelope) -> AddResult:
        """Add one message that is ready immediately and has no target. Looking up its id is cheaper than a failed
        insert, and it allows the inserts to be deferred."""
        _, id, rank, published, available, _, _, header, payload, is_json, _, _ = envelope
        known = None if self._is_newest(queue, id) else self._known_id(queue, id)
        if known is not None:
            return known
        seq = self._queues.places(1)
        column = payload.decode() if is_json else payload
        row = (seq, queue, id, rank, published, available, 0, None, header, column, 0, 0)
        self._db.execute(statements.INSERT_MESSAGE, row)
        self._db.execute(statements.NAME_ONE, (queue, id, seq, seq))
        size = len(payload) + len(header)
        self.written += size
        self._add_ready_run(queue, (envelope,), seq, size)
        return new_add_result((seq, id, False, ""))

    def _insert(
        self,
        queue: int,
        envelopes: Sequence[Envelope],
        kinds: Kinds,
        first: int,
        now: int,
        draft_until: int | None,
    ) -> None:
        """Insert messages with consecutive numbers from ``first``. SQLite fills the narrow tables from the rows of
        ``message``."""
        number, size = len(envelopes), total_size(envelopes)
        self.written += size
        is_plain = draft_until is None and _is_plain(kinds, now)
        if is_plain and number > 1:
            column, contents = pack_payloads(first, envelopes)
            self._insert_messages(queue, envelopes, first, column, kinds)
            self._contents.add(contents)
        else:
            self._db.executemany(
                statements.INSERT_MESSAGE, sql.message_rows(first, queue, envelopes, unpacked_payloads(envelopes))
            )
        last = first + number - 1
        self._db.execute(statements.NAME_NEW, (first, last))
        self._cache.forget_newest(queue)
        if is_plain:
            self._add_ready_run(queue, envelopes, first, size)
            return
        deltas = self._queues.deltas_of(queue)
        if draft_until is not None:
            self._db.execute(statements.DRAFT_NEW, (first, last, draft_until))
            deltas["draft"] += number
            self._cache.add_drafts(first, envelopes, draft_until)
            return
        ready = self._insert_new_rows(first, last, now)
        deltas["published"] += number
        deltas["ready"] += ready
        deltas["delayed"] += number - ready
        deltas["bytes"] += size

    def _add_ready_run(self, queue: int, envelopes: Sequence[Envelope], first: int, size: int) -> None:
        """Add messages to the ready runs as one run."""
        number = len(envelopes)
        self._cache.recent_payloads.add(first, envelopes, size)
        self._runs.add_ready(queue, envelopes[0].rank, first, first + number - 1)
        deltas = self._queues.deltas_of(queue)
        deltas["published"] += number
        deltas["ready"] += number
        deltas["bytes"] += size

    def _insert_messages(
        self, queue: int, envelopes: Sequence[Envelope], first: int, column: Sequence[Any], kinds: Kinds
    ) -> None:
        """Insert rows of ``message``. Usually all differ only in id and payload: then one statement inserts many rows,
        which takes half the time."""
        done = 0
        [(rank, published, available, _, key, header, _, _), *others] = kinds
        if key is None and not others:
            shared = queue, rank, published, available, header
            differing = [*zip(map(id_of, envelopes), column, strict=True)]
            for many in statements.INSERT_MANY:
                while len(envelopes) - done >= many:
                    each = chain.from_iterable(differing[done : done + many])
                    self._db.execute(statements.INSERT_MANY[many], (first + done, *shared, *each))
                    done += many
        if done < len(envelopes):
            rows = sql.message_rows(first + done, queue, envelopes[done:], column[done:])
            self._db.executemany(statements.INSERT_MESSAGE, rows)

    def _insert_new_rows(self, first: int, last: int, now: int) -> int:
        """Insert a single row into ``ready`` or ``life`` for each message. Return the number of ready messages."""
        self._cache.forget_due()
        self._db.execute(statements.MEMBERS_NEW, (first, last))
        self._db.execute(statements.READY_NEW, (first, last, now))
        ready = self._db.changes()
        if ready <= last - first:
            self._db.execute(statements.DELAY_NEW, (first, last, now))
        return ready

    def _add_checked(
        self, queue: int, envelopes: Sequence[Envelope], now: int, dedup_until: int, draft_until: int | None
    ) -> list[AddResult]:
        """Add messages after a lookup of each id and key, in the store and within the batch."""
        first = self._queues.places(len(envelopes))
        accepted: list[Envelope] = []
        results: list[AddResult] = []
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
            results.append(AddResult(seq, envelope.id, False))
        if accepted:
            self._insert(queue, accepted, set(map(_kind_of, accepted)), first, now, draft_until)
        rows = [(queue, key, dedup_until, seq, id) for key, (seq, id) in keys.items()]
        self._db.executemany(statements.HOLD_KEY, rows)
        return results

    def _known_one(
        self, queue: int, envelope: Envelope, now: int, ids: dict[str, int], keys: dict[str, tuple[int, str]]
    ) -> AddResult | None:
        """Return the message that already has this id or deduplication key, or None."""
        id, key = envelope.id, envelope.dedup_key
        known = AddResult(ids[id], id, True) if id in ids else self._known_id(queue, id)
        if known is not None or key is None:
            return known
        if key in keys:
            return AddResult(*keys[key], True)
        found = self._db.execute(sql.KEY_HOLDER, (queue, key, now)).fetchone()
        return AddResult(found[0], found[1], True) if found else None

    def _is_newest(self, queue: int, id: str) -> bool:
        """Return True if the id is greater than every id of the queue, so that no message has it. Ids are usually
        created in order, so this saves a lookup."""
        newest = self._cache.newest
        if queue not in newest:
            if len(newest) >= MAX_CACHED_QUEUES:
                newest.clear()
            try:
                newest[queue] = self._queues.value(sql.NEWEST_ID, queue) or ""
            except UnicodeDecodeError:  # damaged file: the error is reported when the message is leased
                return False
        is_so = id > newest[queue]
        if is_so:
            newest[queue] = id
        return is_so

    def _known_id(self, queue: int, id: str) -> AddResult | None:
        row = self._db.execute(sql.SEQ_BY_NAME, (queue, id)).fetchone()
        return None if row is None else AddResult(row[0], id, True)

    def key_holders(self, queue: str, keys: Sequence[str], now: int) -> list[tuple[int, str] | None]:
        number = self._queues.number(queue)
        return [self._db.execute(sql.KEY_HOLDER, (number, key, now)).fetchone() for key in keys]

    def hold_keys(self, queue: str, holders: Mapping[str, tuple[int, str]], until: int) -> None:
        number = self._queues.ensure(queue)
        rows = [(number, key, until, seq, id) for key, (seq, id) in holders.items()]
        self._db.executemany(statements.HOLD_KEY, rows)

    def free_keys(self, queue: str, keys: Sequence[str]) -> None:
        number = self._queues.number(queue)
        self._db.executemany(statements.FREE_KEY, [(number, key) for key in keys])

    def forget_keys(self, now: int, limit: int) -> int:
        self._db.execute(statements.FORGET_KEYS, (now, limit))
        return self._db.changes()


def _is_plain(kinds: Kinds, now: int) -> bool:
    """Return True if messages can be one ready run: the same rank, ready now, without expiry, group and target."""
    is_at_once = all(
        available <= now and not (expires or group or target) for _, _, available, expires, _, _, group, target in kinds
    )
    return is_at_once and len({rank for rank, _, _, _, _, _, _, _ in kinds}) == 1
