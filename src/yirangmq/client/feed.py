"""What a server sent of its feed and nobody has taken yet: records and words about them, in the order they came.

Sans-IO. A ``client.core.Conversation`` fills it, a subscription empties it; these may be two threads."""

from collections import deque
from typing import Any

from yirangmq.client.topic_values import TopicRecord, new_topic_record
from yirangmq.wire.frames import Kind
from yirangmq.wire.records import KIND, read_body

RECORD = KIND
SAID = frozenset({Kind.TOPIC_SUBSCRIBED, Kind.RECOVERY_RESPONSE, Kind.RECOVERY_COMPLETE, Kind.PROGRESS})
"""Kinds that say something about the records around them."""
PLENTY = 4 << 20
"""Bytes that wait to be taken, past which no more should be read."""

Part = list[TopicRecord] | Any
"""Records in a row, or what was said between them."""


class Feed:
    __slots__ = ("_parts", "_row", "inbox", "is_over", "size", "wake")

    def __init__(self) -> None:
        self.inbox: deque[tuple[list[Part], int]] = deque()
        self.wake: Any = None
        self.is_over = False
        self.size = 0
        self._parts: list[Part] = []
        self._row: list[TopicRecord] | None = None

    @property
    def has_news(self) -> bool:
        return bool(self.inbox) or self.is_over

    @property
    def is_full(self) -> bool:
        return self.size > PLENTY

    # -- by the conversation ------------------------------------------------------------------------------------------

    def add_record(self, body: memoryview) -> None:
        if self.is_over:
            return
        record = read_body(body, new_topic_record)
        if self._row is None:
            self._row = []
            self._parts.append(self._row)
        self._row.append(record)

    def add(self, said: Any) -> None:
        if self.is_over:
            return
        self._row = None
        self._parts.append(said)

    def put(self, size: int) -> bool:
        """So many bytes were read; what they brought can be taken now. False: nothing, and nobody need look."""
        if not self._parts:
            return self.is_over
        parts, self._parts, self._row = self._parts, [], None
        self.size += size
        self.inbox.append((parts, size))
        return True

    # -- by the subscription ------------------------------------------------------------------------------------------

    def take(self) -> list[Part]:
        """All that came with one read; nothing if there is none."""
        try:
            parts, size = self.inbox.popleft()
        except IndexError:
            return []
        self.size -= size
        return parts

    def clear(self) -> None:
        """What came over a connection that is gone."""
        self.inbox.clear()
        self._parts, self._row, self.size = [], None, 0
