"""State of an etcd store: its transaction in memory, and the mapping between memory and keys in etcd.

Keys below ``/yirangmq/NAME/``::

    m/ b/ f/    messages, envelopes and failures, by number
    k/          deduplication keys, by hash
    c/ p/       counters and policies, by queue
    n/          notes
    last        the last message number assigned

Derived data (ready lists, groups, timers, ids) is in memory only and rebuilt by ``read_state``.

``EtcdTransaction`` extends the memory store's transaction with two indexes. ``RecordingUndoLog`` records the changed
entries, and ``encode_changes`` encodes them as keys and values. No I/O here: ``stores.etcd.store`` sends them."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from yirangmq.core.errors import TooLarge
from yirangmq.core.message import Counts, Envelope, Message, MessageFailure, new_envelope
from yirangmq.core.ports import AddResult, Change, Page
from yirangmq.core.states import UNFINISHED, State
from yirangmq.format.json_codec import dumps, loads
from yirangmq.stores.memory import (
    ABSENT,
    MemoryState,
    MemoryTransaction,
    MemoryUndoLog,
    read_cursor,
    scan_position,
    tombstone,
)

_LAST = (2**63,)
MAX_PAYLOAD_BYTES = 1_310_720
"""Maximum payload size in bytes: 1.25 MiB. etcd accepts requests of 1.5 MiB, and the envelope is only a part of one."""


class EtcdState(MemoryState):
    """Memory state with two more indexes, because a server often reads the first few of many messages."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: dict[tuple[str, State], list[tuple[int, ...]]] = {}
        """(queue, state) to its messages in the order of ``scan``, sorted; the last member is the message number."""
        self.archived: dict[str, list[tuple[int, int]]] = {}
        """Queue to its done messages that still have a body, as (changed_at, seq), sorted."""


