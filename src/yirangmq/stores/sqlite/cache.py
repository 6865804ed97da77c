"""Statement recorder with a negative cache, and caches of recent payloads and of messages by id.

``Recorder`` takes the place of the connection in transactions of the server store:

- It records each statement that changed something, for the redo log.
- It defers statements that cannot fail and whose result is unused, to the next query at the latest.
- It remembers queries that found nothing (negative cache) until a row is put into the one table they read.
- It waits for a background commit before it uses the connection.

``Arrivals`` keeps up to 8 MiB of envelopes just published, so that a waiting consumer is served without a query.

``Named`` keeps messages that this process wrote recently and that clients request by id: drafts, claimed messages, and
contents that were just set. Both are part of ``reads.Known``. They are dropped with it when another process has written
or a transaction has failed."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import apsw

from yirangmq.core.message import Envelope, Message, new_message, seq_of, total_size
from yirangmq.core.ports import Change, before_of
from yirangmq.core.states import State
from yirangmq.stores.sqlite.redo_log import Made

# -- statement recorder ------------------------------------------------------------------------------------------------

Values = Sequence[Any]
_PUTS_INTO = re.compile(r"(?:INTO|UPDATE)\s+(?:OR\s+\w+\s+)?(\w+)")
MOST_IN_VAIN = 1000
"""Maximum number of empty results remembered per table; beyond it those of the table are dropped."""


class _Kind(NamedTuple):
    """How the recorder treats one statement."""

    word: str
    waits: bool = False
    vain: set[tuple[str, Values]] | None = None
    """Negative cache that remembers empty results of this statement; None if they are not remembered."""
    puts_into: tuple[set[tuple[str, Values]], ...] = ()
    """Negative caches that this statement invalidates."""


class Recorder:
    """Statement recorder: the part of ``apsw.Connection`` that a transaction uses, with deferred statements and a
    negative cache.

    An error in ``execute`` or ``executemany`` sets ``is_in_doubt``. Not thread-safe: used under the store's lock."""

    def __init__(
        self, db: apsw.Connection, patient: Iterable[str] = (), steady: Mapping[str, str] | None = None
    ) -> None:
        """``patient``: deferrable statements. They cannot fail and their result is not read. They are recorded
        immediately and executed before the next query, or by ``make``, in this transaction or a later one.

        ``steady``: queries with cacheable misses, each with the one table it depends on. An empty result stays valid
        until a row is put into that table. The result of such a query can only be iterated."""
        self._execute = db.execute
        self._executemany = db.executemany
        self.changes = db.changes
        self.made: list[Made] = []
        self.is_in_doubt = False
        """True if a statement failed; it may have changed rows before it did."""
        self._vain: dict[str, set[tuple[str, Values]]] = {table: set() for table in (steady or {}).values()}
        self._kinds: dict[str, _Kind] = {}
        for statement in patient:
            self._kinds[statement] = self._kind(statement)._replace(waits=True)
        for statement, table in (steady or {}).items():
            self._kinds[statement] = _Kind("SELECT", vain=self._vain[table])
        self._waiting: list[tuple[str, Values]] = []
        """Deferred statements that are not executed yet, in order."""
        self.is_torn = False
        """True if executing the deferred statements failed: an unknown part of them was executed."""
        self.reach: Callable[[], None] | None = None
        """Called before the connection is used, while a background commit has it. It joins that commit, or raises."""

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
        """Join the background commit if there is one, and execute the deferred statements."""
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
        """Start recording a new transaction."""
        self.made = []
        self.is_in_doubt = False

    def give_up(self) -> None:
        """Discard the deferred statements: their transaction failed, or the redo log replays them."""
        self._waiting.clear()
        self.is_torn = False

    def doubt(self) -> None:
        """Invalidate the negative caches, because the tables may have changed without the recorder."""
        for known in self._vain.values():
            known.clear()

    def _kind(self, statement: str) -> _Kind:
        """Classify a statement by its first word. One with RETURNING counts as an INSERT, which is always recorded:
        before its rows are read, SQLite does not report whether it changes any."""
        word = "INSERT" if "RETURNING" in statement else statement.split(None, 1)[0].upper()
        puts_into = [self._vain[table] for table in _PUTS_INTO.findall(statement) if table in self._vain]
        kind = self._kinds[statement] = _Kind(word, puts_into=tuple(puts_into))
        return kind


def _remembered(vain: set[tuple[str, Values]], look: tuple[str, Values], cursor: apsw.Cursor) -> Iterable[Any]:
    """Return the rows of a query; remember it in the negative cache if it has none."""
    row = cursor.fetchone()
    if row is not None:
        return chain((row,), cursor)
    if len(vain) >= MOST_IN_VAIN:
        vain.clear()
    vain.add(look)
    return iter(())


# -- recent payloads ---------------------------------------------------------------------------------------------------

EACH = 300
"""Memory of a cached envelope in bytes, in addition to payload and header."""
MOST_ARRIVED_BYTES = 8 * 1024 * 1024
"""Upper bound of cached payloads and headers, in bytes. When the cache is full, new payloads are not cached, because
consumers need the older ones first; they are read from the file later. If another ``MOST_ARRIVED_BYTES`` pass without
a hit, the cache is cleared."""


