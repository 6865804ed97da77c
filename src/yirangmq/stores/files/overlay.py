"""Overlay of the files store: uncommitted changes, and the merged view of disk and changes.

``PendingChanges`` holds a transaction's changes in memory, with each message before and after; ``stores.files.commit``
writes them to disk. ``Overlay`` is the overlay: the disk (``stores.files.view``) merged with the changes, in order.
Deduplication keys of a transaction are in ``stores.files.deduplication``."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush, merge
from itertools import chain
from typing import NamedTuple

from yirangmq.core.message import Counts, Envelope, Message, MessageFailure
from yirangmq.core.states import UNFINISHED, State
from yirangmq.stores.files.index import KeyRecord
from yirangmq.stores.files.layout import KeyFile
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
