"""A request of the socket door from being taken in to its answer.

Knows: whom to answer. Does not know: what is asked, when it is done."""

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Transaction
from yirangmq.wire import messages
from yirangmq.wire.frames import Kind


class Asker(Protocol):
    """The session it came from."""

    pending: int

    def answer(self, kind: Kind, request: int, body: Any) -> None: ...


class Asked:
    """``work`` is for the desk's next commit, ``reply`` for what came of it. It is pending from here on until it is
    ``done``. (A task of the desk, ``broker.commit_jobs.Task``: one value for each request instead of three.)"""

    __slots__ = ("_asker", "_reply", "_request", "_weight", "error", "requests", "value", "work")

    def __init__(
        self,
        asker: Asker,
        request: int,
        work: Callable[[Transaction], Any],
        reply: Callable[[Any], None],
        weight: int,
    ) -> None:
        self._asker = asker
        self._request = request
        self._reply = reply
        self._weight = weight
        self.work = work
        self.value: Any = None
        self.error: QueueError | None = None
        self.requests = 1
        asker.pending += weight

    def done(self, value: Any, error: QueueError | None) -> None:
        self._asker.pending -= self._weight
        if error is not None:
            self._asker.answer(Kind.ERROR, self._request, messages.failed(error))
        else:
            self._reply(value)


def elsewhere(transaction: Transaction) -> NoReturn:
    """Work that is not the desk's."""
    raise AssertionError
