"""What the callers were told, kept apart from the store: the store's word is not taken for its own honesty.
Knows: ids, payloads, replies. Does not know: disks, cuts."""

from yirangmq.core.states import State
from yirangmq.torture.snapshot import LIVING, Key, Snapshot


class Ledger:
    """Messages the store has confirmed and still owes, and those it must never deliver again."""

    def __init__(self) -> None:
        self.owed: dict[Key, bytes] = {}
        self.finished: set[Key] = set()

    def published(self, key: Key, payload: bytes) -> None:
        self.owed[key] = payload
        self.finished.discard(key)

    def done(self, key: Key) -> None:
        self.owed.pop(key, None)
        self.finished.add(key)

    def forget_queue(self, queue: str) -> None:
        self.owed = {key: payload for key, payload in self.owed.items() if key[0] != queue}
        self.finished = {key for key in self.finished if key[0] != queue}

    def complaints(self, snapshot: Snapshot) -> list[str]:
        """Where a store that was not even cut off differs from what it told its callers."""
        found = [f"{queue}/{id} is in two states" for queue, id in snapshot.twice]
        for key, payload in self.owed.items():
            card = snapshot.cards.get(key)
            if card is None or card.state not in LIVING:
                found.append(f"{'/'.join(key)} was confirmed and is {card.state if card else 'gone'}")
            elif card.envelope is None or card.envelope.payload != payload:
                found.append(f"{'/'.join(key)} has not the content that was sent")
        for key in self.finished:
            card = snapshot.cards.get(key)
            if card is not None and card.state not in (State.DONE, State.DROPPED):
                found.append(f"{'/'.join(key)} was finished and is {card.state}")
        return found
