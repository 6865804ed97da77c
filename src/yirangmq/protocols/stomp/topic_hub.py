"""Fan-out of topics to STOMP subscriptions, and the terms of a subscription.

The records of a commit are decoded once, when the first subscription wants them. A durable name is followed by one
connection, the latest. ``protocols.stomp.topic_subscriptions`` is loaded for the first subscription."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from yirangmq.core.errors import QueueError
from yirangmq.core.topic_filter import Filter
from yirangmq.protocols.stomp.codec import Address
from yirangmq.protocols.stomp.queue_subscriptions import AckMode
from yirangmq.topics.publisher import Publisher

if TYPE_CHECKING:
    from yirangmq.protocols.stomp.topic_subscriptions import Following
    from yirangmq.topics.live import Live


class Terms(NamedTuple):
    """``name``: of a durable subscriber, "" for others."""

    filter: Filter
    mode: AckMode
    credit: int
    address: Address
    name: str = ""


class Client(NamedTuple):
    """What it needs of the session. ``fail``: tell the client why, and close."""

    send: Callable[[bytes], None]
    has_room: Callable[[], bool]
    fail: Callable[[QueueError], None]


class Hub:
    """All who follow topics over STOMP."""

    def __init__(self, topics: Publisher | None) -> None:
        self.topics = topics
        self._followings: dict[Following, None] = {}
        if topics is not None:
            topics.hearers.append(self._hear)

    def add(self, following: "Following") -> None:
        """A durable name is in one place: the latest."""
        name = following.terms.name
        for other in list(self._followings):
            if name and other.terms.name == name:
                self.remove(other)
                other.replace()
        self._followings[following] = None
        following.wake()

    def remove(self, following: "Following") -> None:
        self._followings.pop(following, None)

    def _hear(self, live: "Live") -> None:
        if not self._followings:
            return
        from yirangmq.protocols.stomp.topic_subscriptions import Lazy

        records = Lazy(live)
        for following in list(self._followings):
            following.hear(live, records)
