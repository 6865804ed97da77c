"""Fan-out of topics to STOMP subscriptions, and the options of a subscription.

The records of a commit are decoded once, when the first subscription needs them. A durable name belongs to one
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
    """Options of a topic subscription. ``name``: durable name, or "" if it is not durable."""

    filter: Filter
    mode: AckMode
    credit: int
    address: Address
    name: str = ""


class Client(NamedTuple):
    """Functions of the session that a topic subscription calls. ``fail`` sends the error, and closes the connection."""

    send: Callable[[bytes], None]
    has_room: Callable[[], bool]
    fail: Callable[[QueueError], None]


class Hub:
    """Fan-out of commits to all topic subscriptions over STOMP. Loop thread only."""

    def __init__(self, topics: Publisher | None) -> None:
        self.topics = topics
        self._followings: dict[Following, None] = {}
        if topics is not None:
            topics.hearers.append(self._hear)

    def add(self, following: "Following") -> None:
        """Add a subscription. An earlier one with the same durable name is replaced."""
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