class Arrivals:
    """Cache of envelopes that were just published, by number, until they leave the ready runs."""

    def __init__(self) -> None:
        self._sent: dict[int, Envelope] = {}
        self._size = 0
        self._passed = 0
        """Bytes that were not cached for lack of space since the last hit."""

    def add(self, first: int, envelopes: Sequence[Envelope], size: int) -> None:
        """Cache envelopes numbered from ``first``, with ``size`` bytes of payloads and headers, if there is space."""
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
        """Return ``count`` envelopes numbered from ``first``, or None if any is missing."""
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
        """Remove messages that left the ready runs or were rewritten."""
        if self._sent:
            gone = map(self._sent.pop, range(first, last + 1), repeat(None))
            found = [one for one in gone if one is not None]
            self._size -= total_size(found) + EACH * len(found)

    def clear(self) -> None:
        self._sent.clear()
        self._size = self._passed = 0


# -- messages by id ----------------------------------------------------------------------------------------------------

MOST_CARDS = 20_000
"""Maximum number of cached ids, about 500 bytes each including the id."""
MOST_CONTENT_BYTES = 4 * 1024 * 1024
"""Upper bound of cached contents, in bytes, not counting those that a request is using. In a queue where messages wait
long, contents are evicted before they are requested, and are read from the file."""
ENVELOPE_BYTES = 500
"""Memory of a cached envelope in bytes, without its payload."""
HELD = (State.DRAFT, State.CLAIMED)
"""States in which the message is cached."""
WITH_NAMES = (*HELD, State.LEASED)
"""States in which the number of an id is cached; ``reads.Known`` has the leased messages themselves."""
IN_LINE = (State.READY, State.DELAYED, State.HELD)
"""Further states in which a cached content stays cached."""


class Named:
    """Cache of messages that are requested by id: drafts, claimed and leased messages, and contents just set."""

    __slots__ = ("_bytes", "_cards", "_numbers", "_sent")

    def __init__(self) -> None:
        self._cards: dict[int, Message] = {}
        """Drafts and claimed messages, by number."""
        self._numbers: dict[tuple[str, str], int] = {}
        """Numbers by queue and id: of the messages in ``_cards``, and of those leased by id."""
        self._sent: dict[int, Envelope] = {}
        self._bytes = 0

    # -- updates --------------------------------------------------------------------------------------------------

    def drafted(self, first: int, envelopes: Sequence[Envelope], until: int) -> None:
        """Cache drafts as the store has written them, numbered from ``first``."""
        draft = State.DRAFT
        cards = []
        for seq, sent in enumerate(envelopes, first):
            queue, id, rank, published, _, expires, _, header, payload, _, group, target = sent
            life = (draft, rank, seq, 0, 0, until, expires, published, "", "", 0, True, group, target)
            cards.append(new_message((seq, queue, id, *life, len(payload) + len(header))))
            self._keep(seq, sent)
        self._hold(cards)

    def moved(self, old: State, new: State, changes: Sequence[Change]) -> None:
        """Follow changes of one kind, from state ``old`` to state ``new``."""
        if new in HELD:
            self._hold([change.after for change in changes])
            return
        if old in HELD:
            for seq in map(seq_of, map(before_of, changes)):
                self._cards.pop(seq, None)
        if new is not State.LEASED and old in WITH_NAMES and self._numbers:
            for before in map(before_of, changes):
                self._numbers.pop((before.queue, before.id), None)
        if new not in WITH_NAMES and new not in IN_LINE and self._sent:
            for seq in map(seq_of, map(before_of, changes)):
                self._drop(seq)

    def rewritten(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        for message, sent in zip(messages, envelopes, strict=True):
            self._cards.pop(message.seq, None)
            self._keep(message.seq, sent)

    def forget(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._cards.pop(message.seq, None)
            self._numbers.pop((message.queue, message.id), None)
            self._drop(message.seq)

    def clear(self) -> None:
        self._cards.clear()
        self._numbers.clear()
        self._sent.clear()
        self._bytes = 0

    def _hold(self, cards: list[Message]) -> None:
        if len(self._numbers) + len(cards) > MOST_CARDS:
            self._cards.clear()
            self._numbers.clear()
        self._cards.update({card.seq: card for card in cards})
        self._numbers.update({(card.queue, card.id): card.seq for card in cards})

    def _keep(self, seq: int, sent: Envelope) -> None:
        self._drop(seq)
        self._bytes += len(sent.payload) + ENVELOPE_BYTES
        if self._bytes > MOST_CONTENT_BYTES:
            self._sent.clear()
            self._bytes = len(sent.payload) + ENVELOPE_BYTES
        self._sent[seq] = sent

    def _drop(self, seq: int) -> None:
        sent = self._sent.pop(seq, None)
        if sent is not None:
            self._bytes -= len(sent.payload) + ENVELOPE_BYTES

    # -- lookups --------------------------------------------------------------------------------------------------

    def by_id(self, queue: str, ids: Sequence[str], leased: Mapping[int, Message]) -> list[Message] | None:
        """Return all of these messages, or None if any is missing. ``leased``: leased messages by number."""
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
        """Return the envelopes of all of these messages, or None if any is missing."""
        sent = self._sent
        found = [sent[seq] for seq in map(seq_of, messages) if seq in sent]
        return found if len(found) == len(messages) else None