class RecordingUndoLog(MemoryUndoLog):
    """Undo log that also records each changed table entry with its value before the transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: dict[tuple[int, Any], tuple[dict[Any, Any], Any, Any]] = {}
        self.external_operations: list[Any] = []

    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        place = (id(table), key)
        if place not in self.touched:
            self.touched[place] = (table, key, table.get(key, ABSENT))
        super().put(table, key, value)


class EtcdTransaction(MemoryTransaction):
    """Memory transaction that also maintains the two indexes of ``EtcdState``, and limits payload sizes."""

    _state: EtcdState
    _edit: RecordingUndoLog

    def external_operations(self, operations: Sequence[Any]) -> None:
        """Add etcd operations on keys outside the store; they are committed atomically with this transaction."""
        self._edit.external_operations += operations

    def _set_message(self, message: Message) -> None:
        super()._set_message(message)
        self._edit.insert_sorted(self._listed(message), (*scan_position(message), message.seq))
        if message.state is State.DONE and message.body:
            self._edit.insert_sorted(self._archived(message.queue), (message.changed_at, message.seq))

    def _remove_message(self, seq: int) -> None:
        old = self._state.messages.get(seq)
        if old is not None:
            self._edit.remove_sorted(self._listed(old), (*scan_position(old), seq))
            if old.state is State.DONE and old.body:
                self._edit.remove_sorted(self._archived(old.queue), (old.changed_at, seq))
        super()._remove_message(seq)

    def _listed(self, message: Message) -> list[tuple[int, ...]]:
        return self._state.listed.setdefault((message.queue, message.state), [])

    def _archived(self, queue: str) -> list[tuple[int, int]]:
        return self._state.archived.setdefault(queue, [])

    def _messages_of(self, queue: str) -> list[Message]:
        lines = [self._state.listed.get((queue, state), ()) for state in State]
        return [self._state.messages[entry[-1]] for entries in lines for entry in entries]

    def add(
        self, envelopes: Sequence[Envelope], now: int, dedup_until: int, draft_until: int | None = None
    ) -> list[AddResult]:
        _check_sizes(envelopes)
        return super().add(envelopes, now, dedup_until, draft_until)

    def rewrite(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        _check_sizes(envelopes)
        super().rewrite(messages, envelopes)

    def scan(self, queue: str, state: State, limit: int, cursor: str = "") -> Page:
        after = read_cursor(cursor, state)
        entries = self._state.listed.get((queue, state), [])
        begin = bisect_right(entries, after + _LAST) if after else 0
        found = entries[begin : begin + limit]
        last = ".".join(map(str, found[-1][:-1])) if len(found) == limit and found else ""
        return Page([self._state.messages[entry[-1]] for entry in found], last)

    def set_counts(self, queue: str, counts: Counts) -> None:
        self._edit.put(self._state.counts, queue, counts)

    def trim(self, limit: int) -> int:
        surplus: list[Message] = []
        for queue, entries in self._state.archived.items():
            over = len(entries) - self.policy(queue).archive.max_messages if entries else 0
            surplus += [self._state.messages[seq] for _, seq in entries[: max(0, min(over, limit - len(surplus)))]]
        self.swap([Change(message, tombstone(message, self.policy(message.queue))) for message in surplus])
        return len(surplus)


def _check_sizes(envelopes: Sequence[Envelope]) -> None:
    for sent in envelopes:
        if sent.size > MAX_PAYLOAD_BYTES:
            text = f"a message in etcd may have {MAX_PAYLOAD_BYTES} bytes, not {sent.size}"
            raise TooLarge(f"{text}; keep large ones in files and send their names", field="payload")


# -- from memory to keys ----------------------------------------------------------------------------------------------


def encode_changes(
    state: EtcdState, edit: RecordingUndoLog
) -> tuple[dict[bytes, bytes | None], dict[bytes, bytes | None]]:
    """Encode the changes of a transaction as keys and values; None deletes a key.

    The second result has the envelopes of new messages, which are written before the commit."""
    writes: dict[bytes, bytes | None] = {}
    early: dict[bytes, bytes | None] = {}
    forms = _forms(state)
    for table, key, before in edit.touched.values():
        form = forms.get(id(table))
        after = table.get(key, ABSENT)
        if form is None or after is before or after == before:
            continue
        name, shown = form
        is_new_body = table is state.envelopes and before is ABSENT
        (early if is_new_body else writes)[name(key)] = None if after is ABSENT or after is None else shown(key, after)
    return writes, early


Form = tuple[Callable[[Any], bytes], Callable[[Any, Any], bytes]]


def _forms(state: EtcdState) -> dict[int, Form]:
    return {
        id(state.messages): (lambda seq: b"m/%020d" % seq, lambda _, message: dumps([*message])),
        id(state.envelopes): (lambda seq: b"b/%020d" % seq, lambda _, sent: _show_envelope(sent)),
        id(state.failures): (lambda seq: b"f/%020d" % seq, lambda _, failure: dumps([*failure])),
        id(state.keys): (_key_name, lambda key, held: dumps([*key, *held])),
        id(state.counts): (lambda queue: b"c/" + queue.encode(), lambda _, counts: dumps([*counts])),
        id(state.policies): (lambda queue: b"p/" + queue.encode(), lambda _, text: text.encode()),
        id(state.notes): (lambda key: b"n/" + key.encode(), lambda _, text: text.encode()),
        id(state.numbers): (lambda name: name.encode(), lambda _, number: b"%d" % number),
    }


def _key_name(key: tuple[str, str]) -> bytes:
    """Return the etcd key of a deduplication entry.

    It is a hash, because deduplication keys have any length and any characters. The value has the original key."""
    return b"k/" + blake2b("\0".join(key).encode(), digest_size=20).hexdigest().encode()


def _show_envelope(sent: Envelope) -> bytes:
    """Encode an envelope: one line of JSON, then the raw payload."""
    *before, payload, is_json, group, target = sent
    return dumps([*before, is_json, group, target]) + b"\n" + payload


# -- from keys to memory ----------------------------------------------------------------------------------------------


def read_state(found: Mapping[bytes, bytes]) -> tuple[EtcdState, list[bytes]]:
    """Build the state from all keys of the store.

    The second result lists orphaned envelope keys: they were written before a commit that did not succeed."""
    state = EtcdState()
    orphans: list[bytes] = []
    for key, value in found.items():
        kind, _, name = key.partition(b"/")
        _READERS.get(kind, _ignore)(state, name, value)
    for seq in [seq for seq in state.envelopes if seq not in state.messages or not state.messages[seq].body]:
        del state.envelopes[seq]
        orphans.append(b"b/%020d" % seq)
    _index(state)
    return state, orphans


def _index(state: EtcdState) -> None:
    for seq, message in state.messages.items():
        state.names[message.queue, message.id] = seq
        state.listed.setdefault((message.queue, message.state), []).append((*scan_position(message), seq))
        if message.state is State.READY:
            state.lines.setdefault((message.queue, message.target), []).append((message.rank, message.place, seq))
        if message.group and message.state in UNFINISHED:
            state.groups.setdefault((message.queue, message.group), []).append((message.place, seq))
        if message.due_at:
            state.due.append((message.due_at, seq))
        if message.state is State.DONE and message.body:
            state.archived.setdefault(message.queue, []).append((message.changed_at, seq))
    lines: Sequence[Any] = (state.listed, state.lines, state.groups, state.archived)
    for table in lines:
        for entries in table.values():
            entries.sort()
    state.due.sort()


def _read_message(state: EtcdState, name: bytes, value: bytes) -> None:
    seq, queue, id, word, *rest = loads(value)
    state.messages[seq] = Message(seq, queue, id, State(word), *rest)


def _read_envelope(state: EtcdState, name: bytes, value: bytes) -> None:
    head, _, payload = value.partition(b"\n")
    queue, id, rank, published, available, expires, dedup_key, header, *rest = loads(head)
    members = (queue, id, rank, published, available, expires, dedup_key, header, payload, *rest)
    state.envelopes[int(name)] = new_envelope(members)


def _read_failure(state: EtcdState, name: bytes, value: bytes) -> None:
    state.failures[int(name)] = MessageFailure(*loads(value))


def _read_key(state: EtcdState, name: bytes, value: bytes) -> None:
    queue, key, until, seq, id = loads(value)
    state.keys[queue, key] = (until, seq, id)


def _read_counts(state: EtcdState, name: bytes, value: bytes) -> None:
    state.counts[name.decode()] = Counts(*loads(value))


def _read_policy(state: EtcdState, name: bytes, value: bytes) -> None:
    state.policies[name.decode()] = value.decode()


def _read_note(state: EtcdState, name: bytes, value: bytes) -> None:
    state.notes[name.decode()] = value.decode()


def _read_last(state: EtcdState, name: bytes, value: bytes) -> None:
    state.numbers["last"] = int(value)


def _ignore(state: EtcdState, name: bytes, value: bytes) -> None:
    """Ignore an unknown key, for example of a later release."""


_READERS: dict[bytes, Callable[[EtcdState, bytes, bytes], None]] = {
    b"m": _read_message,
    b"b": _read_envelope,
    b"f": _read_failure,
    b"k": _read_key,
    b"c": _read_counts,
    b"p": _read_policy,
    b"n": _read_note,
    b"last": _read_last,
}
