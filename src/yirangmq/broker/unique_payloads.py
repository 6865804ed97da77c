"""Index of unique payloads: SHA-256 keys in the store, for queues without two equal payloads.

The message that has a payload holds its key. The cost of a lookup does not depend on the depth of the queue. A key does
not block a payload if its holder is gone or has other content.

If messages were equal before the queue became unique, the first is the holder, and the others are its successors under
numbered keys. A mark records the number of messages that the queue had ever received when all of them were indexed. If
it differs from the current number, some messages bypassed the index. Then the whole queue is indexed before the next
comparison."""

from collections.abc import Callable, Collection, Sequence
from hashlib import sha256

from yirangmq.core.errors import WrongState
from yirangmq.core.message import Envelope, Message
from yirangmq.core.ports import AddResult, Change, Transaction
from yirangmq.core.states import State
from yirangmq.format.envelope import RESERVED_KEYS

MARK = f"{RESERVED_KEYS}all"
FOREVER = 9_999_999_999_999
"""Expiry of the keys, in ms since 1970: in the year 2286."""
COMPARED = (
    State.DEAD, State.PARKED, State.DELAYED, State.HELD, State.READY, State.CLAIMED, State.LEASED,
)  # fmt: skip
"""States in which a message occupies its payload.

Indexing scans the states in this order, so that a message that is leased during the scan is found in a later state.
``track`` applies all other state changes."""
PER_PAGE = 200
NO_SEQS: frozenset[int] = frozenset()

Holder = tuple[int, str]


def key_of(payload: bytes) -> str:
    return RESERVED_KEYS + sha256(payload).hexdigest()


class UniquePayloadIndex:
    """Index of unique payloads of one store. Used inside transactions, by one thread at a time."""

    def __init__(self) -> None:
        self._being_indexed: set[str] = set()

    # -- adding messages ------------------------------------------------------------------------------------------

    def add(
        self, transaction: Transaction, queue: str, envelopes: Sequence[Envelope], now: int, dedup_until: int
    ) -> list[AddResult]:
        """Like ``Transaction.add``, but an envelope with a known payload is a duplicate, also within the batch."""
        self._complete(transaction, queue, now)
        keys = [key_of(envelope.payload) for envelope in envelopes]
        known = {key: self._holder(transaction, queue, key, now) for key in keys}
        first = dict(reversed([(key, place) for place, key in enumerate(keys)]))
        new = [place for place, key in enumerate(keys) if known[key] is None and first[key] == place]
        stored = dict(zip(new, transaction.add([envelopes[n] for n in new], now, dedup_until), strict=True))
        fresh = {keys[n]: (one.seq, one.id) for n, one in stored.items() if not one.duplicate}
        transaction.hold_keys(queue, fresh, FOREVER)
        self._mark(transaction, queue)
        return [stored.get(n) or _there(known[key], stored.get(first[key])) for n, key in enumerate(keys)]

    def check(self, transaction: Transaction, message: Message, payload: bytes, now: int) -> None:
        """Raise ``WrongState`` if another message has the payload that ``message`` is about to get."""
        queue, key = message.queue, key_of(payload)
        self._complete(transaction, queue, now)
        holder = self._holder(transaction, queue, key, now)
        if holder is not None and holder[0] == message.seq:
            holder = self._successor(transaction, queue, key, message.seq, now)
        if holder is not None:
            raise WrongState(f"message {holder[1]} has the same payload")

    def rewritten(self, transaction: Transaction, message: Message, old: bytes | None, new: bytes, now: int) -> None:
        """Replace the key of a message after a change of content. ``old`` is None if it had no content before."""
        if old is not None:
            self._pass_key(transaction, message.queue, key_of(old), {message.seq}, now)
        transaction.hold_keys(message.queue, {key_of(new): (message.seq, message.id)}, FOREVER)
        self._mark(transaction, message.queue)

    def _mark(self, transaction: Transaction, queue: str) -> None:
        """Record that all messages that the queue ever received are indexed, unless indexing is in progress."""
        if queue not in self._being_indexed:
            transaction.hold_keys(queue, {MARK: (transaction.counts(queue).published, "all")}, FOREVER)

    # -- state changes --------------------------------------------------------------------------------------------

    def track(self, transaction: Transaction, queue: str, changes: Sequence[Change], now: int) -> None:
        """Release the keys of messages of a unique queue that reach a final state. Call it before the changes are
        swapped."""
        gone = [old for old, new, _ in changes if old.state in COMPARED and new.state not in COMPARED]
        seqs = {message.seq for message in gone}
        for key in dict.fromkeys(key for key, _ in _keys(transaction, gone)):
            self._pass_key(transaction, queue, key, seqs, now)
        if queue in self._being_indexed:
            self._index(transaction, queue, [old for old, new, _ in changes if new.state in COMPARED], now)

    # -- index maintenance ----------------------------------------------------------------------------------------

    def start_index(self, queue: str) -> None:
        """Start an index run: the caller then indexes all pages, and calls ``end_index`` or ``abort_index``."""
        self._being_indexed.add(queue)

    def index_page(self, transaction: Transaction, queue: str, state: State, cursor: str, now: int) -> str:
        """Index one page of messages. Return the next cursor, "" at the end."""
        page = transaction.scan(queue, state, PER_PAGE, cursor)
        self._index(transaction, queue, page.messages, now)
        return page.cursor

    def end_index(self, transaction: Transaction, queue: str) -> None:
        self._being_indexed.discard(queue)
        self._mark(transaction, queue)

    def abort_index(self, queue: str) -> None:
        """Abort an index run. The next comparison indexes the queue again."""
        self._being_indexed.discard(queue)

    def invalidate(self, transaction: Transaction, queue: str) -> None:
        """Invalidate the index, after content changed in a queue that is not unique."""
        transaction.free_keys(queue, [MARK])

    def remove_page(self, transaction: Transaction, queue: str, state: State, cursor: str, now: int) -> str:
        """Remove the keys of one page of messages, with the numbered keys of successors. Return the next cursor."""
        page = transaction.scan(queue, state, PER_PAGE, cursor)
        for key, _ in _keys(transaction, page.messages):
            heirs = [_behind(key, n) for n in range(1, _last_heir(transaction, queue, key, now) + 1)]
            transaction.free_keys(queue, [key, *heirs])
        return page.cursor

    def _complete(self, transaction: Transaction, queue: str, now: int) -> None:
        """Index the whole queue in this transaction, unless the index is complete or an index run is active."""
        if queue in self._being_indexed:
            return
        [mark] = transaction.key_holders(queue, [MARK], now)
        if mark is not None and mark[0] == transaction.counts(queue).published:
            return
        for state in COMPARED:
            walk(lambda cursor, state=state: self.index_page(transaction, queue, state, cursor, now))  # type: ignore[misc]
        self.end_index(transaction, queue)

    def _index(self, transaction: Transaction, queue: str, messages: Sequence[Message], now: int) -> None:
        """Index messages. The first one found with a payload holds its key; later ones become successors."""
        for key, message in _keys(transaction, messages):
            holder = self._holder(transaction, queue, key, now)
            if holder is None:
                transaction.hold_keys(queue, {key: (message.seq, message.id)}, FOREVER)
            elif holder[0] != message.seq:
                last = _behind(key, _last_heir(transaction, queue, key, now) + 1)
                transaction.hold_keys(queue, {last: (message.seq, message.id)}, FOREVER)

    # -- one key --------------------------------------------------------------------------------------------------

    def _holder(self, transaction: Transaction, queue: str, key: str, now: int) -> Holder | None:
        """Return the message that holds ``key``, after a check that it still has this payload and an indexed state."""
        [holder] = transaction.key_holders(queue, [key], now)
        if holder is None or _is_true(transaction, queue, key, holder, NO_SEQS):
            return holder
        return self._pass_key(transaction, queue, key, {holder[0]}, now)

    def _successor(self, transaction: Transaction, queue: str, key: str, own: int, now: int) -> Holder | None:
        """Return a successor of the holder with this payload, other than ``own``."""
        for number in range(1, _last_heir(transaction, queue, key, now) + 1):
            [heir] = transaction.key_holders(queue, [_behind(key, number)], now)
            if heir is not None and _is_true(transaction, queue, key, heir, {own}):
                return heir
        return None

    def _pass_key(
        self, transaction: Transaction, queue: str, key: str, leaving: Collection[int], now: int
    ) -> Holder | None:
        """If the holder is in ``leaving``, pass the key to its last valid successor. Return the new holder."""
        [holder] = transaction.key_holders(queue, [key], now)
        if holder is None or holder[0] not in leaving:
            return holder
        for number in range(_last_heir(transaction, queue, key, now), 0, -1):
            behind = _behind(key, number)
            [heir] = transaction.key_holders(queue, [behind], now)
            transaction.free_keys(queue, [behind])
            if heir is not None and _is_true(transaction, queue, key, heir, leaving):
                transaction.hold_keys(queue, {key: heir}, FOREVER)
                return heir
        transaction.free_keys(queue, [key])
        return None


