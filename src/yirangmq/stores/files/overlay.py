"""Overlay of the files store: uncommitted changes, the merged view of disk and changes, deduplication keys.

``PendingChanges`` holds a transaction's changes in memory, with each message before and after; ``stores.files.commit``
writes them to disk. ``Overlay`` is the overlay: the disk (``stores.files.view``) merged with the changes, in order.
``DeduplicationKeys`` looks up the holder of a deduplication key, and assigns and revokes keys.

A new message and its key are atomic: after a power cut neither exists without the other. A key assigned to a message
that is already on disk is independent of it."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, merge
from itertools import chain
from typing import NamedTuple

from yirangmq.core.message import Counts, Envelope, Message, MessageFailure
from yirangmq.core.states import UNFINISHED, State
from yirangmq.fsio.disk import listdir
from yirangmq.stores.files.index import Index, KeyRecord, key_print
from yirangmq.stores.files.layout import KEY_BUCKET_MS, KEY_FOLDER, KeyFile, folder_of, name_prefix, read_key
from yirangmq.stores.files.metadata import Rotation
from yirangmq.stores.files.names import FileRow
from yirangmq.stores.files.totals import TOTALS, ZERO, Numbers, plus, share_of
from yirangmq.stores.files.view import DiskView, Order, order_of

# -- uncommitted changes -----------------------------------------------------------------------------------------------


class RejectedFile(NamedTuple):
    """A file to be moved to the folder ``quarantine``, with the reason."""

    queue: str
    path: str
    reason: str


class PendingChanges:
    """Uncommitted changes of one transaction."""

    def __init__(self) -> None:
        self.before: dict[int, FileRow | None] = {}
        """Each changed message as it is on disk; None for a new one. By message number."""
        self.after: dict[int, FileRow | None] = {}
        """Each changed message as it will be; None for one that is forgotten. By message number."""
        self.envelopes: dict[int, Envelope] = {}
        """Envelopes of new and of rewritten messages."""
        self.rewritten: set[int] = set()
        """Messages on disk that get a new content."""
        self.dropped: dict[int, str] = {}
        """Paths of dropped inbox files that become new messages, by message number."""
        self.failures: dict[int, MessageFailure] = {}
        self.keys: dict[tuple[str, str], KeyFile] = {}
        self.expired_keys: dict[KeyRecord, tuple[str, KeyFile]] = {}
        """Keys with an expired window, each with its queue and file. They are removed."""
        self.revoked_keys: dict[KeyRecord, tuple[str, KeyFile]] = {}
        """Keys revoked before their window expired, each with its queue and file."""
        self.policies: dict[str, str | None] = {}
        self.notes: dict[str, str | None] = {}
        self.deleted: set[str] = set()
        self.created_queues: set[str] = set()
        """Queues that the commit creates if they do not exist."""
        self.rejects: list[RejectedFile] = []
        self.duplicates: list[str] = []
        """Paths of dropped files that repeat a known message. They are removed."""
        self.deltas: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.shares: defaultdict[tuple[str, int], Numbers] = defaultdict(lambda: ZERO)
        """Share of each message in the base of its queue's totals, by queue and number (``stores.files.totals``)."""
        self.earliest: int | None = None
        """Lower bound of the due times of all changed messages, in ms; None if none has one."""
        self._ids: dict[tuple[str, str], int] = {}
        self._ready: defaultdict[tuple[str, int], dict[int, FileRow]] = defaultdict(dict)
        self._groups: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        """Heaps of places and numbers. An entry may be stale, so it is compared with the card."""

    @property
    def is_empty(self) -> bool:
        names = (
            self.after,
            self.policies,
            self.notes,
            self.deleted,
            self.created_queues,
            self.rejects,
            self.duplicates,
        )
        return not (any(names) or self.keys or self.expired_keys or self.revoked_keys)

    # -- cards ----------------------------------------------------------------------------------------------------

    def put(self, before: FileRow | None, after: FileRow | None) -> None:
        """Record a change. ``before`` is used only for the first change of a message; later changes build on the
        recorded one."""
        known = after or before
        if known is None:
            return
        message = known.message
        self.before.setdefault(message.seq, before)
        self.after[message.seq] = after
        self._ready[message.queue, message.target].pop(message.seq, None)
        self._ids[message.queue, message.id] = message.seq
        if after is None:
            return
        if message.state is State.READY:
            self._ready[message.queue, message.target][message.seq] = after
        if message.group and message.state in UNFINISHED:
            heappush(self._groups[message.queue, message.group], (message.place, message.seq))
        if message.due_at and (self.earliest is None or message.due_at < self.earliest):
            self.earliest = message.due_at

    def rewrite(self, seq: int, envelope: Envelope) -> None:
        """Record a new content for a message that was passed to ``put`` before."""
        self.envelopes[seq] = envelope
        if self.before[seq] is not None:
            self.rewritten.add(seq)
        elif seq in self.dropped:
            self.duplicates.append(self.dropped.pop(seq))

    def by_id(self, queue: str, id: str) -> int | None:
        """Return the number of a changed message, including a forgotten one; None if no change has this id."""
        return self._ids.get((queue, id))

    def rows(self, queue: str, state: State) -> list[FileRow]:
        """Return the changed messages of a queue in one state, which must not be READY."""
        return [row for row in self._living() if row.message.state is state and row.message.queue == queue]

    def ready(self, queue: str, target: int) -> list[FileRow]:
        return list(self._ready[queue, target].values())

    def targets(self, queue: str) -> set[int]:
        """Return the targets with changed messages, 0 included if there are changed messages without a target."""
        return {target for name, target in self._ready if name == queue}

    def first_of(self, queue: str, group: int) -> FileRow | None:
        """Return the first changed message of a group that is still unfinished, or None."""
        heap = self._groups.get((queue, group), [])
        while heap:
            place, seq = heap[0]
            row = self.after.get(seq)
            if row is not None and row.message.place == place and row.message.state in UNFINISHED:
                return row
            heappop(heap)
        return None

    def due(self, now: int) -> list[FileRow]:
        if self.earliest is None or self.earliest > now:
            return []
        return [row for row in self._living() if 0 < row.message.due_at <= now]

    def next_due(self) -> int | None:
        return min((row.message.due_at for row in self._living() if row.message.due_at), default=None)

    def _living(self) -> Iterator[FileRow]:
        return (row for row in self.after.values() if row is not None)

    # -- counters -------------------------------------------------------------------------------------------------

    def counts(self, queue: str, stored: Counts) -> Counts:
        deltas = self.deltas.get(queue)
        if not deltas:
            return stored
        return stored._replace(**{name: getattr(stored, name) + delta for name, delta in deltas.items()})

    def count_new(self, message: Message) -> None:
        mine = self.deltas[message.queue]
        mine["published"] += message.state is not State.DRAFT
        mine[message.state.value] += 1
        mine["bytes"] += weight(message)

    def count_gone(self, message: Message) -> None:
        key = message.queue, message.seq
        self.shares[key] = plus(self.shares[key], share_of(message))
        if is_counted(message):
            self.deltas[message.queue][message.state.value] -= 1
            self.deltas[message.queue]["bytes"] -= weight(message)

    def count_change(self, before: Message, after: Message, failure: MessageFailure | None) -> None:
        mine = self.deltas[after.queue]
        was, now = before.state, after.state
        if is_counted(before):
            mine[was.value] -= 1
        if is_counted(after):
            mine[now.value] += 1
        mine["bytes"] += weight(after) - weight(before)
        if now is State.DONE and was is not State.DONE:
            mine["acked"] += 1
        elif now is State.DROPPED and was is not State.DROPPED:
            mine["dropped"] += 1
            if was is State.DRAFT:  # a draft was never published
                self._share(before, "published", -1)
        elif now is State.READY and was in (State.DEAD, State.PARKED):
            mine["redriven"] += 1
            self._share(before, "redriven", 1)
        elif now is State.READY and was is State.DRAFT:
            mine["published"] += 1
        if failure is not None:
            mine["failed"] += 1
            self._share(before, "failed", 1)

    def _share(self, message: Message, total: str, step: int) -> None:
        key = message.queue, message.seq
        self.shares[key] = plus(self.shares[key], (step if name == total else 0 for name in TOTALS))

    # -- deletion of a queue --------------------------------------------------------------------------------------

    def delete_queue(self, queue: str) -> None:
        mine = {seq for seq in self.after if self._queue_of(seq) == queue}
        for table in (self.before, self.after, self.envelopes, self.dropped, self.failures):
            for seq in mine & table.keys():
                del table[seq]
        self.keys = {key: file for key, file in self.keys.items() if key[0] != queue}
        self.expired_keys = {key: old for key, old in self.expired_keys.items() if old[0] != queue}
        self.revoked_keys = {key: old for key, old in self.revoked_keys.items() if old[0] != queue}
        for key in [key for key in self.shares if key[0] == queue]:
            del self.shares[key]
        self.rewritten -= mine
        self.rejects = [reject for reject in self.rejects if reject.queue != queue]
        self._ids = {name: seq for name, seq in self._ids.items() if name[0] != queue}
        for line in [line for line in self._ready if line[0] == queue]:
            del self._ready[line]
        for line in [line for line in self._groups if line[0] == queue]:
            del self._groups[line]
        self.policies.pop(queue, None)
        self.deltas.pop(queue, None)
        self.created_queues.discard(queue)
        self.deleted.add(queue)

    def _queue_of(self, seq: int) -> str:
        row = self.after[seq] or self.before[seq]
        return row.message.queue if row else ""


