"""Cache of a store: rows kept between transactions, among them recent payloads and messages by id.

``RecentPayloads`` keeps up to 8 MiB of envelopes just published, so that a waiting consumer is served without a query.

``NameCache`` keeps messages that this process wrote recently and that clients request by id: drafts, claimed messages,
and contents that were just set.

``StoreCache`` has both and everything else that is cached. It is reset when another process has written or a
transaction has failed."""

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from yirangmq.core.message import Envelope, Message, new_message, seq_of, total_size
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Change, after_of, before_of
from yirangmq.core.states import State
from yirangmq.format.json_codec import dumps, loads
from yirangmq.stores.sqlite.statements import Misses

Span = tuple[int, int]
"""First and last of consecutive message numbers."""
ContentRow = tuple[int, int, bytes]
"""A row of ``content``: first and last message number, and the bytes."""

# -- rows --------------------------------------------------------------------------------------------------------------


class BatchRow(NamedTuple):
    """A row of ``batch``."""

    first: int
    last: int
    queue: int
    rank: int
    state: str
    due_at: int
    changed_at: int
    consumer: str
    body: int
    ids: str | None

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def part(self, first: int, last: int) -> "BatchRow":
        """Return the batch restricted to fewer messages."""
        ids = self.ids
        if ids is not None and last - first + 1 < self.size:
            pairs = list(loads(ids.encode()).items())
            ids = dumps(dict(pairs[first - self.first : last - self.first + 1])).decode()
        return self._replace(first=first, last=last, ids=ids)


class LeasedBatch(NamedTuple):
    """A batch that this process leased, and the bytes of its messages."""

    batch: BatchRow
    size: int


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
            found = list(map(sent.__getitem__, range(first, first + count)))
        except KeyError:
            return None
        self._passed = 0
        return found

    def drop(self, first: int, last: int) -> None:
        """Remove messages that left the ready runs or were rewritten."""
        if self._sent:
            found = list(filter(None, map(self._sent.pop, range(first, last + 1), repeat(None))))
            self._size -= total_size(found) + RECENT_OVERHEAD_BYTES * len(found)

    def clear(self) -> None:
        self._sent.clear()
        self._size = self._passed = 0


# -- messages by id ----------------------------------------------------------------------------------------------------

MAX_LEASED_MESSAGES = 20_000
"""Maximum number of cached leased messages, about 300 bytes each; beyond it they are read from the file."""
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
"""States in which the number of an id is cached; ``StoreCache`` has the leased messages themselves."""
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


# -- the cache of a store ----------------------------------------------------------------------------------------------

MAX_CACHED_POLICIES = 20_000
"""Maximum number of cached policies, about 1 KB each. When it is reached, all are dropped and read again when used."""
MAX_CACHED_QUEUES = 200_000
"""Maximum number of queues with cached number and newest id, about 100 bytes each. When it is reached, all are
dropped."""
DueTime = tuple[int | None, bool]
"""A lower bound of the earliest due time (None: never), and whether a message is certainly due then."""


