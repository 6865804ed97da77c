"""Messages that come one by one, for a program that holds the store itself; the same to use as a client's
(``client.sender``). There is no way to be on: each is on disk when ``send`` returns."""

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Stored

if TYPE_CHECKING:
    from yirangmq.broker.queues import Queues


class Sender:
    def __init__(self, queues: "Queues", queue: str, told: Callable[[Stored], object] | None) -> None:
        validation.check_told(told)
        self._queues = queues
        self._queue = queue
        self._told = told
        self._is_closed = False

    def send(self, message: object) -> str:
        """Any JSON value, bytes, or a ``NewMessage``; its id."""
        if self._is_closed:
            raise BadInput("closed; make another one", field="sender")
        receipt = self._queues.publish(self._queue, message)
        if self._told is not None:
            self._told(receipt)
        return receipt.id

    def settle(self) -> None:
        """Wait until everything sent so far is on disk: here it is."""

    def close(self) -> None:
        """Nothing more can be sent."""
        self._is_closed = True

    def __enter__(self) -> "Sender":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
