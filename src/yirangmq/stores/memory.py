"""In-memory store: the reference implementation of the store port, for tests.

``MemoryState`` is the committed data. It outlives the stores opened on it, as a file outlives a process. One lock
serialises all transactions.

``MemoryUndoLog`` is the undo log: each change records its inverse, and a failed transaction applies the inverses
backwards. ``MemoryTransaction`` changes messages in one place, so the ready lists, the groups and the timer list follow
them. It prefers simple to fast: the contract tests hold every other store to the same behaviour. ``stores.etcd.state``
extends these classes."""

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from yirangmq.core import transitions, validation
from yirangmq.core.errors import BadInput, StoreError
from yirangmq.core.message import Counts, Envelope, Message, MessageFailure, sum_of
from yirangmq.core.policy import QueuePolicy, read_policy
from yirangmq.core.ports import AddResult, Change, CheckProgress, Finding, Page, no_progress
from yirangmq.core.states import UNFINISHED, State
from yirangmq.format.json_codec import loads

# -- committed state and undo log --------------------------------------------------------------------------------------

ABSENT: Any = object()


class MemoryState:
    """Committed data of a memory store. Several stores can be open on it; ``lock`` serialises their transactions."""

    def __init__(self) -> None:
        self.numbers = {"last": 0}
        self.policies: dict[str, str | None] = {}
        self.counts: dict[str, Counts] = {}
        self.messages: dict[int, Message] = {}
        self.envelopes: dict[int, Envelope] = {}
        self.failures: dict[int, MessageFailure] = {}
        self.names: dict[tuple[str, str], int] = {}
        self.keys: dict[tuple[str, str], tuple[int, int, str]] = {}
        """Deduplication keys: (queue, key) to (until, seq, id)."""
        self.lines: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        """Ready lists: (queue, target) to its ready messages as (rank, place, seq), sorted."""
        self.groups: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """Groups: (queue, group) to its unfinished messages as (place, seq), sorted."""
        self.due: list[tuple[int, int]] = []
        """Timer list: (due_at, seq) of every message with a due time, sorted."""
        self.notes: dict[str, str] = {}
        self.lock = threading.Lock()
        self.condition = threading.Condition()
        self.version = 0


class MemoryUndoLog:
    """Undo log of a transaction: applies changes, records their inverses, and undoes them in reverse order."""

    def __init__(self) -> None:
        self._inverses: list[Callable[[], object]] = []

    @property
    def has_changed(self) -> bool:
        return bool(self._inverses)

    def undo(self) -> None:
        while self._inverses:
            self._inverses.pop()()

    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        old = table.get(key, ABSENT)
        self._inverses.append(lambda: _set(table, key, old))
        _set(table, key, value)

    def remove(self, table: dict[Any, Any], key: Any) -> None:
        if key in table:
            self.put(table, key, ABSENT)

    def insert_sorted(self, entries: list[Any], entry: tuple[int, ...]) -> None:
        """Insert an entry into a sorted list."""
        insort(entries, entry)
        self._inverses.append(lambda: _remove_sorted(entries, entry))

    def remove_sorted(self, entries: list[Any], entry: tuple[int, ...]) -> None:
        """Remove an entry from a sorted list."""
        _remove_sorted(entries, entry)
        self._inverses.append(lambda: insort(entries, entry))


