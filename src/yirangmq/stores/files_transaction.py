"""One batch on a files store: what the disk has, with what was changed since on top. See ``core.ports.Transaction``
for what each method promises; nothing reaches the disk before the commit (files_commit.py)."""

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice

from yirangmq.core import decide
from yirangmq.core.errors import BadInput, BadPolicy, StoreError
from yirangmq.core.message import Counts, Envelope, Failure, Message
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Change, Page, Stored
from yirangmq.core.states import State
from yirangmq.format.filenames import Card
from yirangmq.stores.files_content import Broken
from yirangmq.stores.files_drop import collect
from yirangmq.stores.files_index import Index, Key, key_print
from yirangmq.stores.files_keys import FOLDER, STRETCH_MS, KeyFile, bucket, read_key
from yirangmq.stores.files_pending import Pending, Reject
from yirangmq.stores.files_policies import Policies
from yirangmq.stores.files_view import Order, View, listdir, order_of


class FilesTransaction:
    def __init__(self, root: str, index: Index, view: View, policies: Policies, *, write: bool) -> None:
        self._root = root
        self._index = index
        self._view = view
        self._policies = policies
        self._write = write
        self._rules: dict[str, QueuePolicy] = {}
        self._unruly: set[str] = set()
        self._collected: set[str] = set()
        self.pending = Pending()
        self.last = index.last
        self.now: int | None = None
        """The latest moment this transaction was told."""

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
        """Time stands still for a queue whose policy file is broken; the others go on."""
        if queue in self._rules:
            return True
        if queue not in self._unruly:
            try:
                self.policy(queue)
                return True
            except BadPolicy:
                self._unruly.add(queue)
        return False

    def queues(self) -> list[str]:
        pending = self.pending
        return sorted({*self._view.queues()} - pending.deleted | pending.made)

    def counts(self, queue: str) -> Counts:
        stored = Counts() if queue in self.pending.deleted else self._index.counts(queue)
        return self.pending.counts(queue, stored)

    def delete_queue(self, queue: str) -> None:
        self.pending.delete_queue(queue)
        self._rules.pop(queue, None)

    # -- cards ----------------------------------------------------------------------------------------------------

    def _find(self, seqs: Sequence[int]) -> dict[int, Card]:
        pending = self.pending
        found = self._view.find(seq for seq in seqs if seq not in pending.after)
        cards = {seq: card for seq, card in found.items() if card.message.queue not in pending.deleted}
        for seq in seqs:
            card = pending.after.get(seq)
            if card is not None:
                cards[seq] = card
        return cards

    def find_ids(self, queue: str, ids: Sequence[str]) -> dict[str, Card]:
        pending = self.pending
        touched = {id: seq for id in ids if (seq := pending.by_id(queue, id)) is not None}
        found: dict[str, Card] = {}
        if queue not in pending.deleted:
            known = self._view.find_ids(queue, [id for id in ids if id not in touched])
            found = {id: card for id, card in known.items() if card.message.seq not in pending.after}
        for id, seq in touched.items():
            card = pending.after[seq]
            if card is not None:
                found[id] = card
        return found

    def _in_state(self, queue: str, state: State, after: Order = (-1, -1)) -> Iterator[Card]:
        """In order, what the disk has and was not touched, and what was touched."""
        pending = self.pending
        mine = sorted((card for card in pending.cards(queue, state) if order_of(card.message) > after), key=_card_order)
        if queue in pending.deleted:
            return iter(mine)
        stored = (card for card in self._view.in_state(queue, state, after) if card.message.seq not in pending.after)
        return merge(stored, mine, key=_card_order) if mine else stored

    def by_seq(self, seqs: Sequence[int]) -> list[Message | None]:
        found = self._find(seqs)
        return [found[seq].message if seq in found else None for seq in seqs]

    def by_id(self, queue: str, ids: Sequence[str]) -> list[Message | None]:
        found = self.find_ids(queue, ids)
        return [found[id].message if id in found else None for id in ids]

    def scan(self, queue: str, state: State, limit: int, cursor: str = "") -> Page:
        found = [card.message for card in islice(self._in_state(queue, state, read_cursor(cursor)), limit)]
        low, high = order_of(found[-1]) if found else (0, 0)
        return Page(found, f"{low}.{high}" if len(found) == limit else "")

    # -- contents -------------------------------------------------------------------------------------------------

    def heads(self, queue: str, limit: int) -> list[tuple[Message, Envelope]]:
        self._collect(queue)
        found: list[tuple[Message, Envelope]] = []
        broken: list[tuple[Card, str]] = []
        for card in self._in_state(queue, State.READY):
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
        """Take up what somebody dropped into the inbox; once is enough, nothing comes while we hold the lock."""
        if self._write and queue not in self._collected and queue not in self.pending.deleted:
            self._collected.add(queue)
            collect(self, self._root, queue)

    def _envelope(self, card: Card) -> Envelope:
        seq = card.message.seq
        if seq in self.pending.envelopes:
            return self.pending.envelopes[seq]
        return self._view.envelope(self.pending.before.get(seq) or card)

    def _set_aside(self, card: Card, reason: str) -> None:
        """A message whose content cannot be read leaves the queue; its file is kept with the reason."""
        stored = self.pending.before.get(card.message.seq, card)
        if not self._write or stored is None:
            return
        self.pending.rejects.append(Reject(card.message.queue, self._view.path(stored), reason))
        self.pending.count_gone(card.message)
        self.pending.put(stored, None)

    def envelopes(self, messages: Sequence[Message]) -> list[Envelope | None]:
        cards = self._find([message.seq for message in messages])
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
        cards = self._find([message.seq for message in messages])
        return [self._failure(cards.get(message.seq)) for message in messages]

    def _failure(self, card: Card | None) -> Failure | None:
        if card is None:
            return None
        pending = self.pending.failures.get(card.message.seq)
        return pending or self._view.failure(card)

    # -- adding ---------------------------------------------------------------------------------------------------

    def add(self, envelopes: Sequence[Envelope], now: int, dedup_until: int) -> list[Stored]:
        if not envelopes:
            return []
        self._hear(now)
        queue = envelopes[0].queue
        self._collect(queue)
        self.pending.made.add(queue)
        known = self.find_ids(queue, [envelope.id for envelope in envelopes])
        return [self.add_one(envelope, now, dedup_until, known) for envelope in envelopes]

    def add_one(
        self, envelope: Envelope, now: int, dedup_until: int, known: dict[str, Card], dropped: str | None = None
    ) -> Stored:
        """``known``: the messages of the queue that have one of the ids at hand; ``dropped``: where its content is."""
        there = known.get(envelope.id)
        if there is not None:
            return Stored(there.message.seq, envelope.id, True)
        key = envelope.dedup_key
        file = self._known_key(envelope.queue, key, now) if key is not None else None
        if file is not None:
            return Stored(file.key.seq, file.id, True)
        seq = self.places(1)
        keyed = key is not None and dedup_until > now
        sent = envelope if dropped is None else envelope._replace(available_at=0)  # it is here, it need not wait
        card = known[envelope.id] = Card(decide.fresh(sent, seq, now), "", keyed)
        self.pending.put(None, card)
        self.pending.envelopes[seq] = envelope
        self.pending.count_new(card.message)
        if dropped is not None:
            self.pending.dropped[seq] = dropped
        if key is not None and keyed:
            fingerprint = key_print(envelope.queue, key)
            self.pending.keys[envelope.queue, key] = KeyFile(Key(fingerprint, seq, dedup_until), envelope.id)
        return Stored(seq, envelope.id, False)

    def _known_key(self, queue: str, key: str, now: int) -> KeyFile | None:
        pending = self.pending.keys.get((queue, key))
        if pending is not None:
            return pending if pending.key.until > now else None
        if queue in self.pending.deleted:
            return None
        for entry in self._index.keys_of(queue, [key]).get(key, []):
            if entry.until > now and entry not in self.pending.old_keys:
                for file in self._key_files(queue, bucket(entry.until)):
                    if file.key == entry:
                        return file
        return None

    def _key_files(self, queue: str, folder: str) -> list[KeyFile]:
        names = sorted(listdir(f"{self._root}/{queue}/{FOLDER}/{folder}"))
        return [file for name in names if (file := read_key(name)) is not None]

    def forget_keys(self, now: int, limit: int) -> int:
        self._hear(now)
        count = 0
        for queue in self._view.queues():
            if queue in self.pending.deleted:
                continue
            for folder in self._view.folders(f"{queue}/{FOLDER}"):
                if count >= limit or not folder.isdecimal() or int(folder) > now // STRETCH_MS:
                    break
                for file in self._key_files(queue, folder):
                    if file.key.until <= now and file.key not in self.pending.old_keys and count < limit:
                        self.pending.old_keys[file.key] = (queue, file)
                        count += 1
        return count

    # -- changing -------------------------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> None:
        cards = self._find([change.before.seq for change in changes])
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

    def forget(self, messages: Sequence[Message]) -> None:
        cards = self._find([message.seq for message in messages])
        for message in messages:
            card = cards.pop(message.seq, None)
            if card is not None:
                self.pending.count_gone(card.message)
                self.pending.put(card, None)

    # -- time -----------------------------------------------------------------------------------------------------

    def due(self, now: int, limit: int) -> list[Message]:
        self._hear(now)
        stored = self._view.due(now, limit, self._is_timed, tidy=self._write)
        touched = [card for card in self.pending.due(now) if self._has_policy(card.message.queue)]
        found = [card.message for card in [*stored, *touched]]
        found.sort(key=lambda message: (message.due_at, message.seq))
        return found[:limit]

    def _is_timed(self, message: Message) -> bool:
        """Whether what the disk says of its time still holds."""
        pending = self.pending
        return (
            message.seq not in pending.after
            and message.queue not in pending.deleted
            and self._has_policy(message.queue)
        )

    def next_due(self) -> int | None:
        moments = (self._view.next_due(self._is_timed), self.pending.next_due())
        return min((moment for moment in moments if moment is not None), default=None)

    def trim(self, limit: int) -> int:
        surplus = self._surplus(limit)
        windows = [self.policy(message.queue).tombstone_ms for message in surplus]
        after = [m._replace(body=False, due_at=m.changed_at + ms) for m, ms in zip(surplus, windows, strict=True)]
        self.swap([Change(before, remembered) for before, remembered in zip(surplus, after, strict=True)])
        return len(surplus)

    def _surplus(self, limit: int) -> list[Message]:
        """Done messages beyond what their queue keeps, the oldest first."""
        found: list[Message] = []
        for queue in self.queues():
            done = self.counts(queue).done
            if done and self._has_policy(queue):
                over = min(done - self.policy(queue).archive.max_messages, limit - len(found))
                if over > 0:
                    kept = (card.message for card in self._in_state(queue, State.DONE) if card.message.body)
                    found.extend(islice(kept, over))
        return found


def _card_order(card: Card) -> Order:
    return order_of(card.message)


def read_cursor(cursor: str) -> Order:
    if not cursor:
        return -1, -1
    try:
        low, high = cursor.split(".")
        return int(low), int(high)
    except ValueError:
        raise BadInput(f"{cursor!r} is not a cursor of this listing", field="cursor") from None