def walk(step: Callable[[str], str]) -> None:
    """Call ``step`` with each cursor until it returns an empty one."""
    cursor = step("")
    while cursor:
        cursor = step(cursor)


def _keys(transaction: Transaction, messages: Sequence[Message]) -> list[tuple[str, Message]]:
    """Return the payload key of each message that has an envelope."""
    pairs = zip(messages, transaction.envelopes(messages), strict=True)
    return [(key_of(envelope.payload), message) for message, envelope in pairs if envelope is not None]


def _is_true(transaction: Transaction, queue: str, key: str, holder: Holder, without: Collection[int]) -> bool:
    [row] = transaction.by_seq([holder[0]])
    if row is None or row.seq in without or row.queue != queue or row.state not in COMPARED:
        return False
    return [found for found, _ in _keys(transaction, [row])] == [key]


def _behind(key: str, number: int) -> str:
    return f"{key}.{number}"


def _last_heir(transaction: Transaction, queue: str, key: str, now: int) -> int:
    """Return the highest number of a successor, 0 if there is none.

    Successors are numbered from 1 without gaps, so doubling and bisection find the last one in O(log n) lookups."""

    def is_there(number: int) -> bool:
        return transaction.key_holders(queue, [_behind(key, number)], now)[0] is not None

    low, high = 0, 1
    while is_there(high):
        low, high = high, high * 2
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if is_there(middle) else (low, middle)
    return low


def _there(holder: Holder | None, twin: AddResult | None) -> AddResult:
    """Return the receipt of a duplicate: its original was stored before, or earlier in the same batch."""
    if holder is None:
        assert twin is not None
        return twin._replace(duplicate=True)
    return AddResult(*holder, True)
