"""A connection of the socket door as a feed sees it: ``topics.ports.Line``."""

from collections.abc import Callable
from typing import Protocol

from yirangmq.core.errors import QueueError
from yirangmq.doors.sender import Sender
from yirangmq.topics.ports import Take
from yirangmq.topics.publisher import Publisher


class Client(Protocol):
    """What it needs of the connection."""

    peer: str

    def refuse(self, error: QueueError) -> None: ...

    def cut(self, reason: str) -> None: ...


class SessionLine:
    def __init__(self, sender: Sender, client: Client, topics: Publisher | None) -> None:
        self._sender = sender
        self._client = client
        self._topics = topics
        self.send = sender.send
        self.owed = sender.owed
        self.give_back = sender.give_back

    @property
    def peer(self) -> str:
        return self._client.peer

    def has_room(self, size: int) -> bool:
        return self._topics is not None and self._sender.has_room(size, self._topics.settings.buffer_bytes)

    def lend(self, take: Take, wake: Callable[[], None]) -> None:
        self._sender.lend(take, wake)

    def fail(self, error: QueueError) -> None:
        self._client.refuse(error)

    def cut(self, reason: str) -> None:
        self._client.cut(reason)
