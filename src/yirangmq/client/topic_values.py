"""What a client hands to programs that use topics: records, receipts, and what happens to a subscription."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

from yirangmq.core.errors import BadInput
from yirangmq.core.topics import ClientState, Record
from yirangmq.format.json_codec import loads


class TopicRecord(Record):
    """One record: ``sequence`` in the log, ``topic_sequence`` in its topic, ``at_ns`` since 1970, ``topic``, ``key``,
    ``headers`` and ``payload``, its bytes exactly as published."""

    __slots__ = ()

    def value(self) -> Any:
        """The payload decoded from JSON, or its bytes if it is not JSON."""
        try:
            return loads(self.payload)
        except BadInput:
            return self.payload


new_topic_record = cast("Callable[[tuple[Any, ...]], TopicRecord]", partial(tuple.__new__, TopicRecord))


class Receipt(NamedTuple):
    """The record is on disk under these numbers. ``resent``: the answer to an earlier sending was lost, so that it may
    stand in the log twice."""

    epoch: str
    sequence: int
    topic_sequence: int
    at_ns: int
    resent: bool = False


class Moved(NamedTuple):
    """A subscription is in another state. ``why``: of one that is OFFLINE."""

    before: ClientState
    after: ClientState
    why: str = ""


class NewEpoch(NamedTuple):
    """The feed began anew: no sequence of ``before`` means anything in ``after``."""

    before: str
    after: str


class LostRecords(NamedTuple):
    """Records that the log has lost, first to last: told once, and not to be had any more."""

    first: int
    last: int


class Missing(NamedTuple):
    """Something did not arrive after ``after``; it is asked for again."""

    after: int
    why: str


Event = Moved | NewEpoch | LostRecords | Missing