def weight(message: Message) -> int:
    """Return the bytes that a message adds to the queue's ``bytes``: its size while it is unfinished, else 0."""
    return message.size if message.state in UNFINISHED else 0


def is_counted(message: Message) -> bool:
    """Return True if a message counts in its state. A message without content, kept only for its id, does not."""
    return message.state is not State.DROPPED and (message.state is not State.DONE or message.body)


# -- merged view -------------------------------------------------------------------------------------------------------


class Overlay:
    """Overlay of the uncommitted changes over the disk. One instance per transaction."""

    def __init__(self, view: DiskView, pending: PendingChanges) -> None:
        self._view = view
        self._pending = pending
        self._passed: dict[tuple[str, int], int] = {}
        """Per group, the last of the leading members of its list on disk that have all been changed."""

    # -- one by one -----------------------------------------------------------------------------------------------

    def find(self, seqs: Sequence[int]) -> dict[int, FileRow]:
        pending = self._pending
        found = self._view.find(seq for seq in seqs if seq not in pending.after)
        rows = {seq: row for seq, row in found.items() if row.message.queue not in pending.deleted}
        for seq in seqs:
            row = pending.after.get(seq)
            if row is not None:
                rows[seq] = row
        return rows

    def find_ids(self, queue: str, ids: Sequence[str]) -> dict[str, FileRow]:
        pending = self._pending
        touched = {id: seq for id in ids if (seq := pending.by_id(queue, id)) is not None}
        found: dict[str, FileRow] = {}
        if queue not in pending.deleted:
            known = self._view.find_ids(queue, [id for id in ids if id not in touched])
            found = {id: row for id, row in known.items() if row.message.seq not in pending.after}
        for id, seq in touched.items():
            row = pending.after[seq]
            if row is not None:
                found[id] = row
        return found

    # -- in order -------------------------------------------------------------------------------------------------

    def in_state(self, queue: str, state: State, after: Order = ()) -> Iterator[FileRow]:
        """Yield the messages in one state, in order, behind ``after``: unchanged ones from disk merged with changed
        ones."""
        if state is State.READY:
            return self._in_lines(queue, after)
        mine = [row for row in self._pending.rows(queue, state) if order_of(row.message) > after]
        stored = () if queue in self._pending.deleted else self._view.in_state(queue, state, after)
        return self._merged(stored, mine)

    def _in_lines(self, queue: str, after: Order) -> Iterator[FileRow]:
        """Yield the ready messages without a target, then those of each target."""
        behind = after[0] if after else 0
        stored = set() if queue in self._pending.deleted else set(self._view.targets(queue))
        lines = sorted(target for target in {0} | stored | self._pending.targets(queue) if target >= behind)
        return chain.from_iterable(
            self._in_line(queue, target, after[1:] if target == behind else ()) for target in lines
        )

    def _in_line(self, queue: str, target: int, after: Order = ()) -> Iterator[FileRow]:
        mine = [row for row in self._pending.ready(queue, target) if order_of(row.message) > (target, *after)]
        stored = () if queue in self._pending.deleted else self._view.line(queue, target, after)
        return self._merged(stored, mine)

    def _merged(self, stored: Iterable[FileRow], mine: list[FileRow]) -> Iterator[FileRow]:
        untouched = (row for row in stored if row.message.seq not in self._pending.after)
        return merge(untouched, sorted(mine, key=_row_order), key=_row_order) if mine else untouched

    def available_to(self, queue: str, target: int) -> Iterator[FileRow]:
        """Yield the ready messages that a consumer may get, in delivery order: those without a target and its own."""
        anyones = self._in_line(queue, 0)
        return merge(anyones, self._in_line(queue, target), key=_delivery_order) if target else anyones

    # -- of a group -----------------------------------------------------------------------------------------------

    def first_of(self, queue: str, group: int) -> Message | None:
        """Return the unfinished message of a group with the lowest place, or None."""
        touched = self._pending.first_of(queue, group)
        untouched = None if queue in self._pending.deleted else self._first_untouched(queue, group)
        rows = [row.message for row in (touched, untouched) if row is not None]
        return min(rows, key=lambda message: (message.place, message.seq), default=None)

    def _first_untouched(self, queue: str, group: int) -> FileRow | None:
        """Return the first unfinished and unchanged message of a group on disk.

        A changed message stays changed within the transaction, so the next call continues where this one ended."""
        at = queue, group
        for seq in self._view.members(queue, group, self._passed.get(at, 0)):
            if seq not in self._pending.after:
                row = self._view.find([seq]).get(seq)
                if row is not None and row.message.group == group and row.message.state in UNFINISHED:
                    return row
            self._passed[at] = seq
        return None


