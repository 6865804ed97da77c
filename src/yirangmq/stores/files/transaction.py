"""Transaction of the files store: the disk merged with the uncommitted changes.

Implements ``core.ports.Transaction``. Nothing is written to disk before the commit (``stores.files.commit``).

A message with an unreadable content is quarantined, and the next of its group is released. A queue with a broken policy
file has no timed work; other queues are not affected."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from yirangmq.core import transitions, validation
from yirangmq.core.errors import BadInput, BadPolicy, StoreError
from yirangmq.core.message import Counts, Envelope, Message, MessageFailure, sum_of
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import AddResult, Change, Page
from yirangmq.core.states import State
from yirangmq.stores.files.deduplication import DeduplicationKeys
from yirangmq.stores.files.dropped import import_dropped
from yirangmq.stores.files.index import Index
from yirangmq.stores.files.message_file import UnreadableContent
from yirangmq.stores.files.metadata import Policies, Rotation, note_keys, read_note
from yirangmq.stores.files.names import FileRow
from yirangmq.stores.files.overlay import Overlay, PendingChanges, RejectedFile
from yirangmq.stores.files.view import DiskView, Order, order_of


class FilesTransaction:
    """``core.ports.Transaction`` on one folder. Used by one thread, under the store's lock."""

    on_add: Callable[[], None] | None = None
    """Called before messages are added, if the store has a disk reserve. It may raise ``StoreFull``."""

    def __init__(
        self, root: str, index: Index, view: DiskView, policies: Policies, rotation: Rotation, *, write: bool
    ) -> None:
        self._root = root
        self._index = index
        self._view = view
        self._policies = policies
        self._rotation = rotation
        self._write = write
        self._policy_cache: dict[str, QueuePolicy] = {}
        self._invalid_policies: set[str] = set()
        self._imported: set[str] = set()
        self.pending = PendingChanges()
        self._overlay = Overlay(view, self.pending)
        self._deduplication_keys = DeduplicationKeys(root, index, view, self.pending, self._overlay, rotation)
        self.last = index.last
        self.now: int | None = None
        """The latest instant passed to this transaction, in ms; None if there was none."""

    def places(self, count: int) -> int:
        first = self.last + 1
        self.last += count
        return first

    def _observe_time(self, now: int) -> None:
        self.now = now if self.now is None else max(self.now, now)

    # -- policies and queues --------------------------------------------------------------------------------------

    def policy(self, queue: str) -> QueuePolicy:
        rules = self._policy_cache.get(queue)
        if rules is None:
            rules = self._policy_cache[queue] = self._policies.policy(queue, self.policy_text(queue))
        return rules

    def policy_text(self, queue: str) -> str | None:
        if queue in self.pending.policies:
            return self.pending.policies[queue]
        return None if queue in self.pending.deleted else self._policies.text(queue)

    def set_policy(self, queue: str, text: str | None) -> None:
        self.pending.policies[queue] = text
        self.pending.created_queues.add(queue)
        self._policy_cache.pop(queue, None)
        self._invalid_policies.discard(queue)

    def _has_policy(self, queue: str) -> bool:
        """Return False if the queue's policy file is broken. Such a queue has no timed work."""
        if queue in self._policy_cache:
            return True
        if queue not in self._invalid_policies:
            try:
                self.policy(queue)
                return True
            except BadPolicy:
                self._invalid_policies.add(queue)
        return False

    def queues(self, after: str = "", limit: int | None = None, prefix: str = "") -> list[str]:
        pending, known = self.pending, self._view.queues()
        if pending.deleted or pending.created_queues:
            known = sorted({*known} - pending.deleted | pending.created_queues)
        begin = max(bisect_right(known, after), bisect_left(known, prefix))
        end = bisect_left(known, prefix + "\uffff") if prefix else len(known)
        return known[begin : end if limit is None else min(end, begin + limit)]

    def queue_count(self) -> int:
        return len(self.queues()) if self.pending.deleted or self.pending.created_queues else len(self._view.queues())

    def has_queue(self, queue: str) -> bool:
        if queue in self.pending.created_queues:
            return True
        return queue not in self.pending.deleted and self._view.queue_folders.has(queue)

    def queues_with_policy(self) -> list[str]:
        pending = self.pending
        found = self._view.queue_folders.queues_with_policy() - pending.deleted - pending.policies.keys()
        return sorted(found | {queue for queue, text in pending.policies.items() if text is not None})

    def counts(self, queue: str) -> Counts:
        stored = Counts() if queue in self.pending.deleted else self._index.counts(queue)
        return self.pending.counts(queue, stored)

    def totals(self) -> Counts:
        pending = self.pending
        gone = [self._index.counts(queue) for queue in pending.deleted]
        found = sum_of([self._index.totals(), *(Counts(**deltas) for deltas in pending.deltas.values())])
        return Counts(*(one - other for one, other in zip(found, sum_of(gone), strict=True))) if gone else found

    def run_operations(self) -> None:
        """Return None: this store has no runs; each message is a file."""

    def delete_queue(self, queue: str) -> None:
        self.pending.delete_queue(queue)
        self._policy_cache.pop(queue, None)

    def note(self, key: str) -> str | None:
        return self.pending.notes[key] if key in self.pending.notes else read_note(self._root, key)

    def notes(self, prefix: str) -> dict[str, str]:
        touched = {key for key in self.pending.notes if key.startswith(prefix)}
        found = {key: self.note(key) for key in sorted(touched | set(note_keys(self._root, prefix)))}
        return {key: text for key, text in found.items() if text is not None}

    def set_note(self, key: str, text: str | None) -> None:
        validation.check_note(key)
        self.pending.notes[key] = text

    # -- cards ----------------------------------------------------------------------------------------------------

    def by_seq(self, seqs: Sequence[int]) -> list[Message | None]:
        found = self._overlay.find(seqs)
        return [found[seq].message if seq in found else None for seq in seqs]

    def by_id(self, queue: str, ids: Sequence[str]) -> list[Message | None]:
        found = self._overlay.find_ids(queue, ids)
        return [found[id].message if id in found else None for id in ids]

    def scan(self, queue: str, state: State, limit: int, cursor: str = "") -> Page:
        found = [row.message for row in islice(self._overlay.in_state(queue, state, read_cursor(cursor, state)), limit)]
        return Page(found, write_cursor(found[-1]) if len(found) == limit else "")

    # -- contents -------------------------------------------------------------------------------------------------

    def heads(self, queue: str, limit: int, target: int = 0) -> list[tuple[Message, Envelope]]:
        self._import_dropped(queue)
        found: list[tuple[Message, Envelope]] = []
        broken: list[tuple[FileRow, str]] = []
        for row in self._overlay.available_to(queue, target):
            try:
                found.append((row.message, self._envelope(row)))
            except UnreadableContent as error:
                broken.append((row, str(error)))
            if len(found) == limit:
                break
        for row, reason in broken:
            self._quarantine(row, reason)
        return found

    def _import_dropped(self, queue: str) -> None:
        """Import the files dropped into the queue's inbox, once per transaction. Files dropped later wait for the next
        transaction."""
        if self._write and queue not in self._imported and queue not in self.pending.deleted:
            self._imported.add(queue)
            for row in import_dropped(self, self._root, queue):
                [first] = self.group_first(queue, [row.message.group])
                if first is not None and first.seq != row.message.seq:
                    self.swap([Change(row.message, transitions.hold(row.message))])

    def _envelope(self, row: FileRow) -> Envelope:
        seq = row.message.seq
        if seq in self.pending.envelopes:
            return self.pending.envelopes[seq]
        return self._view.envelope(self.pending.before.get(seq) or row)

    def _quarantine(self, row: FileRow, reason: str) -> None:
        """Quarantine a message with an unreadable content. Its file is kept, with the reason."""
        stored = self.pending.before.get(row.message.seq, row)
        if not self._write or stored is None:
            return
        self.pending.rejects.append(RejectedFile(row.message.queue, self._view.path(stored), reason))
        self.pending.count_gone(row.message)
        self.pending.put(stored, None)
        if row.message.group:
            self._release_next_of_group(row.message)

    def _release_next_of_group(self, gone: Message) -> None:
        """Release the next message of a group after a quarantine, because no queue operation does it."""
        [first] = self.group_first(gone.queue, [gone.group])
        if first is not None and first.state is State.HELD:
            [envelope] = self.envelopes([first])
            if envelope is not None:  # otherwise it was quarantined too, which has released the next one
                self.swap([Change(first, transitions.free(first, envelope.available_at, first.changed_at))])

    def envelopes(self, messages: Sequence[Message]) -> list[Envelope | None]:
        rows = self._overlay.find([message.seq for message in messages])
        return [self._envelope_or_none(rows.get(message.seq)) for message in messages]

    def _envelope_or_none(self, row: FileRow | None) -> Envelope | None:
        if row is None or not row.message.body or row.message.state is State.DROPPED:
            return None
        try:
            return self._envelope(row)
        except UnreadableContent as error:
            self._quarantine(row, str(error))
            return None

    def failures(self, messages: Sequence[Message]) -> list[MessageFailure | None]:
        rows = self._overlay.find([message.seq for message in messages])
        return [self._failure(rows.get(message.seq)) for message in messages]

    def _failure(self, row: FileRow | None) -> MessageFailure | None:
        if row is None:
            return None
        pending = self.pending.failures.get(row.message.seq)
        return pending or self._view.failure(row)

    def group_first(self, queue: str, groups: Sequence[int]) -> list[Message | None]:
        return [self._overlay.first_of(queue, group) for group in groups]

    # -- adding ---------------------------------------------------------------------------------------------------

    def add(
        self, envelopes: Sequence[Envelope], now: int, dedup_until: int, draft_until: int | None = None
    ) -> list[AddResult]:
        if not envelopes:
            return []
        if self.on_add is not None:
            self.on_add()
        self._observe_time(now)
        queue = envelopes[0].queue
        self._import_dropped(queue)
        self.pending.created_queues.add(queue)
        known = self._overlay.find_ids(queue, [envelope.id for envelope in envelopes])
        return [self._add_one(envelope, now, dedup_until, known, draft_until) for envelope in envelopes]

    def add_dropped(self, envelope: Envelope, now: int, dedup_until: int, path: str) -> FileRow | None:
        """Add a message with a dropped file as its content. Return None if its id or key is known already."""
        known = self._overlay.find_ids(envelope.queue, [envelope.id])
        here = envelope._replace(available_at=0)  # a dropped message is never delayed
        stored = self._add_one(here, now, dedup_until, known, None)
        if stored.duplicate:
            return None
        self.pending.envelopes[stored.seq] = envelope
        self.pending.dropped[stored.seq] = path
        return known[envelope.id]

    def _add_one(
        self, envelope: Envelope, now: int, dedup_until: int, known: dict[str, FileRow], draft_until: int | None
    ) -> AddResult:
        """Add one message. ``known``: the queue's messages by id, for all ids of this call; the new one is added."""
        there = known.get(envelope.id)
        if there is not None:
            return AddResult(there.message.seq, envelope.id, True)
        key = envelope.dedup_key
        file = self._deduplication_keys.holder(envelope.queue, key, now) if key is not None else None
        if file is not None:
            return AddResult(file.key.seq, file.id, True)
        seq = self.places(1)
        keyed = key is not None and dedup_until > now
        if draft_until is None:
            message = transitions.fresh(envelope, seq, now)
        else:
            message = transitions.draft(envelope, seq, draft_until, now)
        row = known[envelope.id] = FileRow(message, "", keyed)
        self.pending.put(None, row)
        self.pending.envelopes[seq] = envelope
        self.pending.count_new(row.message)
        if keyed:
            self._deduplication_keys.add(envelope, seq, dedup_until)
        return AddResult(seq, envelope.id, False)

    # -- keys -----------------------------------------------------------------------------------------------------

    def key_holders(self, queue: str, keys: Sequence[str], now: int) -> list[tuple[int, str] | None]:
        files = [self._deduplication_keys.holder(queue, key, now) for key in keys]
        return [None if file is None else (file.key.seq, file.id) for file in files]

    def hold_keys(self, queue: str, holders: Mapping[str, tuple[int, str]], until: int) -> None:
        self.pending.created_queues.add(queue)
        self._deduplication_keys.hold(queue, holders, until)

    def free_keys(self, queue: str, keys: Sequence[str]) -> None:
        for key in keys:
            self._deduplication_keys.revoke(queue, key)

    def forget_keys(self, now: int, limit: int) -> int:
        self._observe_time(now)
        return self._deduplication_keys.forget(now, limit)

    # -- changing -------------------------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> None:
        rows = self._overlay.find([change.before.seq for change in changes])
        for before, after, failure in changes:
            row = rows.get(before.seq)
            if row is None or row.message != before:
                raise StoreError(f"message {before.id} differs from the expected state of the change")
            stored = self.pending.before.get(before.seq, row)
            which = row.failure
            if failure is not None:
                which = "b" if stored is not None and stored.failure == "a" else "a"
                self.pending.failures[before.seq] = failure
            changed = rows[before.seq] = FileRow(after, which, row.keyed)
            self.pending.put(row, changed)
            self.pending.count_change(before, after, failure)

    def rewrite(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        rows = self._overlay.find([message.seq for message in messages])
        for message, envelope in zip(messages, envelopes, strict=True):
            row = rows.get(message.seq)
            if row is None or row.message != message:
                raise StoreError(f"message {message.id} differs from the expected state of the change")
            after = message._replace(size=envelope.size)
            rows[message.seq] = row._replace(message=after, sized=True)
            self.pending.put(row, rows[message.seq])
            self.pending.rewrite(message.seq, envelope)
            self.pending.count_change(message, after, None)

    def forget(self, messages: Sequence[Message]) -> None:
        rows = self._overlay.find([message.seq for message in messages])
        for message in messages:
            row = rows.pop(message.seq, None)
            if row is not None:
                self.pending.count_gone(row.message)
                self.pending.put(row, None)

    # -- time -----------------------------------------------------------------------------------------------------

    def due(self, now: int, limit: int) -> list[Message]:
        self._observe_time(now)
        stored = []
        if not self._is_nothing_due_before(now + 1):
            stored = self._view.due_messages.due(now, limit, self._is_due_time_valid, clean_up=self._write)
        touched = [row for row in self.pending.due(now) if self._has_policy(row.message.queue)]
        found = [row.message for row in [*stored, *touched]]
        found.sort(key=lambda message: (message.due_at, message.seq))
        return found[:limit]

    def _is_due_time_valid(self, message: Message) -> bool:
        """Return True if the due time on disk is still valid: neither the message nor its queue has been changed, and
        the queue has a valid policy."""
        pending = self.pending
        return (
            message.seq not in pending.after
            and message.queue not in pending.deleted
            and self._has_policy(message.queue)
        )

    def next_due(self, before: int | None = None) -> int | None:
        stored = None
        if before is None or not self._is_nothing_due_before(before):
            stored = self._view.due_messages.next_due(self._is_due_time_valid)
            if not self._invalid_policies:
                self._rotation.due = self._index.generation, stored
        moments = (stored, self.pending.next_due())
        found = (moment for moment in moments if moment is not None and (before is None or moment < before))
        return min(found, default=None)

    def _is_nothing_due_before(self, moment: int) -> bool:
        """Return True if nothing on disk is due before ``moment``, as known from the last commit. It does not read the
        timer index."""
        known = self._rotation.due
        return known is not None and known[0] == self._index.generation and (known[1] is None or known[1] >= moment)

    def trim(self, limit: int) -> int:
        surplus = self._surplus(limit)
        windows = [self.policy(message.queue).tombstone_ms for message in surplus]
        after = [m._replace(body=False, due_at=m.changed_at + ms) for m, ms in zip(surplus, windows, strict=True)]
        self.swap([Change(before, remembered) for before, remembered in zip(surplus, after, strict=True)])
        return len(surplus)

    def _surplus(self, limit: int) -> list[Message]:
        """Return done messages in excess of their queue's history limit, per queue the oldest first."""
        found: list[Message] = []
        for queue in self._finished():
            done = self.counts(queue).done
            if done and self._has_policy(queue):
                surplus = done - self.policy(queue).archive.max_messages
                over = min(surplus, limit - len(found))
                if surplus > over:
                    self._rotation.finished.add(queue)
                if over > 0:
                    kept = (row.message for row in self._overlay.in_state(queue, State.DONE) if row.message.body)
                    found.extend(islice(kept, over))
        return found

    def _finished(self) -> list[str]:
        """Return the queues to trim: those with new done messages since the last call, and some others in rotation, for
        surplus that another process left."""
        rotation = self._rotation
        grown = rotation.finished | {queue for queue, one in self.pending.deltas.items() if one.get("done", 0) > 0}
        rotation.finished = set()
        return sorted({*grown, *rotation.next("trim", self.queues())} - self.pending.deleted)


def write_cursor(message: Message) -> str:
    """Return the cursor of a message. For a ready message without a target the target is omitted."""
    order = order_of(message)
    parts = order[1:] if message.state is State.READY and not message.target else order
    return ".".join(map(str, parts))


def read_cursor(cursor: str, state: State) -> Order:
    if not cursor:
        return ()
    try:
        *targets, low, high = map(int, cursor.split("."))
        if state is State.READY:
            [target] = targets or [0]
            return target, low, high
        if not targets:
            return low, high
    except ValueError:
        pass
    raise BadInput(f"{cursor!r} is not a cursor of this listing", field="cursor")
