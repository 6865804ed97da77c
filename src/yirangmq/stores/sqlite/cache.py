"""Statement recorder with a negative cache, and caches of recent payloads and of messages by id.

``Recorder`` takes the place of the connection in transactions of the server store:

- It records each statement that changed something, for the redo log.
- It defers statements that cannot fail and whose result is unused, to the next query at the latest.
- It remembers queries that found nothing (negative cache) until a row is put into the one table they read.
- It waits for a background commit before it uses the connection.

``RecentPayloads`` keeps up to 8 MiB of envelopes just published, so that a waiting consumer is served without a query.

``NameCache`` keeps messages that this process wrote recently and that clients request by id: drafts, claimed messages,
and contents that were just set. Both are part of ``reads.Known``. They are dropped with it when another process has
written or a transaction has failed."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import apsw

from yirangmq.core.message import Envelope, Message, new_message, seq_of, total_size
from yirangmq.core.ports import Change, before_of
from yirangmq.core.states import State
from yirangmq.stores.sqlite.redo_log import LoggedStatement

# -- statement recorder ------------------------------------------------------------------------------------------------

Values = Sequence[Any]
_PUTS_INTO = re.compile(r"(?:INTO|UPDATE)\s+(?:OR\s+\w+\s+)?(\w+)")
MAX_MISSES = 1000
"""Maximum number of empty results remembered per table; beyond it those of the table are dropped."""


class _Kind(NamedTuple):
    """How the recorder treats one statement."""

    word: str
    is_deferrable: bool = False
    misses: set[tuple[str, Values]] | None = None
    """Negative cache that remembers empty results of this statement; None if they are not remembered."""
    invalidated: tuple[set[tuple[str, Values]], ...] = ()
    """Negative caches that this statement invalidates."""


class Recorder:
    """Statement recorder: the part of ``apsw.Connection`` that a transaction uses, with deferred statements and a
    negative cache.

    An error in ``execute`` or ``executemany`` sets ``is_in_doubt``. Not thread-safe: used under the store's lock."""

    def __init__(
        self, db: apsw.Connection, deferrable: Iterable[str] = (), cacheable: Mapping[str, str] | None = None
    ) -> None:
        """``deferrable``: deferrable statements. They cannot fail and their result is not read. They are recorded
        immediately and executed before the next query, or by ``flush_deferred``, in this transaction or a later one.

        ``cacheable``: queries with cacheable misses, each with the one table it depends on. An empty result stays valid
        until a row is put into that table. The result of such a query can only be iterated."""
        self._execute = db.execute
        self._executemany = db.executemany
        self.changes = db.changes
        self.logged: list[LoggedStatement] = []
        self.is_in_doubt = False
        """True if a statement failed; it may have changed rows before it did."""
        self._misses: dict[str, set[tuple[str, Values]]] = {table: set() for table in (cacheable or {}).values()}
        self._kinds: dict[str, _Kind] = {}
        for statement in deferrable:
            self._kinds[statement] = self._kind(statement)._replace(is_deferrable=True)
        for statement, table in (cacheable or {}).items():
            self._kinds[statement] = _Kind("SELECT", misses=self._misses[table])
        self._deferred: list[tuple[str, Values]] = []
        """Deferred statements that are not executed yet, in order."""
        self.is_partially_applied = False
        """True if executing the deferred statements failed: an unknown part of them was executed."""
        self.join_background_commit: Callable[[], None] | None = None
        """Called before the connection is used, while a background commit has it. It joins that commit, or raises."""

    def execute(self, statement: str, values: Values = ()) -> Any:
        word, is_deferrable, misses, invalidated = self._kinds.get(statement) or self._kind(statement)
        if misses is not None and (statement, values) in misses:
            return iter(())
        for known in invalidated:
            known.clear()
        if is_deferrable:
            self.logged.append((statement, False, values))
            self._deferred.append((statement, values))
            return None
        if self._deferred or self.join_background_commit is not None:
            self.flush_deferred()
        try:
            cursor = self._execute(statement, values)
        except BaseException:
            self.is_in_doubt = True
            raise
        if misses is not None:
            return _remembered(misses, (statement, values), cursor)
        if word != "SELECT" and (word == "INSERT" or self.changes()):
            self.logged.append((statement, False, values))
        return cursor

    def executemany(self, statement: str, rows: Iterable[Values]) -> apsw.Cursor:
        every = rows if isinstance(rows, list) else list(rows)
        for known in (self._kinds.get(statement) or self._kind(statement)).invalidated:
            known.clear()
        if self._deferred or self.join_background_commit is not None:
            self.flush_deferred()
        try:
            cursor = self._executemany(statement, every)
        except BaseException:
            self.is_in_doubt = True
            raise
        if every:
            self.logged.append((statement, True, every))
        return cursor

    def flush_deferred(self) -> None:
        """Join the background commit if there is one, and execute the deferred statements."""
        was_in_doubt = self.is_in_doubt
        if self.join_background_commit is not None:
            self.join_background_commit()
        if not self._deferred:
            return
        self.is_partially_applied = self.is_in_doubt = True
        for statement, values in self._deferred:
            self._execute(statement, values)
        self._deferred.clear()
        self.is_partially_applied = False
        self.is_in_doubt = was_in_doubt

    def start(self) -> None:
        """Start recording a new transaction."""
        self.logged = []
        self.is_in_doubt = False

    def discard_deferred(self) -> None:
        """Discard the deferred statements: their transaction failed, or the redo log replays them."""
        self._deferred.clear()
        self.is_partially_applied = False

    def invalidate_misses(self) -> None:
        """Invalidate the negative caches, because the tables may have changed without the recorder."""
        for known in self._misses.values():
            known.clear()

    def _kind(self, statement: str) -> _Kind:
        """Classify a statement by its first word. One with RETURNING counts as an INSERT, which is always recorded:
        before its rows are read, SQLite does not report whether it changes any."""
        word = "INSERT" if "RETURNING" in statement else statement.split(None, 1)[0].upper()
        invalidated = [self._misses[table] for table in _PUTS_INTO.findall(statement) if table in self._misses]
        kind = self._kinds[statement] = _Kind(word, invalidated=tuple(invalidated))
        return kind


