"""Statement recorder with a negative cache, and caches of recent payloads and of messages known by id.

``Recorder`` takes the place of the connection in transactions of the server store:

- It records each statement that changed something, for the redo log.
- It defers statements that cannot fail and whose result is unused, to the next query at the latest.
- It remembers queries that found nothing (negative cache) until a row is put into the one table they ask.
- It waits for a background commit before it uses the connection.

``Arrivals`` keeps up to 8 MiB of envelopes just published, so that a waiting consumer is served without a query.

``Named`` keeps what this process wrote a moment ago and will be asked for by id: drafts, claimed messages, and
contents that were just set. Both are part of ``reads.Known`` and are dropped with it when another process has written
or a transaction has failed."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import apsw

from yirangmq.core.message import Envelope, Message, new_message, total_size
from yirangmq.core.ports import Change
from yirangmq.core.states import State
from yirangmq.stores.sqlite.redo_log import Made

# -- statement recorder ------------------------------------------------------------------------------------------------

Values = Sequence[Any]
_PUTS_INTO = re.compile(r"(?:INTO|UPDATE)\s+(?:OR\s+\w+\s+)?(\w+)")
MOST_IN_VAIN = 1000
"""Looks remembered for each table."""


class _Kind(NamedTuple):
    """Of statements."""

    word: str
    waits: bool = False
    vain: set[tuple[str, Values]] | None = None
    """Where a look that finds nothing is remembered."""
    puts_into: tuple[set[tuple[str, Values]], ...] = ()
    """What is not known any more after it."""


class Recorder:
    """As much of ``apsw.Connection`` as a batch of work uses."""

    def __init__(
        self, db: apsw.Connection, patient: Iterable[str] = (), steady: Mapping[str, str] | None = None
    ) -> None:
        """``patient``: statements that change what they say, without fail, and whose outcome nobody asks for. They are
        made before anything else is asked, or by ``make``, in this batch of work or a later one. ``steady``: looks that
        find nothing until something is put into the one table that is named here; what they give can only be
        iterated."""
        self._execute = db.execute
        self._executemany = db.executemany
        self.changes = db.changes
        self.made: list[Made] = []
        self.is_in_doubt = False
        """A statement failed, and may have changed something before it did."""
        self._vain: dict[str, set[tuple[str, Values]]] = {table: set() for table in (steady or {}).values()}
        self._kinds: dict[str, _Kind] = {}
        for statement in patient:
            self._kinds[statement] = self._kind(statement)._replace(waits=True)
        for statement, table in (steady or {}).items():
            self._kinds[statement] = _Kind("SELECT", vain=self._vain[table])
        self._waiting: list[tuple[str, Values]] = []
        """What is not made yet, in order."""
        self.is_torn = False
        """Nobody knows how much of what waited was made."""
        self.reach: Callable[[], None] | None = None
        """To be called before the connection is used, if it is away; it comes back, or that is an error."""

    def execute(self, statement: str, values: Values = ()) -> Any:
        word, waits, vain, puts_into = self._kinds.get(statement) or self._kind(statement)
        if vain is not None and (statement, values) in vain:
            return iter(())
        for known in puts_into:
            known.clear()
        if waits:
            self.made.append((statement, False, values))
            self._waiting.append((statement, values))
            return None
        if self._waiting or self.reach is not None:
            self.make()
        try:
            cursor = self._execute(statement, values)
        except BaseException:
            self.is_in_doubt = True
            raise
        if vain is not None:
            return _remembered(vain, (statement, values), cursor)
        if word != "SELECT" and (word == "INSERT" or self.changes()):
            self.made.append((statement, False, values))
        return cursor

    def executemany(self, statement: str, rows: Iterable[Values]) -> apsw.Cursor:
        every = rows if isinstance(rows, list) else list(rows)
        for known in (self._kinds.get(statement) or self._kind(statement)).puts_into:
            known.clear()
        if self._waiting or self.reach is not None:
            self.make()
        try:
            cursor = self._executemany(statement, every)
        except BaseException:
            self.is_in_doubt = True
            raise
        if every:
            self.made.append((statement, True, every))
        return cursor

    def make(self) -> None:
        """What waits."""
        was_in_doubt = self.is_in_doubt
        if self.reach is not None:
            self.reach()
        if not self._waiting:
            return
        self.is_torn = self.is_in_doubt = True
        for statement, values in self._waiting:
            self._execute(statement, values)
        self._waiting.clear()
        self.is_torn = False
        self.is_in_doubt = was_in_doubt

    def begin(self) -> None:
        """Another batch of work."""
        self.made = []
        self.is_in_doubt = False

    def give_up(self) -> None:
        """What waits: nothing of it happened, or it is made again by others."""
        self._waiting.clear()
        self.is_torn = False

    def doubt(self) -> None:
        """What is in the tables may be something else than was seen."""
        for known in self._vain.values():
            known.clear()

    def _kind(self, statement: str) -> _Kind:
        """By its first word; of one that gives back rows SQLite does not know yet whether it changes any."""
        word = "INSERT" if "RETURNING" in statement else statement.split(None, 1)[0].upper()
        puts_into = [self._vain[table] for table in _PUTS_INTO.findall(statement) if table in self._vain]
        kind = self._kinds[statement] = _Kind(word, puts_into=tuple(puts_into))
        return kind


def _remembered(vain: set[tuple[str, Values]], look: tuple[str, Values], cursor: apsw.Cursor) -> Iterable[Any]:
    row = cursor.fetchone()
    if row is not None:
        return chain((row,), cursor)
    if len(vain) >= MOST_IN_VAIN:
        vain.clear()
    vain.add(look)
    return iter(())


# -- recent payloads ---------------------------------------------------------------------------------------------------

EACH = 300
"""Bytes that a message takes beside payload and header."""
MOST_ARRIVED_BYTES = 8 * 1024 * 1024
"""Of payloads and headers. What comes when it is full is read back when it is wanted: those that came before it are
wanted first. Only when as much again has passed and nobody wanted any of them, all are let go."""


class Arrivals:
    def __init__(self) -> None:
        self._sent: dict[int, Envelope] = {}
        self._size = 0
        self._passed = 0
        """Bytes that found no room since something was last found here."""

    def add(self, first: int, envelopes: Sequence[Envelope], size: int) -> None:
        """Those with the numbers from ``first`` on, of so many bytes, if there is room."""
        size += EACH * len(envelopes)
        if self._size + size > MOST_ARRIVED_BYTES:
            self._passed += size
            if self._passed <= MOST_ARRIVED_BYTES:
                return
            self.clear()
        if size <= MOST_ARRIVED_BYTES:
            self._sent.update(enumerate(envelopes, first))
            self._size += size

    def find(self, first: int, count: int) -> list[Envelope] | None:
        """All of these, or None."""
        sent = self._sent
        if first not in sent:
            return None
        try:
            found = [sent[seq] for seq in range(first, first + count)]
        except KeyError:
            return None
        self._passed = 0
        return found

    def drop(self, first: int, last: int) -> None:
        """They are out of line."""
        if self._sent:
            gone = map(self._sent.pop, range(first, last + 1), repeat(None))
            found = [one for one in gone if one is not None]
            self._size -= total_size(found) + EACH * len(found)

    def clear(self) -> None:
        self._sent.clear()
        self._size = self._passed = 0


# -- messages known by id ----------------------------------------------------------------------------------------------

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
