"""Values of a message: envelope, life-cycle row, run, failure, counts, lease ids, failure reasons.

They are immutable tuples, because a batch creates thousands of them (docs/decisions/0003-values-are-tuples.md). A lease
id is ``SEQ-LEASES``: the message's number and the count of its leases, which makes it a fencing token. Failure reasons
are a closed list, so that counts and filters mean the same everywhere."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from operator import add, itemgetter
from typing import Any, NamedTuple, cast

from yirangmq.core.errors import BadInput
from yirangmq.core.states import State

RANK_LAST = 2**53
"""Rank of a message without a priority: after every message with one. The number is exact in JSON and in SQL."""


# -- values ------------------------------------------------------------------------------------------------------------


class Envelope(NamedTuple):
    """Envelope: the message as its producer sent it. It does not change once it is stored.

    ``header`` is the JSON text of the envelope's members other than messageId, queue and payload, with exactly the
    members given ("" if only a payload was given). ``is_json``: True if ``payload`` is JSON text."""

    queue: str
    id: str
    rank: int
    published_at: int
    available_at: int
    expires_at: int
    dedup_key: str | None
    header: str
    payload: bytes
    is_json: bool
    group: int = 0
    """Number of its group (``validation.line_of``); 0 is none. Messages of a group are leased one at a time, in
    order."""
    target: int = 0
    """Number of the only consumer that may lease it (``validation.line_of``); 0 is any consumer."""

    @property
    def size(self) -> int:
        """Size in bytes, as quotas count it: payload and header."""
        return len(self.payload) + len(self.header)


class Message(NamedTuple):
    """Life-cycle row of a message: its state and everything that changes. ``seq`` is its number in the store, ``place``
    its position among the messages of its rank.

    ``due_at`` is the instant at which the sweeper acts on it (the delay ends, the lease expires, the retention ends);
    0 is never. ``leases`` counts every lease of the message and is never reset: it is the fence of a lease id."""

    seq: int
    queue: str
    id: str
    state: State
    rank: int
    place: int
    attempt: int
    leases: int
    due_at: int
    expires_at: int
    changed_at: int
    consumer: str
    reason: str
    repeats: int
    body: bool
    """True if its envelope is still stored; of a finished message only the id may be kept."""
    group: int = 0
    target: int = 0
    size: int = 0


class MessageRun(NamedTuple):
    """Run: messages with consecutive numbers that differ in number, place, id and size only.

    The ``place`` of each equals its number. ``row`` is the row of the first message; its id and size do not apply to
    the others."""

    row: Message
    length: int

    def rows(self, envelopes: Sequence[Envelope]) -> list[Message]:
        """Return the row of each message, given their envelopes."""
        first, queue, _, state, rank, _, *alike, _ = self.row
        return [
            new_message((seq, queue, sent.id, state, rank, seq, *alike, len(sent.payload) + len(sent.header)))
            for seq, sent in enumerate(envelopes, first)
        ]

    def leases(self) -> list[str]:
        """Return the id of the lease in force for each message (``lease_id``)."""
        return span_leases(self.row.seq, self.row.seq + self.length - 1, self.row.leases)


TRACEBACK_MARK = "\n\x1e"
"""Separates a failure's text from the traceback that follows it in the same stored text."""


class MessageFailure(NamedTuple):
    """Latest failure of a message, as its dead-letter record shows it.

    ``stored_text`` is the text and, after ``TRACEBACK_MARK``, the traceback, if there is one."""

    reason_code: str
    stored_text: str
    failed_at: int
    attempt: int
    consumer: str

    @property
    def reason_message(self) -> str:
        return self.stored_text.partition(TRACEBACK_MARK)[0]

    @property
    def traceback(self) -> str:
        """Traceback of the handler's error, "" if there is none."""
        return self.stored_text.partition(TRACEBACK_MARK)[2]


class Counts(NamedTuple):
    """Counts of a queue: messages in each state, and totals since its creation (from ``published`` on)."""

    draft: int = 0
    delayed: int = 0
    held: int = 0
    ready: int = 0
    claimed: int = 0
    leased: int = 0
    dead: int = 0
    parked: int = 0
    done: int = 0
    published: int = 0
    acked: int = 0
    failed: int = 0
    dropped: int = 0
    redriven: int = 0
    bytes: int = 0
    """Bytes of payloads and headers of all unfinished messages (``states.WAITING``)."""


def sum_of(counts: Iterable[Counts]) -> Counts:
    """Return the sum of the counts of several queues."""
    return Counts(*map(sum, zip(Counts(), *counts, strict=True)))


# Equivalent to ``FeedMessage._make``, without a Python frame per call: a third of the time, in a hot path.
new_envelope = cast("Callable[[tuple[Any, ...]], Envelope]", partial(tuple.__new__, Envelope))
new_message = cast("Callable[[tuple[Any, ...]], Message]", partial(tuple.__new__, Message))