def _remembered(misses: set[tuple[str, Values]], query: tuple[str, Values], cursor: apsw.Cursor) -> Iterable[Any]:
    """Return the rows of a query; remember it in the negative cache if it has none."""
    row = cursor.fetchone()
    if row is not None:
        return chain((row,), cursor)
    if len(misses) >= MAX_MISSES:
        misses.clear()
    misses.add(query)
    return iter(())


# -- recent payloads ---------------------------------------------------------------------------------------------------

RECENT_OVERHEAD_BYTES = 300
"""Memory of a cached envelope in bytes, in addition to payload and header."""
MAX_RECENT_BYTES = 8 * 1024 * 1024
"""Upper bound of cached payloads and headers, in bytes. When the cache is full, new payloads are not cached, because
consumers need the older ones first; they are read from the file later. If another ``MAX_RECENT_BYTES`` pass without
a hit, the cache is cleared."""


class RecentPayloads:
    """Cache of envelopes that were just published, by number, until they leave the ready runs."""

    def __init__(self) -> None:
        self._sent: dict[int, Envelope] = {}
        self._size = 0
        self._passed = 0
        """Bytes that were not cached for lack of space since the last hit."""

    def add(self, first: int, envelopes: Sequence[Envelope], size: int) -> None:
        """Cache envelopes numbered from ``first``, with ``size`` bytes of payloads and headers, if there is space."""
        size += RECENT_OVERHEAD_BYTES * len(envelopes)
        if self._size + size > MAX_RECENT_BYTES:
            self._passed += size
            if self._passed <= MAX_RECENT_BYTES:
                return
            self.clear()
        if size <= MAX_RECENT_BYTES:
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
            self._size -= total_size(found) + RECENT_OVERHEAD_BYTES * len(found)

    def clear(self) -> None:
        self._sent.clear()
        self._size = self._passed = 0


# -- messages by id ----------------------------------------------------------------------------------------------------