def _row_order(row: FileRow) -> Order:
    return order_of(row.message)


def _delivery_order(row: FileRow) -> Order:
    return row.message.rank, row.message.place


# -- deduplication keys ------------------------------------------------------------------------------------------------


class DeduplicationKeys:
    """Deduplication keys as one transaction sees them. One instance per transaction."""

    def __init__(
        self, root: str, index: Index, view: DiskView, pending: PendingChanges, overlay: Overlay, rotation: Rotation
    ) -> None:
        self._rotation = rotation
        self._root = root
        self._index = index
        self._view = view
        self._pending = pending
        self._overlay = overlay
        self._listed: dict[str, list[str]] = {}

    def holder(self, queue: str, key: str, now: int) -> KeyFile | None:
        pending = self._pending.keys.get((queue, key))
        if pending is not None:
            return pending if pending.key.until > now else None
        if queue in self._pending.deleted:
            return None
        for entry in self._index.keys_of(queue, [key]).get(key, []):
            if entry.until > now:
                file = self._key_file(queue, entry)
                if file is not None:
                    return file
        return None

    def _key_file(self, queue: str, key: KeyRecord) -> KeyFile | None:
        """Return the file of a key on disk; None if there is none, or if this transaction removes it."""
        if key in self._pending.expired_keys or key in self._pending.revoked_keys:
            return None
        names, begin = self._names(queue, folder_of(key)), name_prefix(key)
        files = (read_key(name) for name in names[bisect_left(names, begin) :] if name.startswith(begin))
        return next((file for file in files if file is not None), None)

    def _names(self, queue: str, folder: str) -> list[str]:
        """Return the sorted names in a key folder. The folder cannot change during the transaction, so it is listed
        once."""
        path = f"{self._root}/{queue}/{KEY_FOLDER}/{folder}"
        names = self._listed.get(path)
        if names is None:
            names = self._listed[path] = sorted(listdir(path))
        return names

    # -- assign and revoke ----------------------------------------------------------------------------------------

    def add(self, envelope: Envelope, seq: int, until: int) -> None:
        """Assign to a new message the key in its envelope."""
        if envelope.dedup_key is not None:
            key = KeyRecord(key_print(envelope.queue, envelope.dedup_key), seq, until)
            self._pending.keys[envelope.queue, envelope.dedup_key] = KeyFile(key, envelope.id)

    def hold(self, queue: str, holders: Mapping[str, tuple[int, str]], until: int) -> None:
        for key, (seq, id) in holders.items():
            file = KeyFile(KeyRecord(key_print(queue, key), seq, until), id)
            if not self.revoke(queue, key, except_key=file.key):
                self._assign_one(queue, key, file)

    def _assign_one(self, queue: str, key: str, file: KeyFile) -> None:
        """Assign a key to a message. The key of a new message is committed atomically with it; the key of a message on
        disk is independent and gets the mark ``.f``."""
        row = self._pending.after.get(file.key.seq)
        is_new = row is not None and _is_of(row, queue, file) and self._pending.before[file.key.seq] is None
        if row is not None and is_new and not row.keyed and not file.is_endless:
            self._pending.put(None, row._replace(keyed=True))
        self._pending.keys[queue, key] = file._replace(outlived=not is_new)

    def revoke(self, queue: str, key: str, except_key: KeyRecord | None = None) -> bool:
        """Revoke a key from its holder. Return True if ``except_key`` is among the holders on disk or pending; that one
        keeps the key."""
        given = self._pending.keys.get((queue, key))
        if given is not None and given.key == except_key:
            return True
        if given is not None:
            del self._pending.keys[queue, key]
            self._clear_key_mark(queue, given)
        is_kept = False
        entries = [] if queue in self._pending.deleted else self._index.keys_of(queue, [key]).get(key, [])
        for entry in entries:
            file = self._key_file(queue, entry)
            if file is not None and entry == except_key:
                is_kept = True
            elif file is not None:
                self._pending.revoked_keys[entry] = (queue, file)
                self._clear_key_mark(queue, file)
        return is_kept

    def _clear_key_mark(self, queue: str, file: KeyFile) -> None:
        """Remove the key mark from a message's name. Otherwise recovery would restore the key after a power cut."""
        row = None if file.is_endless else self._overlay.find([file.key.seq]).get(file.key.seq)
        if row is not None and row.keyed and _is_of(row, queue, file):
            self._pending.put(row, row._replace(keyed=False))

    # -- time -----------------------------------------------------------------------------------------------------

    def forget(self, now: int, limit: int) -> int:
        """Remove expired keys in some of the queues, in rotation, up to ``limit``. Return their number.

        An expired key that is still on disk has no effect."""
        old, taken = self._pending.expired_keys, self._pending.revoked_keys
        count = 0
        for queue in self._rotation.next("keys", self._view.queues()):
            folders = [] if queue in self._pending.deleted else self._view.folders(f"{queue}/{KEY_FOLDER}")
            for folder in filter(str.isdecimal, folders):
                if count >= limit or int(folder) > now // KEY_BUCKET_MS:
                    break
                for file in filter(None, map(read_key, self._names(queue, folder))):
                    if file.key.until <= now and file.key not in old and file.key not in taken and count < limit:
                        old[file.key] = (queue, file)
                        count += 1
        return count


def _is_of(row: FileRow, queue: str, file: KeyFile) -> bool:
    """Return True if a key belongs to this message: ``hold`` accepts any id for a holder, so the id is compared."""
    return row.message.id == file.id and row.message.queue == queue