# Getters of fields for map() and sort keys, without a Python frame per call: faster than attributes in hot loops.
payload_of = itemgetter(Envelope._fields.index("payload"))
header_of = itemgetter(Envelope._fields.index("header"))
id_of = itemgetter(Envelope._fields.index("id"))
is_json_of = itemgetter(Envelope._fields.index("is_json"))

seq_of: Callable[[Message], int] = itemgetter(Message._fields.index("seq"))
queue_of: Callable[[Message], str] = itemgetter(Message._fields.index("queue"))
rank_of: Callable[[Message], int] = itemgetter(Message._fields.index("rank"))
place_of: Callable[[Message], int] = itemgetter(Message._fields.index("place"))
group_of: Callable[[Message], int] = itemgetter(Message._fields.index("group"))
target_of: Callable[[Message], int] = itemgetter(Message._fields.index("target"))
size_of: Callable[[Message], int] = itemgetter(Message._fields.index("size"))


def sizes_of(envelopes: Sequence[Envelope]) -> Iterator[int]:
    """Return the size of each envelope in bytes, as quotas count it."""
    return map(add, map(len, map(payload_of, envelopes)), map(len, map(header_of, envelopes)))


def total_size(envelopes: Sequence[Envelope]) -> int:
    return sum(map(len, map(payload_of, envelopes))) + sum(map(len, map(header_of, envelopes)))


# -- lease ids ---------------------------------------------------------------------------------------------------------


def lease_id(message: Message) -> str:
    """Return the id of the lease in force, which is a fencing token."""
    return f"{message.seq}-{message.leases}"


def span_leases(first: int, last: int, fence: int) -> list[str]:
    """Return the lease ids of messages with consecutive numbers."""
    return [f"{seq}-{fence}" for seq in range(first, last + 1)]


def split_lease_id(lease: str) -> tuple[int, int] | None:
    """Return (seq, leases) of a lease id, or None if it is not one."""
    seq, _, leases = lease.partition("-")
    if len(lease) <= 40 and seq.isdecimal() and leases.isdecimal():
        number, fence = int(seq), int(leases)
        if number < 2**63 and fence < 2**63:  # the range of integers in a store
            return number, fence
    return None


def lease_span(leases: Sequence[str]) -> tuple[int, int, int] | None:
    """Return (first, last, fence) of consecutive lease ids, as a batch has them; None if they are not consecutive."""
    key = split_lease_id(leases[0]) if leases and isinstance(leases[0], str) else None
    if key is None:
        return None
    (first, fence), last = key, key[0] + len(leases) - 1
    if leases[-1] != f"{last}-{fence}" or (first < last and [*leases] != span_leases(first, last, fence)):
        return None
    return first, last, fence


# -- failure reasons ---------------------------------------------------------------------------------------------------

MAX_FAILURE_TEXT = 2000
"""Maximum length of the free text of a failure, in characters, without a traceback."""
MAX_TRACEBACK = 16_000
"""Upper bound of a policy's ``dlq.tracebackChars``."""
LEFT_OUT = "  …\n"
"""First line of a traceback whose outer frames were left out."""


def with_traceback(text: str, traceback: str) -> str:
    """Join a failure's text and its traceback to the text that is stored."""
    return f"{text}{TRACEBACK_MARK}{traceback}" if traceback else text


def bounded_failure_text(text: str, traceback_chars: int) -> str:
    """Limit the stored text of a failure. A traceback keeps its last lines: the innermost frames and the error."""
    own, _, traceback = text.partition(TRACEBACK_MARK)
    if len(traceback) > traceback_chars:
        _, _, whole_lines = traceback[len(traceback) - traceback_chars :].partition("\n")
        traceback = f"{LEFT_OUT}{whole_lines}" if whole_lines else ""
    return with_traceback(own[:MAX_FAILURE_TEXT], traceback)


class Reason(StrEnum):
    VALIDATION_ERROR = "VALIDATION_ERROR"
    HANDLER_ERROR = "HANDLER_ERROR"
    TIMEOUT = "TIMEOUT"
    RETRY_LIMIT = "RETRY_LIMIT"
    POISON = "POISON"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"
    CORRUPT = "CORRUPT"


MEANING: dict[Reason, str] = {
    Reason.VALIDATION_ERROR: "the message does not match its schema, or its envelope is invalid",
    Reason.HANDLER_ERROR: "the consumer reported that processing failed",
    Reason.TIMEOUT: "processing took too long: the lease expired, or the consumer reported a timeout",
    Reason.RETRY_LIMIT: "no attempts are left, and no other reason is known",
    Reason.POISON: "the message failed repeatedly for the same reason",
    Reason.REJECTED: "the consumer rejected the message: no retry can succeed",
    Reason.EXPIRED: "its time to live ended before it was leased",
    Reason.CORRUPT: "its stored bytes cannot be read, or are not those that were sent",
}


def check_reason(value: object, field: str = "reasonCode") -> Reason:
    try:
        return Reason(str(value))
    except ValueError:
        known = ", ".join(Reason)
        raise BadInput(f"{value!r} is not one of {known}", field=field) from None