MAX_NAMED_MESSAGES = 20_000
"""Maximum number of cached ids, about 500 bytes each including the id."""
MAX_NAMED_CONTENT_BYTES = 4 * 1024 * 1024
"""Upper bound of cached contents, in bytes, not counting those that a request is using. In a queue where messages wait
long, contents are evicted before they are requested, and are read from the file."""
ENVELOPE_BYTES = 500
"""Memory of a cached envelope in bytes, without its payload."""
HELD = (State.DRAFT, State.CLAIMED)
"""States in which the message is cached."""
NUMBER_CACHED_STATES = (*HELD, State.LEASED)
"""States in which the number of an id is cached; ``reads.Known`` has the leased messages themselves."""
CONTENT_CACHED_STATES = (State.READY, State.DELAYED, State.HELD)
"""Further states in which a cached content stays cached."""


class NameCache:
    """Cache of messages that are requested by id: drafts, claimed and leased messages, and contents just set."""

    __slots__ = ("_bytes", "_messages", "_numbers", "_sent")

    def __init__(self) -> None:
        self._messages: dict[int, Message] = {}
        """Drafts and claimed messages, by number."""
        self._numbers: dict[tuple[str, str], int] = {}
        """Numbers by queue and id: of the messages in ``_messages``, and of those leased by id."""
        self._sent: dict[int, Envelope] = {}
        self._bytes = 0

    # -- updates --------------------------------------------------------------------------------------------------

    def add_drafts(self, first: int, envelopes: Sequence[Envelope], until: int) -> None:
        """Cache drafts as the store has written them, numbered from ``first``."""
        draft = State.DRAFT
        messages = []
        for seq, sent in enumerate(envelopes, first):
            queue, id, rank, published, _, expires, _, header, payload, _, group, target = sent
            life = (draft, rank, seq, 0, 0, until, expires, published, "", "", 0, True, group, target)
            messages.append(new_message((seq, queue, id, *life, len(payload) + len(header))))
            self._add_envelope(seq, sent)
        self._add_messages(messages)

    def apply_changes(self, old: State, new: State, changes: Sequence[Change]) -> None:
        """Follow changes of one kind, from state ``old`` to state ``new``."""
        if new in HELD:
            self._add_messages([change.after for change in changes])
            return
        if old in HELD:
            for seq in map(seq_of, map(before_of, changes)):
                self._messages.pop(seq, None)
        if new is not State.LEASED and old in NUMBER_CACHED_STATES and self._numbers:
            for before in map(before_of, changes):
                self._numbers.pop((before.queue, before.id), None)
        if new not in NUMBER_CACHED_STATES and new not in CONTENT_CACHED_STATES and self._sent:
            for seq in map(seq_of, map(before_of, changes)):
                self._drop(seq)

    def replace_contents(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        for message, sent in zip(messages, envelopes, strict=True):
            self._messages.pop(message.seq, None)
            self._add_envelope(message.seq, sent)

    def forget(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._messages.pop(message.seq, None)
            self._numbers.pop((message.queue, message.id), None)
            self._drop(message.seq)

    def clear(self) -> None:
        self._messages.clear()
        self._numbers.clear()
        self._sent.clear()
        self._bytes = 0

    def _add_messages(self, messages: list[Message]) -> None:
        if len(self._numbers) + len(messages) > MAX_NAMED_MESSAGES:
            self._messages.clear()
            self._numbers.clear()
        self._messages.update({message.seq: message for message in messages})
        self._numbers.update({(message.queue, message.id): message.seq for message in messages})

    def _add_envelope(self, seq: int, sent: Envelope) -> None:
        self._drop(seq)
        self._bytes += len(sent.payload) + ENVELOPE_BYTES
        if self._bytes > MAX_NAMED_CONTENT_BYTES:
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
        numbers, messages = self._numbers, self._messages
        found = []
        for id in ids:
            seq = numbers.get((queue, id))
            message = None if seq is None else messages.get(seq) or leased.get(seq)
            if message is None:
                return None
            found.append(message)
        return found

    def envelopes(self, messages: Sequence[Message]) -> list[Envelope] | None:
        """Return the envelopes of all of these messages, or None if any is missing."""
        sent = self._sent
        found = [sent[seq] for seq in map(seq_of, messages) if seq in sent]
        return found if len(found) == len(messages) else None