class StoreCache:
    """Store cache: the rows that a process keeps between transactions, and the only place that knows what is cached.

    ``reset`` drops everything when another process has written or a transaction has failed. Containers are cleared in
    place, because the tables of a transaction hold references to them. Used under the store's lock."""

    __slots__ = (
        "contents",
        "due",
        "finished",
        "last",
        "leased",
        "leased_batches",
        "misses",
        "named",
        "names",
        "newest",
        "numbers",
        "policies",
        "queue_count",
        "queues_with_policy",
        "recent_payloads",
        "reserved",
        "rules",
        "tails",
        "totals",
        "trimmed_to",
    )

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        """Queue numbers by name."""
        self.names: dict[int, str] = {}
        """Queue names by number."""
        self.policies: dict[str, tuple[str | None, QueuePolicy]] = {}
        """Parsed policies by queue, each with the text it was parsed from. They stay valid when another process writes,
        because the text is compared."""
        self.rules: dict[str, QueuePolicy] = {}
        """Policies by queue that are known to be the stored ones."""
        self.leased: dict[int, Message] = {}
        """Messages that this process leased, by number, so that an ack does not read them again."""
        self.named = NameCache()
        self.tails: dict[tuple[int, int], Span] = {}
        """The last ready run by queue and rank."""
        self.recent_payloads = RecentPayloads()
        self.leased_batches: dict[int, LeasedBatch] = {}
        """Batches that this process leased, by first number."""
        self.newest: dict[int, str] = {}
        """An upper bound of the message ids of a queue, by queue number."""
        self.contents: list[ContentRow] = []
        """Rows of packed payloads that were read last."""
        self.misses: Misses = {"ready": set(), "fresh": set()}
        """Negative caches of the recorder."""
        self._reset_values()
        self.last = 0
        """The last message number used, of the reserved ones."""
        self.reserved = 0
        """The last message number reserved for this process; no other process uses the numbers up to it."""

    def _reset_values(self) -> None:
        self.due: DueTime | None = None
        """The earliest due time; None: not cached."""
        self.queue_count: int | None = None
        """Number of queues; None: not cached."""
        self.totals: dict[str, int] | None = None
        """Sums of the counters of all queues; None: not cached."""
        self.queues_with_policy: set[str] | None = None
        """Queues that have a policy document; None: not cached."""
        self.finished: set[int] = set()
        """Queues with new done messages since their history was last trimmed."""
        self.trimmed_to = -1
        """Queue number that the rotation of ``trim`` has reached; -1: it has not started."""

    def _clear_messages(self) -> None:
        """Drop everything that depends on the state of single messages."""
        self.leased.clear()
        self.tails.clear()
        self.leased_batches.clear()
        self.newest.clear()
        self.contents.clear()
        self.named.clear()
        self.recent_payloads.clear()
        self.due = None

    def reset(self, last: int = 0, reserved: int = 0) -> None:
        """Drop everything except for parsed policies. ``last`` and ``reserved``: the message numbers that this process
        may still use, which are those at the last commit."""
        self._clear_messages()
        self.numbers.clear()
        self.names.clear()
        self.rules.clear()
        for misses in self.misses.values():
            misses.clear()
        self._reset_values()
        self.last, self.reserved = last, reserved

    def forget_policies(self) -> None:
        self.rules.clear()
        self.policies.clear()

    def forget_queue(self, queue: str, number: int) -> None:
        """Drop everything about a queue that is deleted; its number may be used again."""
        self._clear_messages()
        self.numbers.pop(queue, None)
        self.names.pop(number, None)
        self.policies.pop(queue, None)
        self.rules.pop(queue, None)
        self.finished.discard(number)
        self.totals = None
        if self.queue_count is not None:
            self.queue_count -= 1
        if self.queues_with_policy is not None:
            self.queues_with_policy.discard(queue)

    def note_policy(self, queue: str, is_set: bool) -> None:
        """The policy of a queue was set or removed."""
        self.rules.pop(queue, None)
        if self.queues_with_policy is not None:
            (self.queues_with_policy.add if is_set else self.queues_with_policy.discard)(queue)

    def add_number(self, queue: str, number: int) -> None:
        """The number of a queue was read."""
        if len(self.numbers) >= MAX_CACHED_QUEUES:
            self.numbers.clear()
        self.numbers[queue] = number

    def note_queue(self, queue: str, number: int) -> None:
        """A queue was created."""
        self.numbers[queue] = number
        if self.queue_count is not None:
            self.queue_count += 1

    def forget_places(self) -> None:
        """Messages were moved without the runs: drop the ends of the runs, the newest ids and the due time."""
        self.tails.clear()
        self.newest.clear()
        self.due = None

    def move_due(self, old: int, new: int) -> None:
        """Update the earliest due time when a due time changes from ``old`` to ``new``. If ``old`` was the earliest, it
        stays a lower bound; the true value is looked up when that time has come."""
        due = self.due
        if due is None:
            return
        if new and (due[0] is None or new < due[0]):
            self.due = new, True
        elif old and old == due[0]:
            self.due = old, False

    def apply_changes(self, old: State, new: State, changes: Sequence[Change]) -> None:
        """Follow changes of one kind, from state ``old`` to state ``new``."""
        self.due = None
        leased = self.leased
        if new is State.LEASED:
            if len(leased) + len(changes) <= MAX_LEASED_MESSAGES:
                leased.update({after.seq: after for after in map(after_of, changes)})
            else:
                leased.clear()
        elif old is State.LEASED:
            for after in map(after_of, changes):
                leased.pop(after.seq, None)
        self.named.apply_changes(old, new, changes)

    def replace_contents(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        """The contents of messages were replaced."""
        for message in messages:
            self.leased.pop(message.seq, None)
            self.recent_payloads.drop(message.seq, message.seq)
            if message.state is State.LEASED:
                self.leased_batches.clear()
        self.named.replace_contents(messages, envelopes)

    def add_drafts(self, first: int, envelopes: Sequence[Envelope], until: int) -> None:
        """Drafts were inserted, numbered from ``first``."""
        self.due = None
        self.named.add_drafts(first, envelopes, until)

    def forget_due(self) -> None:
        """Messages with a due time were inserted or changed."""
        self.due = None

    def forget_newest(self, queue: int) -> None:
        """Messages with any ids were inserted."""
        self.newest.pop(queue, None)

    def forget_leased(self, first: int, last: int) -> None:
        """Messages leased as a run were settled."""
        for seq in range(first, last + 1):
            self.leased.pop(seq, None)

    def forget_messages(self, messages: Sequence[Message]) -> None:
        """Messages were deleted."""
        self.due = None
        self.named.forget(messages)
        for message in messages:
            self.leased.pop(message.seq, None)
