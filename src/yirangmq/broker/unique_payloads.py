"""Index of unique payloads: SHA-256 keys in the store, for queues without two equal payloads.

The message that has a payload holds its key; a lookup costs the same at any depth of the queue. A key whose holder is
gone, or has other content by now, blocks nothing.

If messages were equal before the queue became unique, the others stand behind the holder as its heirs. A mark records
how many messages the queue had ever received when all of them were indexed. If more have arrived since, some bypassed
the index; then the whole queue is indexed before the next comparison."""

from collections.abc import Callable, Collection, Sequence
from hashlib import sha256

from yirangmq.core.errors import WrongState
from yirangmq.core.message import Envelope, Message
from yirangmq.core.policy import Defaults
from yirangmq.core.ports import Change, Stored, Transaction
from yirangmq.core.states import State
from yirangmq.format.envelope import RESERVED_KEYS

MARK = f"{RESERVED_KEYS}all"
FOREVER = 9_999_999_999_999
"""Milliseconds since 1970; in the year 2286."""
COMPARED = (
    State.DEAD, State.PARKED, State.DELAYED, State.HELD, State.READY, State.CLAIMED, State.LEASED,
)  # fmt: skip
"""Who has a payload that another must not have. In this order, so that one that is taken while all are being looked at
is met later on; every other move is followed by ``follow``."""
PER_PAGE = 200
NOBODY: frozenset[int] = frozenset()

Holder = tuple[int, str]


def key_of(payload: bytes) -> str:
    return RESERVED_KEYS + sha256(payload).hexdigest()