def _set(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is ABSENT:
        table.pop(key, None)
    else:
        table[key] = value


def _remove_sorted(entries: list[Any], entry: tuple[int, ...]) -> None:
    at = bisect_left(entries, entry)
    if entries[at : at + 1] != [entry]:
        raise LookupError(f"{entry} is not ready")
    del entries[at]


# -- transaction -------------------------------------------------------------------------------------------------------

_NEVER = 2**63


class MemoryTransaction:
    """Transaction on a ``MemoryState``; ``core.ports.Transaction`` specifies each method."""

    def __init__(self, state: MemoryState, edit: MemoryUndoLog) -> None:
        self._state = state
        self._edit = edit

    # -- messages -------------------------------------------------------------------------------------------------

    def _set_message(self, message: Message) -> None:
        """Add or replace a message.

        All changes of messages go through here, so the ready list, group and timer list follow them."""
        self._remove_message(message.seq)
        self._edit.put(self._state.messages, message.seq, message)
        if message.state is State.READY:
            self._edit.insert_sorted(self._ready_list(message), (message.rank, message.place, message.seq))
        if message.group and message.state in UNFINISHED:
            self._edit.insert_sorted(self._group(message), (message.place, message.seq))
        if message.due_at:
            self._edit.insert_sorted(self._state.due, (message.due_at, message.seq))

    def _remove_message(self, seq: int) -> None:
        old = self._state.messages.get(seq)
        if old is None:
            return
        self._edit.remove(self._state.messages, seq)
        if old.state is State.READY:
            self._edit.remove_sorted(self._ready_list(old), (old.rank, old.place, old.seq))
        if old.group and old.state in UNFINISHED:
            self._edit.remove_sorted(self._group(old), (old.place, old.seq))
        if old.due_at:
            self._edit.remove_sorted(self._state.due, (old.due_at, old.seq))

    def _ready_list(self, message: Message) -> list[tuple[int, int, int]]:
        return self._state.lines.setdefault((message.queue, message.target), [])

    def _group(self, message: Message) -> list[tuple[int, int]]:
        return self._state.groups.setdefault((message.queue, message.group), [])

    def _count(self, queue: str, **deltas: int) -> None:
        counts = self._state.counts[queue]
        changed = {name: getattr(counts, name) + delta for name, delta in deltas.items()}
        self._edit.put(self._state.counts, queue, counts._replace(**changed))

    def places(self, count: int) -> int:
        last = self._state.numbers["last"]
        self._edit.put(self._state.numbers, "last", last + count)
        return last + 1

    # -- policies and queues --------------------------------------------------------------------------------------

    def policy(self, queue: str) -> QueuePolicy:
        return _read_policy(self.policy_text(queue), queue)

    def policy_text(self, queue: str) -> str | None:
        return self._state.policies.get(queue)

    def set_policy(self, queue: str, text: str | None) -> None:
        self._make_queue(queue)
        self._edit.put(self._state.policies, queue, text)

    def queues(self, after: str = "", limit: int | None = None, prefix: str = "") -> list[str]:
        known = self._state.counts
        chosen = [name for name in known if name > after and name.startswith(prefix)] if after or prefix else known
        return sorted(chosen)[:limit]

    def queue_count(self) -> int:
        return len(self._state.counts)

    def has_queue(self, queue: str) -> bool:
        return queue in self._state.counts

    def queues_with_policy(self) -> list[str]:
        return sorted(queue for queue, text in self._state.policies.items() if text is not None)

    def counts(self, queue: str) -> Counts:
        return self._state.counts.get(queue, Counts())

    def totals(self) -> Counts:
        return sum_of(self._state.counts.values())

    def recount(self, queue: str) -> Counts:
        """Compute the counters: those per state from the messages. Cumulative ones are kept unchanged."""
        found = dict.fromkeys((state.value for state in State if state is not State.DROPPED), 0)
        found["bytes"] = sum(_weight(message) for message in self._messages_of(queue))
        for message in self._messages_of(queue):
            if _is_counted(message):
                found[message.state.value] += 1
        return self.counts(queue)._replace(**found)

    def run_operations(self) -> None:
        """Return None: this store has no runs, each message is changed separately."""

    def delete_queue(self, queue: str) -> None:
        self._forget(self._messages_of(queue))
        for key in [key for key in self._state.keys if key[0] == queue]:
            self._edit.remove(self._state.keys, key)
        self._edit.remove(self._state.policies, queue)
        self._edit.remove(self._state.counts, queue)

    def note(self, key: str) -> str | None:
        return self._state.notes.get(key)

    def notes(self, prefix: str) -> dict[str, str]:
        return dict(sorted(item for item in self._state.notes.items() if item[0].startswith(prefix)))

    def set_note(self, key: str, text: str | None) -> None:
        validation.check_note(key)
        if text is None:
            self._edit.remove(self._state.notes, key)
        else:
            self._edit.put(self._state.notes, key, text)

    def _make_queue(self, queue: str) -> None:
        if queue not in self._state.counts:
            self._edit.put(self._state.counts, queue, Counts())

    def _messages_of(self, queue: str) -> list[Message]:
        return [message for message in self._state.messages.values() if message.queue == queue]

    # -- add ------------------------------------------------------------------------------------------------------

    def add(
        self, envelopes: Sequence[Envelope], now: int, dedup_until: int, draft_until: int | None = None
    ) -> list[AddResult]:
        return [self._add(envelope, now, dedup_until, draft_until) for envelope in envelopes]

    def _add(self, envelope: Envelope, now: int, dedup_until: int, draft_until: int | None) -> AddResult:
        self._make_queue(envelope.queue)
        known = self._find_duplicate(envelope, now)
        if known is not None:
            return known
        if draft_until is None:
            message = transitions.fresh(envelope, self.places(1), now)
        else:
            message = transitions.draft(envelope, self.places(1), draft_until, now)
        self._set_message(message)
        self._edit.put(self._state.envelopes, message.seq, envelope)
        self._edit.put(self._state.names, (message.queue, message.id), message.seq)
        if envelope.dedup_key is not None:
            self._edit.put(
                self._state.keys, (message.queue, envelope.dedup_key), (dedup_until, message.seq, message.id)
            )
        published = int(message.state is not State.DRAFT)
        self._count(message.queue, published=published, bytes=_weight(message), **{message.state.value: 1})
        return AddResult(message.seq, message.id, False)

    def _find_duplicate(self, envelope: Envelope, now: int) -> AddResult | None:
        seq = self._state.names.get((envelope.queue, envelope.id))
        if seq is not None:
            return AddResult(seq, envelope.id, True)
        if envelope.dedup_key is None:
            return None
        until, seq, id = self._state.keys.get((envelope.queue, envelope.dedup_key), (0, 0, ""))
        return AddResult(seq, id, True) if until > now else None

    # -- read -----------------------------------------------------------------------------------------------------

    def rewrite(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        for message, envelope in zip(messages, envelopes, strict=True):
            self._check_known(message)
            after = message._replace(size=envelope.size)
            self._set_message(after)
            self._edit.put(self._state.envelopes, message.seq, envelope)
            self._count(message.queue, bytes=_weight(after) - _weight(message))

    def heads(self, queue: str, limit: int, target: int = 0) -> list[tuple[Message, Envelope]]:
        found = self._state.lines.get((queue, 0), [])[:limit]
        if target:
            found = sorted(found + self._state.lines.get((queue, target), [])[:limit])[:limit]
        return [(self._state.messages[seq], self._state.envelopes[seq]) for _, _, seq in found]

    def group_first(self, queue: str, groups: Sequence[int]) -> list[Message | None]:
        lines = [self._state.groups.get((queue, group)) for group in groups]
        return [self._state.messages[entries[0][1]] if entries else None for entries in lines]

    def key_holders(self, queue: str, keys: Sequence[str], now: int) -> list[tuple[int, str] | None]:
        held = [self._state.keys.get((queue, key), (0, 0, "")) for key in keys]
        return [(seq, id) if until > now else None for until, seq, id in held]

    def hold_keys(self, queue: str, holders: Mapping[str, tuple[int, str]], until: int) -> None:
        for key, (seq, id) in holders.items():
            self._edit.put(self._state.keys, (queue, key), (until, seq, id))

    def free_keys(self, queue: str, keys: Sequence[str]) -> None:
        for key in keys:
            self._edit.remove(self._state.keys, (queue, key))

    def by_seq(self, seqs: Sequence[int]) -> list[Message | None]:
        return [self._state.messages.get(seq) for seq in seqs]

    def by_id(self, queue: str, ids: Sequence[str]) -> list[Message | None]:
        return self.by_seq([self._state.names.get((queue, id), 0) for id in ids])

    def envelopes(self, messages: Sequence[Message]) -> list[Envelope | None]:
        return [self._state.envelopes.get(message.seq) for message in messages]

    def failures(self, messages: Sequence[Message]) -> list[MessageFailure | None]:
        return [self._state.failures.get(message.seq) for message in messages]

    def scan(self, queue: str, state: State, limit: int, cursor: str = "") -> Page:
        after = read_cursor(cursor, state)
        found = sorted(
            (place, message)
            for message in self._messages_of(queue)
            if message.state is state and (place := scan_position(message)) > after
        )[:limit]
        last = ".".join(map(str, found[-1][0])) if len(found) == limit else ""
        return Page([message for _, message in found], last)

    # -- change ---------------------------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> None:
        for before, after, failure in changes:
            self._check_known(before)
            self._set_message(after)
            if not after.body:
                self._edit.remove(self._state.envelopes, after.seq)
            if failure is not None:
                self._edit.put(self._state.failures, after.seq, failure)
            self._count_change(before, after, failure)

    def _check_known(self, message: Message) -> None:
        if self._state.messages.get(message.seq) != message:
            raise StoreError(f"message {message.id} differs from the expected state of the change")

    def _count_change(self, before: Message, after: Message, failure: MessageFailure | None) -> None:
        if _is_counted(before):
            self._count(before.queue, **{before.state.value: -1})
        if _is_counted(after):
            self._count(after.queue, **{after.state.value: 1})
        was, now = before.state, after.state
        self._count(
            after.queue,
            acked=int(now is State.DONE and was is not State.DONE),
            dropped=int(now is State.DROPPED and was is not State.DROPPED),
            redriven=int(now is State.READY and was in (State.DEAD, State.PARKED)),
            failed=int(failure is not None),
            published=int(was is State.DRAFT and now is State.READY),
            bytes=_weight(after) - _weight(before),
        )

    def forget(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if _is_counted(message):
                self._count(message.queue, bytes=-_weight(message), **{message.state.value: -1})
        self._forget(messages)

    def _forget(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._remove_message(message.seq)
            self._edit.remove(self._state.envelopes, message.seq)
            self._edit.remove(self._state.failures, message.seq)
            self._edit.remove(self._state.names, (message.queue, message.id))

    # -- time -----------------------------------------------------------------------------------------------------

    def due(self, now: int, limit: int) -> list[Message]:
        end = bisect_right(self._state.due, (now, _NEVER))
        return [self._state.messages[seq] for _, seq in self._state.due[: min(end, limit)]]

    def next_due(self, before: int | None = None) -> int | None:
        moment = self._state.due[0][0] if self._state.due else None
        return None if moment is None or (before is not None and moment >= before) else moment

    def forget_keys(self, now: int, limit: int) -> int:
        over = [key for key, (until, _, _) in self._state.keys.items() if until <= now][:limit]
        for key in over:
            self._edit.remove(self._state.keys, key)
        return len(over)

    def trim(self, limit: int) -> int:
        surplus: list[Message] = []
        for queue in [queue for queue, counts in self._state.counts.items() if counts.done]:
            kept = [message for message in self._messages_of(queue) if message.state is State.DONE and message.body]
            over = len(kept) - self.policy(queue).archive.max_messages
            surplus.extend(sorted(kept, key=lambda message: (message.changed_at, message.seq))[: max(0, over)])
        del surplus[limit:]
        self.swap([Change(message, tombstone(message, self.policy(message.queue))) for message in surplus])
        return len(surplus)


def tombstone(message: Message, policy: QueuePolicy) -> Message:
    return message._replace(body=False, due_at=message.changed_at + policy.tombstone_ms)


@lru_cache(maxsize=1000)
def _read_policy(text: str | None, queue: str) -> QueuePolicy:
    return read_policy(loads(text.encode()) if text else {}, queue)


def _is_counted(message: Message) -> bool:
    """Check whether the message counts in its state; a tombstone (a done message without a body) does not."""
    return message.state is not State.DROPPED and (message.state is not State.DONE or message.body)


def _weight(message: Message) -> int:
    return message.size if message.state in UNFINISHED else 0


def scan_position(message: Message) -> tuple[int, ...]:
    match message.state:
        case State.READY:
            return message.target, message.rank, message.place
        case State.DEAD | State.PARKED:
            return message.changed_at, message.seq
        case _:
            return 0, message.seq


def read_cursor(cursor: str, state: State) -> tuple[int, ...]:
    if not cursor:
        return ()
    try:
        parts = tuple(map(int, cursor.split(".")))
    except ValueError:
        parts = ()
    if state is State.READY and len(parts) == 2:
        return 0, *parts
    if len(parts) != (3 if state is State.READY else 2):
        raise BadInput(f"{cursor!r} is not a cursor of this listing", field="cursor")
    return parts


# -- store -------------------------------------------------------------------------------------------------------------


class MemoryStore:
    """In-memory store (``core.ports.Store``) on a ``MemoryState``; several stores may share one state."""

    def __init__(self, state: MemoryState | None = None) -> None:
        self.state = MemoryState() if state is None else state
        self._seen = self.state.version
        self._closed = False

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[MemoryTransaction]:
        if self._closed:
            raise StoreError("the store is closed")
        with self.state.lock:
            edit = MemoryUndoLog()
            try:
                yield MemoryTransaction(self.state, edit)
                if edit.has_changed and not write:
                    raise StoreError("a read-only transaction has changed the store")
            except BaseException:
                edit.undo()
                raise
        if edit.has_changed:
            with self.state.condition:
                self.state.version += 1
                self.state.condition.notify_all()

    def wait(self, timeout: float) -> None:
        with self.state.condition:
            self.state.condition.wait_for(lambda: self.state.version != self._seen, timeout)
            self._seen = self.state.version

    def check(self, *, repair: bool, progress: CheckProgress = no_progress) -> Iterator[Finding]:
        """Recount the counters. No other damage is possible in memory."""
        with self.transaction() as work:
            findings = [
                Finding("counter", queue, f"counted {kept}, found {true}", is_repaired=repair)
                for queue, kept in self.state.counts.items()
                if kept != (true := work.recount(queue))
            ]
            if repair:
                for finding in findings:
                    self.state.counts[finding.where] = work.recount(finding.where)
        yield from findings

    def durability(self) -> str:
        return "none"

    def close(self) -> None:
        self._closed = True
