"""One way out for notices. Knows: what a way out promises. Does not know: which there are."""

from collections.abc import Mapping
from typing import Any, Protocol

Document = Mapping[str, Any]


class Undelivered(Exception):
    """The notice did not arrive; the text says why."""


class Channel(Protocol):
    async def send(self, document: Document) -> None:
        """One try; ``Undelivered`` if it did not arrive. Who calls it says when it takes too long, by cancelling."""

    def close(self) -> None: ...