class Uniqueness:
    """The keys of one store. Used inside transactions, by one thread at a time."""

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._being_indexed: set[str] = set()

    # -- what comes in --------------------------------------------------------------------------------------------

    def add(
        self, transaction: Transaction, queue: str, envelopes: Sequence[Envelope], now: int, dedup_until: int
    ) -> list[Stored]:
        """``Transaction.add``, but for those whose payload is there already, also within the batch."""
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
        """``WrongState`` if another message has what this one is to have."""
        queue, key = message.queue, key_of(payload)
        self._complete(transaction, queue, now)
        holder = self._holder(transaction, queue, key, now)
        if holder is not None and holder[0] == message.seq:
            holder = self._heir(transaction, queue, key, message.seq, now)
        if holder is not None:
            raise WrongState(f"message {holder[1]} has the same payload")

    def rewritten(self, transaction: Transaction, message: Message, old: bytes | None, new: bytes, now: int) -> None:
        """It has other content from now on; ``old`` is None where it had none."""
        if old is not None:
            self._bequeath(transaction, message.queue, key_of(old), {message.seq}, now)
        transaction.hold_keys(message.queue, {key_of(new): (message.seq, message.id)}, FOREVER)
        self._mark(transaction, message.queue)

    def _mark(self, transaction: Transaction, queue: str) -> None:
        """All that the queue has been given is in the index, what was just added too."""
        if queue not in self._being_indexed:
            transaction.hold_keys(queue, {MARK: (transaction.counts(queue).published, "all")}, FOREVER)

    # -- what moves -----------------------------------------------------------------------------------------------

    def follow(self, transaction: Transaction, changes: Sequence[Change], now: int) -> None:
        """To be called before these are swapped: who is done with has no key any more."""
        for queue in {change[0][1] for change in changes}:
            if self._defaults.unique_in(transaction.policy(queue)):
                self._follow(transaction, queue, [change for change in changes if change[0][1] == queue], now)

    def _follow(self, transaction: Transaction, queue: str, changes: Sequence[Change], now: int) -> None:
        gone = [old for old, new, _ in changes if old.state in COMPARED and new.state not in COMPARED]
        seqs = {message.seq for message in gone}
        for key in dict.fromkeys(key for key, _ in _keys(transaction, gone)):
            self._bequeath(transaction, queue, key, seqs, now)
        if queue in self._being_indexed:
            self._index(transaction, queue, [old for old, new, _ in changes if new.state in COMPARED], now)

    # -- the index as a whole -------------------------------------------------------------------------------------

    def begin_index(self, queue: str) -> None:
        """From now on until ``end_index`` somebody adds everything there is, page by page."""
        self._being_indexed.add(queue)

    def index_page(self, transaction: Transaction, queue: str, state: State, cursor: str, now: int) -> str:
        """Some more; where to go on, "" at the end."""
        page = transaction.scan(queue, state, PER_PAGE, cursor)
        self._index(transaction, queue, page.messages, now)
        return page.cursor

    def end_index(self, transaction: Transaction, queue: str) -> None:
        self._being_indexed.discard(queue)
        self._mark(transaction, queue)

    def give_up_index(self, queue: str) -> None:
        """It was not finished; whoever needs it next does it again."""
        self._being_indexed.discard(queue)

    def spoil(self, transaction: Transaction, queue: str) -> None:
        """Content changed where nobody keeps keys."""
        transaction.free_keys(queue, [MARK])

    def remove_page(self, transaction: Transaction, queue: str, state: State, cursor: str, now: int) -> str:
        """Keys that are of no use any more; heirs need not be found, all of them come by."""
        page = transaction.scan(queue, state, PER_PAGE, cursor)
        for key, _ in _keys(transaction, page.messages):
            heirs = [_behind(key, n) for n in range(1, _last_heir(transaction, queue, key, now) + 1)]
            transaction.free_keys(queue, [key, *heirs])
        return page.cursor

    def _complete(self, transaction: Transaction, queue: str, now: int) -> None:
        """Nobody has indexed this queue, or not to the end: do it here and now, once."""
        if queue in self._being_indexed:
            return
        [mark] = transaction.key_holders(queue, [MARK], now)
        if mark is not None and mark[0] == transaction.counts(queue).published:
            return
        for state in COMPARED:
            walk(lambda cursor, state=state: self.index_page(transaction, queue, state, cursor, now))  # type: ignore[misc]
        self.end_index(transaction, queue)

    def _index(self, transaction: Transaction, queue: str, messages: Sequence[Message], now: int) -> None:
        """Of several that have the same payload the first one that is found holds the key."""
        for key, message in _keys(transaction, messages):
            holder = self._holder(transaction, queue, key, now)
            if holder is None:
                transaction.hold_keys(queue, {key: (message.seq, message.id)}, FOREVER)
            elif holder[0] != message.seq:
                last = _behind(key, _last_heir(transaction, queue, key, now) + 1)
                transaction.hold_keys(queue, {last: (message.seq, message.id)}, FOREVER)

    # -- one key --------------------------------------------------------------------------------------------------

    def _holder(self, transaction: Transaction, queue: str, key: str, now: int) -> Holder | None:
        """The message that has this very payload, and is one to be compared with."""
        [holder] = transaction.key_holders(queue, [key], now)
        if holder is None or _is_true(transaction, queue, key, holder, NOBODY):
            return holder
        return self._bequeath(transaction, queue, key, {holder[0]}, now)

    def _heir(self, transaction: Transaction, queue: str, key: str, own: int, now: int) -> Holder | None:
        """Another message with this payload, behind the one that holds the key."""
        for number in range(1, _last_heir(transaction, queue, key, now) + 1):
            [heir] = transaction.key_holders(queue, [_behind(key, number)], now)
            if heir is not None and _is_true(transaction, queue, key, heir, {own}):
                return heir
        return None

    def _bequeath(
        self, transaction: Transaction, queue: str, key: str, leaving: Collection[int], now: int
    ) -> Holder | None:
        """If one of those who leave holds the key it is the heirs' turn; whose it is then."""
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
    """Page after page, until there is none."""
    cursor = step("")
    while cursor:
        cursor = step(cursor)


def _keys(transaction: Transaction, messages: Sequence[Message]) -> list[tuple[str, Message]]:
    """The keys of their payloads."""
    pairs = zip(messages, transaction.envelopes(messages), strict=True)
    return [(key_of(envelope.payload), message) for message, envelope in pairs if envelope is not None]


def _is_true(transaction: Transaction, queue: str, key: str, holder: Holder, without: Collection[int]) -> bool:
    [card] = transaction.by_seq([holder[0]])
    if card is None or card.seq in without or card.queue != queue or card.state not in COMPARED:
        return False
    return [found for found, _ in _keys(transaction, [card])] == [key]


def _behind(key: str, number: int) -> str:
    return f"{key}.{number}"


def _last_heir(transaction: Transaction, queue: str, key: str, now: int) -> int:
    """They are numbered from 1 without gaps: found by doubling and halving, at any number."""

    def is_there(number: int) -> bool:
        return transaction.key_holders(queue, [_behind(key, number)], now)[0] is not None

    low, high = 0, 1
    while is_there(high):
        low, high = high, high * 2
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if is_there(middle) else (low, middle)
    return low


def _there(holder: Holder | None, twin: Stored | None) -> Stored:
    """The message that is there already: stored before, or with this very batch."""
    if holder is None:
        assert twin is not None
        return twin._replace(duplicate=True)
    return Stored(*holder, True)
