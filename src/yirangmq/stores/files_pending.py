"""What a transaction has changed and the disk does not know yet. Knows: cards before and after, in memory.
Does not know: how they get to the disk (files_commit.py)."""

from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from yirangmq.core.message import Counts, Envelope, Failure, Message
from yirangmq.core.states import WAITING, State
from yirangmq.format.filenames import Card
from yirangmq.stores.files_entries import Key
from yirangmq.stores.files_keys import KeyFile
from yirangmq.stores.files_totals import NONE, TOTALS, Numbers, plus, share_of


class Reject(NamedTuple):
    """A file to be set aside in ``quarantine``, and why."""

    queue: str
    path: str
    reason: str


class Pending:
    def __init__(self) -> None:
        self.before: dict[int, Card | None] = {}
        """What the disk has of each message touched; None: nothing, it is new."""
        self.after: dict[int, Card | None] = {}
        """What it shall have; None: nothing, it is forgotten."""
        self.envelopes: dict[int, Envelope] = {}
        """Of new messages, and of those in whose place another content comes."""
        self.rewritten: set[int] = set()
        """Messages of which the disk has a content that is to go."""
        self.dropped: dict[int, str] = {}
        """New messages whose content lies in a file that somebody dropped into the inbox."""
        self.failures: dict[int, Failure] = {}
        self.keys: dict[tuple[str, str], KeyFile] = {}
        self.old_keys: dict[Key, tuple[str, KeyFile]] = {}
        """Keys whose window is over, with their queue."""
        self.taken_keys: dict[Key, tuple[str, KeyFile]] = {}
        """Keys taken away before their window is over."""
        self.policies: dict[str, str | None] = {}
        self.notes: dict[str, str | None] = {}
        self.deleted: set[str] = set()
        self.made: set[str] = set()
        """Queues that must be there afterwards."""
        self.rejects: list[Reject] = []
        self.duplicates: list[str] = []
        """Dropped files of messages that are known already."""
        self.deltas: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.shares: defaultdict[tuple[str, int], Numbers] = defaultdict(lambda: NONE)
        """What messages add to the base of their queue's totals, by queue and number (files_totals.py)."""
        self.earliest: int | None = None
        """No message touched here is due before this."""
        self._ids: dict[tuple[str, str], int] = {}
        self._ready: defaultdict[tuple[str, int], dict[int, Card]] = defaultdict(dict)
        self._groups: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        """Heaps of places and numbers. An entry may be stale: the cards decide."""

    @property
    def is_empty(self) -> bool:
        names = (self.after, self.policies, self.notes, self.deleted, self.made, self.rejects, self.duplicates)
        return not (any(names) or self.keys or self.old_keys or self.taken_keys)

    # -- cards ----------------------------------------------------------------------------------------------------

    def put(self, before: Card | None, after: Card | None) -> None:
        """``before`` counts only at the first touch: later ones build on what is here."""
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
        if message.group and message.state in WAITING:
            heappush(self._groups[message.queue, message.group], (message.place, message.seq))
        if message.due_at and (self.earliest is None or message.due_at < self.earliest):
            self.earliest = message.due_at

    def rewrite(self, seq: int, envelope: Envelope) -> None:
        """Another content for a message that was ``put`` already."""
        self.envelopes[seq] = envelope
        if self.before[seq] is not None:
            self.rewritten.add(seq)
        elif seq in self.dropped:
            self.duplicates.append(self.dropped.pop(seq))

    def by_id(self, queue: str, id: str) -> int | None:
        """The number of a message touched here, also of a forgotten one."""
        return self._ids.get((queue, id))

    def cards(self, queue: str, state: State) -> list[Card]:
        """In any state but ready."""
        return [card for card in self._living() if card.message.state is state and card.message.queue == queue]

    def ready(self, queue: str, target: int) -> list[Card]:
        return list(self._ready[queue, target].values())

    def targets(self, queue: str) -> set[int]:
        """Whose lines have been touched here."""
        return {target for name, target in self._ready if name == queue}

    def first_of(self, queue: str, group: int) -> Card | None:
        """Of the members touched here the first one that still is one."""
        heap = self._groups.get((queue, group), [])
        while heap:
            place, seq = heap[0]
            card = self.after.get(seq)
            if card is not None and card.message.place == place and card.message.state in WAITING:
                return card
            heappop(heap)
        return None

    def due(self, now: int) -> list[Card]:
        if self.earliest is None or self.earliest > now:
            return []
        return [card for card in self._living() if 0 < card.message.due_at <= now]

    def next_due(self) -> int | None:
        return min((card.message.due_at for card in self._living() if card.message.due_at), default=None)

    def _living(self) -> Iterator[Card]:
        return (card for card in self.after.values() if card is not None)

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

    def count_change(self, before: Message, after: Message, failure: Failure | None) -> None:
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
            if was is State.DRAFT:  # it was never published
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

    # -- a queue and all it has -----------------------------------------------------------------------------------

    def delete_queue(self, queue: str) -> None:
        mine = {seq for seq in self.after if self._queue_of(seq) == queue}
        for table in (self.before, self.after, self.envelopes, self.dropped, self.failures):
            for seq in mine & table.keys():
                del table[seq]
        self.keys = {key: file for key, file in self.keys.items() if key[0] != queue}
        self.old_keys = {key: old for key, old in self.old_keys.items() if old[0] != queue}
        self.taken_keys = {key: old for key, old in self.taken_keys.items() if old[0] != queue}
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
        self.made.discard(queue)
        self.deleted.add(queue)

    def _queue_of(self, seq: int) -> str:
        card = self.after[seq] or self.before[seq]
        return card.message.queue if card else ""


def weight(message: Message) -> int:
    """The bytes that count: of all that are not done with."""
    return message.size if message.state in WAITING else 0


def is_counted(message: Message) -> bool:
    """A remembered id is not a kept message."""
    return message.state is not State.DROPPED and (message.state is not State.DONE or message.body)
