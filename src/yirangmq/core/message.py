"""Values of a message: envelope, state in its life, run, failure, counts, lease ids, failure reasons.

They are tuples, because a batch makes thousands of them (docs/decisions/0003-values-are-tuples.md), and never change. A
lease id is ``SEQ-LEASES``: the message's number and how many leases it has had, which makes it a fencing token. Failure
reasons are a closed list, so that counts and filters mean the same everywhere."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from operator import add, itemgetter
from typing import Any, NamedTuple, cast

from yirangmq.core.errors import BadInput
from yirangmq.core.states import State

RANK_LAST = 2**53
"""The rank of a message without a priority: behind every one that has one, exact in JSON and in SQL."""


# -- values ------------------------------------------------------------------------------------------------------------


class Envelope(NamedTuple):
    """What a producer sent. Never changes once stored.

    ``header`` is the JSON text of the envelope's members other than messageId, queue and payload, exactly the
    members given ("" when only a payload was given). ``is_json`` says that ``payload`` is JSON text."""

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
    """The number of its group (``names.line_of``): its members are handed out one at a time, in order; 0 is none."""
    target: int = 0
    """The number of the one consumer that may have it; 0 is anyone."""

    @property
    def size(self) -> int:
        """Bytes it takes up, as quotas count them."""
        return len(self.payload) + len(self.header)


class Message(NamedTuple):
    """Where an envelope is in its life. ``seq`` is its number in the store, ``place`` its place in line.

    ``due_at`` is the moment at which time itself acts on it (the delay ends, the lease lapses, the retention is
    over); 0 is never. ``leases`` counts every lease ever given and is never reset: it is the fence of a lease id."""

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
    """Its envelope is still stored; a finished message may be no more than a remembered id."""
    group: int = 0
    target: int = 0
    size: int = 0


class Run(NamedTuple):
    """Messages whose numbers follow each other and whose cards differ in nothing but number, place, id and size; each
    stands at the place of its number. ``card`` is the first one's; its id and size say nothing of the others."""

    card: Message
    length: int

    def cards(self, envelopes: Sequence[Envelope]) -> list[Message]:
        """The card of each, if these are their envelopes."""
        first, queue, _, state, rank, _, *alike, _ = self.card
        return [
            new_message((seq, queue, sent[1], state, rank, seq, *alike, len(sent[8]) + len(sent[7])))
            for seq, sent in enumerate(envelopes, first)
        ]

    def leases(self) -> list[str]:
        """The id of the lease in force of each (``lease_id``)."""
        return span_leases(self.card.seq, self.card.seq + self.length - 1, self.card.leases)


class Failure(NamedTuple):
    """Why a message failed last, as it will stand in the dead-letter record."""

    reason_code: str
    reason_message: str
    failed_at: int
    attempt: int
    consumer: str


class Counts(NamedTuple):
    """How many messages a queue has in each state, and what has passed through it since it exists."""

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
    """Of all that are not done with (``states.WAITING``): their payloads and headers."""


def sum_of(counts: Iterable[Counts]) -> Counts:
    """Of several queues together."""
    return Counts(*map(sum, zip(Counts(), *counts, strict=True)))


# The same as Message._make and its like, without a Python frame for each: a third of the time, and there are many.
new_envelope = cast("Callable[[tuple[Any, ...]], Envelope]", partial(tuple.__new__, Envelope))
new_message = cast("Callable[[tuple[Any, ...]], Message]", partial(tuple.__new__, Message))


payload_of = itemgetter(Envelope._fields.index("payload"))
header_of = itemgetter(Envelope._fields.index("header"))
id_of = itemgetter(Envelope._fields.index("id"))


def sizes_of(envelopes: Sequence[Envelope]) -> Iterator[int]:
    """Bytes that each takes up, as quotas count them."""
    return map(add, map(len, map(payload_of, envelopes)), map(len, map(header_of, envelopes)))


def total_size(envelopes: Sequence[Envelope]) -> int:
    return sum(sizes_of(envelopes))


# -- lease ids ---------------------------------------------------------------------------------------------------------


def lease_id(message: Message) -> str:
    """The fencing token of the lease in force."""
    return f"{message.seq}-{message.leases}"


def span_leases(first: int, last: int, fence: int) -> list[str]:
    """The lease ids of messages whose numbers follow each other."""
    return [f"{seq}-{fence}" for seq in range(first, last + 1)]


def split_lease_id(lease: str) -> tuple[int, int] | None:
    """(seq, leases) of a lease id, or None when it is not one."""
    seq, _, leases = lease.partition("-")
    if len(lease) <= 40 and seq.isdecimal() and leases.isdecimal():
        number, fence = int(seq), int(leases)
        if number < 2**63 and fence < 2**63:  # what a store can look up
            return number, fence
    return None


def lease_span(leases: Sequence[str]) -> tuple[int, int, int] | None:
    """First, last and fence of leases that follow each other, as those given out together do; None if they do not."""
    key = split_lease_id(leases[0]) if leases and isinstance(leases[0], str) else None
    if key is None:
        return None
    (first, fence), last = key, key[0] + len(leases) - 1
    if leases[-1] != f"{last}-{fence}" or [*leases] != span_leases(first, last, fence):
        return None
    return first, last, fence


# -- failure reasons ---------------------------------------------------------------------------------------------------

MAX_MESSAGE = 2000
"""Characters of free text kept with a failure; a stack trace belongs in a log."""


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
    Reason.VALIDATION_ERROR: "the message does not fit its schema, or its envelope is broken",
    Reason.HANDLER_ERROR: "the consumer said that its work failed",
    Reason.TIMEOUT: "it took too long: its lease lapsed, or the consumer said so",
    Reason.RETRY_LIMIT: "given up by count without a better reason",
    Reason.POISON: "failed again and again for the same reason",
    Reason.REJECTED: "the consumer said never to try again",
    Reason.EXPIRED: "its time to live ran out before it was taken",
    Reason.CORRUPT: "its stored bytes could not be read back, or are not those that were sent",
}


def check_reason(value: object, field: str = "reasonCode") -> Reason:
    try:
        return Reason(str(value))
    except ValueError:
        known = ", ".join(Reason)
        raise BadInput(f"{value!r} is not one of {known}", field=field) from None
