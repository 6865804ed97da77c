"""Transaction of the files store: the disk merged with the uncommitted changes.

Implements ``core.ports.Transaction``. Nothing is written to disk before the commit (``stores.files.commit``).

A message with an unreadable content is quarantined, and the next of its group is released. A queue with a broken policy
file has no timed work; other queues are not affected."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from yirangmq.core import transitions, validation
from yirangmq.core.errors import BadInput, BadPolicy, StoreError
from yirangmq.core.message import Counts, Envelope, Failure, Message, sum_of
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Change, Page, Stored
from yirangmq.core.states import State
from yirangmq.stores.files.dropped import collect
from yirangmq.stores.files.index import Index
from yirangmq.stores.files.message_file import Broken
from yirangmq.stores.files.metadata import Policies, Rotation, note_keys, read_note
from yirangmq.stores.files.names import Card
from yirangmq.stores.files.overlay import Keyring, Pending, Reject, Sight
from yirangmq.stores.files.view import Order, View, order_of


class FilesTransaction:
    """``core.ports.Transaction`` on one folder. Used by one thread, under the store's lock."""

    on_add: Callable[[], None] | None = None
    """Called before messages are added, if the store has a disk reserve. It may raise ``StoreFull``."""

    def __init__(
        self, root: str, index: Index, view: View, policies: Policies, rotation: Rotation, *, write: bool
    ) -> None:
        self._root = root
        self._index = index
        self._view = view
        self._policies = policies
        self._rotation = rotation
        self._write = write
        self._rules: dict[str, QueuePolicy] = {}
        self._unruly: set[str] = set()
        self._collected: set[str] = set()
        self.pending = Pending()
        self._sight = Sight(view, self.pending)
        self._keyring = Keyring(root, index, view, self.pending, self._sight, rotation)
        self.last = index.last
        self.now: int | None = None
        """The latest instant passed to this transaction, in ms; None if there was none."""

    def places(self, count: int) -> int:
        first = self.last + 1
        self.last += count
        return first

    def _hear(self, now: int) -> None:
        self.now = now if self.now is None else max(self.now, now)

    # -- policies and queues --------------------------------------------------------------------------------------

    def policy(self, queue: str) -> QueuePolicy:
        rules = self._rules.get(queue)
        if rules is None:
            rules = self._rules[queue] = self._policies.policy(queue, self.policy_text(queue))
        return rules

    def policy_text(self, queue: str) -> str | None:
        if queue in self.pending.policies:
            return self.pending.policies[queue]
        return None if queue in self.pending.deleted else self._policies.text(queue)

    def set_policy(self, queue: str, text: str | None) -> None:
        self.pending.policies[queue] = text
        self.pending.made.add(queue)
        self._rules.pop(queue, None)
        self._unruly.discard(queue)

    def _has_policy(self, queue: str) -> bool:
        """Return False if the queue's policy file is broken. Such a queue has no timed work."""
        if queue in self._rules:
            return True
        if queue not in self._unruly:
            try:
                self.policy(queue)
                return True
            except BadPolicy:
                self._unruly.add(queue)
        return False

    def queues(self, after: str = "", limit: int | None = None, prefix: str = "") -> list[str]:
        pending, known = self.pending, self._view.queues()
        if pending.deleted or pending.made:
            known = sorted({*known} - pending.deleted | pending.made)
        begin = max(bisect_right(known, after), bisect_left(known, prefix))
        end = bisect_left(known, prefix + "\uffff") if prefix else len(known)
        return known[begin : end if limit is None else min(end, begin + limit)]

    def queue_count(self) -> int:
        return len(self.queues()) if self.pending.deleted or self.pending.made else len(self._view.queues())

    def has_queue(self, queue: str) -> bool:
        if queue in self.pending.made:
            return True
        return queue not in self.pending.deleted and self._view.queue_folders.has(queue)

    def policied(self) -> list[str]:
        pending = self.pending
        found = self._view.queue_folders.policied() - pending.deleted - pending.policies.keys()
        return sorted(found | {queue for queue, text in pending.policies.items() if text is not None})

    def counts(self, queue: str) -> Counts:
        stored = Counts() if queue in self.pending.deleted else self._index.counts(queue)
        return self.pending.counts(queue, stored)

    def totals(self) -> Counts:
        pending = self.pending
        gone = [self._index.counts(queue) for queue in pending.deleted]
        found = sum_of([self._index.totals(), *(Counts(**deltas) for deltas in pending.deltas.values())])
        return Counts(*(one - other for one, other in zip(found, sum_of(gone), strict=True))) if gone else found

    def in_runs(self) -> None:
        """Return None: this store has no runs; each message is a file."""

    def delete_queue(self, queue: str) -> None:
        self.pending.delete_queue(queue)
        self._rules.pop(queue, None)

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
        found = self._sight.find(seqs)
        return [found[seq].message if seq in found else None for seq in seqs]

    def by_id(self, queue: str, ids: Sequence[str]) -> list[Message | None]:
        found = self._sight.find_ids(queue, ids)
        return [found[id].message if id in found else None for id in ids]

    def scan(self, queue: str, state: State, limit: int, cursor: str = "") -> Page:
        found = [card.message for card in islice(self._sight.in_state(queue, state, read_cursor(cursor, state)), limit)]
        return Page(found, write_cursor(found[-1]) if len(found) == limit else "")

    # -- contents -------------------------------------------------------------------------------------------------

    def heads(self, queue: str, limit: int, target: int = 0) -> list[tuple[Message, Envelope]]:
        self._collect(queue)
        found: list[tuple[Message, Envelope]] = []
        broken: list[tuple[Card, str]] = []
        for card in self._sight.open_to(queue, target):
            try:
                found.append((card.message, self._envelope(card)))
            except Broken as error:
                broken.append((card, str(error)))
            if len(found) == limit:
                break
        for card, reason in broken:
            self._set_aside(card, reason)
        return found

    def _collect(self, queue: str) -> None:
        """Import the files dropped into the queue's inbox, once per transaction. Files dropped later wait for the next
        transaction."""
        if self._write and queue not in self._collected and queue not in self.pending.deleted:
            self._collected.add(queue)
            for card in collect(self, self._root, queue):
                [first] = self.group_first(queue, [card.message.group])
                if first is not None and first.seq != card.message.seq:
                    self.swap([Change(card.message, transitions.hold(card.message))])

    def _envelope(self, card: Card) -> Envelope:
        seq = card.message.seq
        if seq in self.pending.envelopes:
            return self.pending.envelopes[seq]
        return self._view.envelope(self.pending.before.get(seq) or card)

    def _set_aside(self, card: Card, reason: str) -> None:
        """Quarantine a message with an unreadable content. Its file is kept, with the reason."""
        stored = self.pending.before.get(card.message.seq, card)
        if not self._write or stored is None:
            return
        self.pending.rejects.append(Reject(card.message.queue, self._view.path(stored), reason))
        self.pending.count_gone(card.message)
        self.pending.put(stored, None)
        if card.message.group:
            self._pass_turn(card.message)

    def _pass_turn(self, gone: Message) -> None:
        """Release the next message of a group after a quarantine, because no queue operation does it."""
        [first] = self.group_first(gone.queue, [gone.group])
        if first is not None and first.state is State.HELD:
            [envelope] = self.envelopes([first])
            if envelope is not None:  # otherwise it was quarantined too, which has released the next one
                self.swap([Change(first, transitions.free(first, envelope.available_at, first.changed_at))])

    def envelopes(self, messages: Sequence[Message]) -> list[Envelope | None]:
        cards = self._sight.find([message.seq for message in messages])
        return [self._envelope_or_none(cards.get(message.seq)) for message in messages]

    def _envelope_or_none(self, card: Card | None) -> Envelope | None:
        if card is None or not card.message.body or card.message.state is State.DROPPED:
            return None
        try:
            return self._envelope(card)
        except Broken as error:
            self._set_aside(card, str(error))
            return None

    def failures(self, messages: Sequence[Message]) -> list[Failure | None]:
        cards = self._sight.find([message.seq for message in messages])
        return [self._failure(cards.get(message.seq)) for message in messages]

    def _failure(self, card: Card | None) -> Failure | None:
        if card is None:
            return None
        pending = self.pending.failures.get(card.message.seq)
        return pending or self._view.failure(card)

    def group_first(self, queue: str, groups: Sequence[int]) -> list[Message | None]:
        return [self._sight.first_of(queue, group) for group in groups]

    # -- adding ---------------------------------------------------------------------------------------------------

    def add(
        self, envelopes: Sequence[Envelope], now: int, dedup_until: int, draft_until: int | None = None
    ) -> list[Stored]:
        if not envelopes:
            return []
        if self.on_add is not None:
            self.on_add()
        self._hear(now)
        queue = envelopes[0].queue
        self._collect(queue)
        self.pending.made.add(queue)
        known = self._sight.find_ids(queue, [envelope.id for envelope in envelopes])
        return [self._add_one(envelope, now, dedup_until, known, draft_until) for envelope in envelopes]

    def add_dropped(self, envelope: Envelope, now: int, dedup_until: int, path: str) -> Card | None:
        """Add a message with a dropped file as its content. Return None if its id or key is known already."""
        known = self._sight.find_ids(envelope.queue, [envelope.id])
        here = envelope._replace(available_at=0)  # a dropped message is never delayed
        stored = self._add_one(here, now, dedup_until, known, None)
        if stored.duplicate:
            return None
        self.pending.envelopes[stored.seq] = envelope
        self.pending.dropped[stored.seq] = path
        return known[envelope.id]

    def _add_one(
        self, envelope: Envelope, now: int, dedup_until: int, known: dict[str, Card], draft_until: int | None
    ) -> Stored:
        """Add one message. ``known``: the queue's messages by id, for all ids of this call; the new one is added."""
        there = known.get(envelope.id)
        if there is not None:
            return Stored(there.message.seq, envelope.id, True)
        key = envelope.dedup_key
        file = self._keyring.holder(envelope.queue, key, now) if key is not None else None
        if file is not None:
            return Stored(file.key.seq, file.id, True)
        seq = self.places(1)
        keyed = key is not None and dedup_until > now
        if draft_until is None:
            message = transitions.fresh(envelope, seq, now)
        else:
            message = transitions.draft(envelope, seq, draft_until, now)
        card = known[envelope.id] = Card(message, "", keyed)
        self.pending.put(None, card)
        self.pending.envelopes[seq] = envelope
        self.pending.count_new(card.message)
        if keyed:
            self._keyring.add(envelope, seq, dedup_until)
        return Stored(seq, envelope.id, False)

    # -- keys -----------------------------------------------------------------------------------------------------

    def key_holders(self, queue: str, keys: Sequence[str], now: int) -> list[tuple[int, str] | None]:
        files = [self._keyring.holder(queue, key, now) for key in keys]
        return [None if file is None else (file.key.seq, file.id) for file in files]

    def hold_keys(self, queue: str, holders: Mapping[str, tuple[int, str]], until: int) -> None:
        self.pending.made.add(queue)
        self._keyring.hold(queue, holders, until)

    def free_keys(self, queue: str, keys: Sequence[str]) -> None:
        for key in keys:
            self._keyring.take(queue, key)

    def forget_keys(self, now: int, limit: int) -> int:
        self._hear(now)
        return self._keyring.forget(now, limit)

    # -- changing -------------------------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> None:
        cards = self._sight.find([change.before.seq for change in changes])
        for before, after, failure in changes:
            card = cards.get(before.seq)
            if card is None or card.message != before:
                raise StoreError(f"message {before.id} is not as the change says it was")
            stored = self.pending.before.get(before.seq, card)
            which = card.failure
            if failure is not None:
                which = "b" if stored is not None and stored.failure == "a" else "a"
                self.pending.failures[before.seq] = failure
            changed = cards[before.seq] = Card(after, which, card.keyed)
            self.pending.put(card, changed)
            self.pending.count_change(before, after, failure)

    def rewrite(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        cards = self._sight.find([message.seq for message in messages])
        for message, envelope in zip(messages, envelopes, strict=True):
            card = cards.get(message.seq)
            if card is None or card.message != message:
                raise StoreError(f"message {message.id} is not as the change says it was")
            after = message._replace(size=envelope.size)
            cards[message.seq] = card._replace(message=after, sized=True)
            self.pending.put(card, cards[message.seq])
            self.pending.rewrite(message.seq, envelope)
            self.pending.count_change(message, after, None)

    def forget(self, messages: Sequence[Message]) -> None:
        cards = self._sight.find([message.seq for message in messages])
        for message in messages:
            card = cards.pop(message.seq, None)
            if card is not None:
                self.pending.count_gone(card.message)
                self.pending.put(card, None)

    # -- time -----------------------------------------------------------------------------------------------------

    def due(self, now: int, limit: int) -> list[Message]:
        self._hear(now)
        stored = []
        if not self._is_nothing_before(now + 1):
            stored = self._view.timed.due(now, limit, self._is_timed, tidy=self._write)
        touched = [card for card in self.pending.due(now) if self._has_policy(card.message.queue)]
        found = [card.message for card in [*stored, *touched]]
        found.sort(key=lambda message: (message.due_at, message.seq))
        return found[:limit]

    def _is_timed(self, message: Message) -> bool:
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
        if before is None or not self._is_nothing_before(before):
            stored = self._view.timed.next_due(self._is_timed)
            if not self._unruly:
                self._rotation.due = self._index.generation, stored
        moments = (stored, self.pending.next_due())
        found = (moment for moment in moments if moment is not None and (before is None or moment < before))
        return min(found, default=None)

    def _is_nothing_before(self, moment: int) -> bool:
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
                    kept = (card.message for card in self._sight.in_state(queue, State.DONE) if card.message.body)
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
