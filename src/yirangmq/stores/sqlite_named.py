"""What this process wrote a moment ago and is about to be asked for by name: drafts, messages whose id was given out,
contents that were just set. Nothing here need be read back from the file.

Knows: cards, envelopes, how much of them may be kept. Does not know: SQL. It is part of what is thrown away when
another process has written or a transaction has failed (``sqlite_ledger.Known``)."""

from collections.abc import Mapping, Sequence

from yirangmq.core.message import Envelope, Message, new_message
from yirangmq.core.ports import Change
from yirangmq.core.states import State

MOST_CARDS = 20_000
"""At some 500 bytes each, name and all."""
MOST_CONTENT_BYTES = 4 * 1024 * 1024
"""Of contents, but for what is under way with them. In a queue where messages wait long, they are gone before they are
asked for, and are read from the file."""
ENVELOPE_BYTES = 500
"""Of an envelope without its content."""
HELD = (State.DRAFT, State.CLAIMED)
WITH_NAMES = (*HELD, State.LEASED)
IN_LINE = (State.READY, State.DELAYED, State.HELD)


class Named:
    __slots__ = ("_bytes", "_cards", "_numbers", "_sent")

    def __init__(self) -> None:
        self._cards: dict[int, Message] = {}
        """Drafts, and those whose ids were given out."""
        self._numbers: dict[tuple[str, str], int] = {}
        """By queue and id: of these, and of those that were leased by their id."""
        self._sent: dict[int, Envelope] = {}
        self._bytes = 0

    # -- what happens ---------------------------------------------------------------------------------------------

    def drafted(self, first: int, envelopes: Sequence[Envelope], until: int) -> None:
        """As the store has written them, with numbers from ``first`` on."""
        draft = State.DRAFT
        cards = []
        for seq, sent in enumerate(envelopes, first):
            queue, id, rank, published, _, expires, _, header, payload, _, group, target = sent
            life = (draft, rank, seq, 0, 0, until, expires, published, "", "", 0, True, group, target)
            cards.append(new_message((seq, queue, id, *life, len(payload) + len(header))))
            self._keep(seq, sent)
        self._hold(cards)

    def moved(self, old: State, new: State, changes: Sequence[Change]) -> None:
        """Changes of one kind."""
        if new in HELD:
            self._hold([after for _, after, _ in changes])
            return
        if old in HELD:
            for before, _, _ in changes:
                self._cards.pop(before[0], None)
        if new is not State.LEASED and old in WITH_NAMES and self._numbers:
            for before, _, _ in changes:
                self._numbers.pop((before[1], before[2]), None)
        if new not in WITH_NAMES and new not in IN_LINE and self._sent:
            for before, _, _ in changes:
                self._drop(before[0])

    def rewritten(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        for message, sent in zip(messages, envelopes, strict=True):
            self._cards.pop(message[0], None)
            self._keep(message[0], sent)

    def forget(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._cards.pop(message[0], None)
            self._numbers.pop((message[1], message[2]), None)
            self._drop(message[0])

    def clear(self) -> None:
        self._cards.clear()
        self._numbers.clear()
        self._sent.clear()
        self._bytes = 0

    def _hold(self, cards: list[Message]) -> None:
        if len(self._numbers) + len(cards) > MOST_CARDS:
            self._cards.clear()
            self._numbers.clear()
        self._cards.update([(card[0], card) for card in cards])
        self._numbers.update([((card[1], card[2]), card[0]) for card in cards])

    def _keep(self, seq: int, sent: Envelope) -> None:
        self._drop(seq)
        self._bytes += len(sent[8]) + ENVELOPE_BYTES
        if self._bytes > MOST_CONTENT_BYTES:
            self._sent.clear()
            self._bytes = len(sent[8]) + ENVELOPE_BYTES
        self._sent[seq] = sent

    def _drop(self, seq: int) -> None:
        sent = self._sent.pop(seq, None)
        if sent is not None:
            self._bytes -= len(sent[8]) + ENVELOPE_BYTES

    # -- what is asked for ----------------------------------------------------------------------------------------

    def by_id(self, queue: str, ids: Sequence[str], leased: Mapping[int, Message]) -> list[Message] | None:
        """All of them, or None; ``leased``: the cards of those."""
        numbers, cards = self._numbers, self._cards
        found = []
        for id in ids:
            seq = numbers.get((queue, id))
            card = None if seq is None else cards.get(seq) or leased.get(seq)
            if card is None:
                return None
            found.append(card)
        return found

    def envelopes(self, messages: Sequence[Message]) -> list[Envelope] | None:
        """Of all of them, or None."""
        sent = self._sent
        found = [sent[message[0]] for message in messages if message[0] in sent]
        return found if len(found) == len(messages) else None
