"""What a transaction has changed and the disk does not know yet. Knows: cards before and after, in memory.
Does not know: how they get to the disk (files_commit.py)."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from yirangmq.core.message import Counts, Envelope, Failure, Message
from yirangmq.core.states import State
from yirangmq.format.filenames import Card
from yirangmq.stores.files_index import Key
from yirangmq.stores.files_keys import KeyFile


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
        self.dropped: dict[int, str] = {}
        """New messages whose content lies in a file that somebody dropped into the inbox."""
        self.failures: dict[int, Failure] = {}
        self.keys: dict[tuple[str, str], KeyFile] = {}
        self.old_keys: dict[Key, tuple[str, KeyFile]] = {}
        """Keys whose window is over, with their queue."""
        self.policies: dict[str, str | None] = {}
        self.deleted: set[str] = set()
        self.made: set[str] = set()
        """Queues that must be there afterwards."""
        self.rejects: list[Reject] = []
        self.duplicates: list[str] = []
        """Dropped files of messages that are known already."""
        self.deltas: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.earliest: int | None = None
        """No message touched here is due before this."""
        self._ids: dict[tuple[str, str], int] = {}
        self._ready: defaultdict[str, dict[int, Card]] = defaultdict(dict)

    @property
    def is_empty(self) -> bool:
        return not (
            self.after or self.policies or self.deleted or self.made or self.old_keys or self.rejects or self.duplicates
        )

    # -- cards ----------------------------------------------------------------------------------------------------

    def put(self, before: Card | None, after: Card | None) -> None:
        """``before`` counts only at the first touch: later ones build on what is here."""
        known = after or before
        if known is None:
            return
        message = known.message
        self.before.setdefault(message.seq, before)
        self.after[message.seq] = after
        self._ready[message.queue].pop(message.seq, None)
        self._ids[message.queue, message.id] = message.seq
        if after is None:
            return
        if message.state is State.READY:
            self._ready[message.queue][message.seq] = after
        if message.due_at and (self.earliest is None or message.due_at < self.earliest):
            self.earliest = message.due_at

    def by_id(self, queue: str, id: str) -> int | None:
        """The number of a message touched here, also of a forgotten one."""
        return self._ids.get((queue, id))

    def cards(self, queue: str, state: State) -> list[Card]:
        if state is State.READY:
            return list(self._ready[queue].values())
        return [card for card in self._living() if card.message.state is state and card.message.queue == queue]

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
        mine["published"] += 1
        mine[message.state.value] += 1

    def count_gone(self, message: Message) -> None:
        if is_counted(message):
            self.deltas[message.queue][message.state.value] -= 1

    def count_change(self, before: Message, after: Message, failure: Failure | None) -> None:
        mine = self.deltas[after.queue]
        was, now = before.state, after.state
        if is_counted(before):
            mine[was.value] -= 1
        if is_counted(after):
            mine[now.value] += 1
        if now is State.DONE and was is not State.DONE:
            mine["acked"] += 1
        elif now is State.DROPPED and was is not State.DROPPED:
            mine["dropped"] += 1
        elif now is State.READY and was in (State.DEAD, State.PARKED):
            mine["redriven"] += 1
        if failure is not None:
            mine["failed"] += 1

    # -- a queue and all it has -----------------------------------------------------------------------------------

    def delete_queue(self, queue: str) -> None:
        mine = {seq for seq in self.after if self._queue_of(seq) == queue}
        for table in (self.before, self.after, self.envelopes, self.dropped, self.failures):
            for seq in mine & table.keys():
                del table[seq]
        self.keys = {key: file for key, file in self.keys.items() if key[0] != queue}
        self.old_keys = {key: old for key, old in self.old_keys.items() if old[0] != queue}
        self.rejects = [reject for reject in self.rejects if reject.queue != queue]
        self._ids = {name: seq for name, seq in self._ids.items() if name[0] != queue}
        self._ready.pop(queue, None)
        self.policies.pop(queue, None)
        self.deltas.pop(queue, None)
        self.made.discard(queue)
        self.deleted.add(queue)

    def _queue_of(self, seq: int) -> str:
        card = self.after[seq] or self.before[seq]
        return card.message.queue if card else ""


def is_counted(message: Message) -> bool:
    """A remembered id is not a kept message."""
    return message.state is not State.DROPPED and (message.state is not State.DONE or message.body)
