"""What the frames of topics say: publishing, following, recovering. Each body is one MessagePack array, as in
``wire.calls``; a record itself is a frame of its own kind (``wire.records``), sent as it is stored.

A connection follows one feed at a time, because a stored frame has no room for the number of a subscription."""

import msgspec

from yirangmq.wire.frames import Kind

MOST_GAPS = 1000
"""Gaps told in one answer: the latest ones."""


class TopicRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A record to be published; the log gives it its numbers and its time."""

    topic: str
    payload: bytes
    key: str | None = None
    headers: dict[str, str] = {}


class TopicPublish(msgspec.Struct, array_like=True, frozen=True):
    """All of them or none; they stand in the log in this order, one after the other."""

    records: list[TopicRecord]


class TopicStored(msgspec.Struct, array_like=True, frozen=True):
    """They are on disk under these sequences. ``topics``: the sequence of the last one in each topic."""

    epoch: str
    first: int
    last: int
    at_ns: int
    topics: dict[str, int]


class TopicSubscribe(msgspec.Struct, array_like=True, frozen=True):
    """Which topics: names and patterns, or a mask, or all if neither is given. Where from: where ``name`` left off, or
    ``start``, with ``at`` its sequence or time. ``epoch``: the one that ``at`` belongs to, if known."""

    topics: list[str] = []
    mask: int = 0
    name: str = ""
    start: str = "new"
    at: int = 0
    epoch: str = ""
    resume: bool = True
    progress_ms: int = 1000


class TopicSubscribed(msgspec.Struct, array_like=True, frozen=True):
    """``next``: the first sequence that is looked at for you. ``first`` and ``last``: what the log holds now. ``gaps``:
    sequences from ``next`` on that are lost. ``resumed``: it goes on where the name left off."""

    epoch: str
    next: int
    first: int
    last: int
    gaps: list[tuple[int, int]] = []
    resumed: bool = False


class RecoveryRequest(msgspec.Struct, array_like=True, frozen=True):
    """Send again everything wanted after this sequence."""

    after: int
    epoch: str = ""


class RecoveryResponse(msgspec.Struct, array_like=True, frozen=True):
    """What is wanted from ``start`` to ``end`` follows: ``count`` records, or null where nobody has counted."""

    start: int
    end: int
    count: int | None
    gaps: list[tuple[int, int]] = []


class RecoveryComplete(msgspec.Struct, array_like=True, frozen=True):
    """Everything wanted up to ``sequence`` has been sent, ``sent`` records of it since the response."""

    sequence: int
    sent: int
    at_ns: int


class Confirm(msgspec.Struct, array_like=True, frozen=True):
    """Of a durable subscriber: everything up to ``sequence`` is done with."""

    sequence: int


class Confirmed(msgspec.Struct, array_like=True, frozen=True):
    """It is on disk, or was before."""

    sequence: int


class Unsubscribe(msgspec.Struct, array_like=True, frozen=True):
    """Send no more records. Answered with RESULT true, or false if nothing was followed."""


class Progress(msgspec.Struct, array_like=True, frozen=True):
    """Everything wanted up to ``sequence`` has been sent, ``sent`` records since the latest TOPIC_SUBSCRIBED or
    RECOVERY_RESPONSE. ``last``: that of the feed."""

    sequence: int
    sent: int
    last: int
    at_ns: int


FEED_BODIES: dict[Kind, type[msgspec.Struct]] = {
    Kind.TOPIC_PUBLISH: TopicPublish,
    Kind.TOPIC_STORED: TopicStored,
    Kind.TOPIC_SUBSCRIBE: TopicSubscribe,
    Kind.TOPIC_SUBSCRIBED: TopicSubscribed,
    Kind.RECOVERY_REQUEST: RecoveryRequest,
    Kind.RECOVERY_RESPONSE: RecoveryResponse,
    Kind.RECOVERY_COMPLETE: RecoveryComplete,
    Kind.CONFIRM: Confirm,
    Kind.CONFIRMED: Confirmed,
    Kind.UNSUBSCRIBE: Unsubscribe,
    Kind.PROGRESS: Progress,
}
