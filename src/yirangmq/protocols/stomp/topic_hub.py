"""Fan-out of topics to STOMP subscriptions, and the options of a subscription.

The records of a commit are decoded once, when the first subscription needs them. A durable name belongs to one
connection, the latest. ``protocols.stomp.topic_subscriptions`` is loaded for the first subscription."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from yirangmq.core.errors import QueueError
from yirangmq.core.topic_filter import Filter
from yirangmq.protocols.stomp.codec import MessageAddress
from yirangmq.protocols.stomp.queue_subscriptions import AckMode
from yirangmq.topics.publisher import Publisher

if TYPE_CHECKING:
    from yirangmq.protocols.stomp.topic_subscriptions import StompTopicSubscription
    from yirangmq.topics.live import LiveCommit


class StompTopicOptions(NamedTuple):
    """Options of a topic subscription. ``name``: durable name, or "" if it is not durable."""

    filter: Filter
    mode: AckMode
    credit: int
    address: MessageAddress
    name: str = ""


class SubscriptionCallbacks(NamedTuple):
    """Functions of the session that a topic subscription calls. ``fail`` sends the error, and closes the connection."""

    send: Callable[[bytes], None]
    has_capacity: Callable[[], bool]
    fail: Callable[[QueueError], None]


class TopicHub:
    """Fan-out of commits to all topic subscriptions over STOMP. Loop thread only."""

    def __init__(self, topics: Publisher | None) -> None:
        self.topics = topics
        self._subscriptions: dict[StompTopicSubscription, None] = {}
        if topics is not None:
            topics.listeners.append(self._on_commit)

    def add(self, subscription: "StompTopicSubscription") -> None:
        """Add a subscription. An earlier one with the same durable name is replaced."""
        name = subscription.options.name
        for other in list(self._subscriptions):
            if name and other.options.name == name:
                self.remove(other)
                other.replace()
        self._subscriptions[subscription] = None
        subscription.wake()

    def remove(self, subscription: "StompTopicSubscription") -> None:
        self._subscriptions.pop(subscription, None)

    def _on_commit(self, live: "LiveCommit") -> None:
        if not self._subscriptions:
            return
        from yirangmq.protocols.stomp.topic_subscriptions import LazyRecords

        records = LazyRecords(live)
        for subscription in list(self._subscriptions):
            subscription.on_commit(live, records)
