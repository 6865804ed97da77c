"""Requests of the same kind that come in the same turn of the loop are done as one: looked up, decided and written
together, each with its own answer.

Knows: who came when. Does not know: what is done. Requests of one connection are done in the order in which they were
sent, whatever their kinds: one joins only what comes after all that its connection has asked for before."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

from yirangmq.broker.group_commit import Desk
from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Transaction
from yirangmq.doors.http.exchange import Request
from yirangmq.observe.logs import log

MOST = 500
"""In one batch; what is done together holds up everybody else."""
Work = Callable[[Transaction, str, Sequence[Any]], Sequence[Any]]
"""(transaction, queue, what each asks for) → for each its answer, or the error that it gets."""


class Asker(Protocol):
    """One request about one queue."""

    @property
    def queue(self) -> str: ...

    @property
    def request(self) -> Request: ...

    def refuse(self, error: QueueError) -> None: ...


Reply = Callable[[Any, Any], None]
"""(who asked, what came of it)"""


class Batch:
    """A ``broker.commit_jobs.Task``: many requests."""

    __slots__ = ("_perform", "_together", "calls", "error", "items", "number", "queue", "reply", "requests", "value")

    def __init__(self, together: "Together", number: int, queue: str, perform: Work, reply: Reply) -> None:
        self._together = together
        self._perform = perform
        self.number = number
        self.queue = queue
        self.reply = reply
        self.calls: list[Asker] = []
        self.items: list[Any] = []
        self.value: Any = None
        self.error: QueueError | None = None
        self.requests = 1

    def like(self) -> "Batch":
        """One of the same kind, with nobody in it."""
        return Batch(self._together, self.number, self.queue, self._perform, self.reply)

    def work(self, transaction: Transaction) -> Sequence[Any]:
        self.requests = len(self.items)
        return self._perform(transaction, self.queue, self.items)

    def done(self, value: Any, error: QueueError | None) -> None:
        self._together.answer(self, value, error)


class Together:
    """Request coalescing. A batch takes requests from ``ask`` until the desk takes its jobs for the next commit
    (``Desk.on_taken``), whatever becomes of that commit. Used from the desk's thread."""

    def __init__(self, desk: Desk) -> None:
        desk.on_taken.append(self._close)
        self._desk = desk
        self._numbers = count(1)
        self._open: dict[tuple[Work, str], Batch] = {}
        self._latest: dict[str, int] = {}
        """By connection, the number of what it asked for last in this turn."""

    def ask(self, call: Asker, item: Any, work: Work, reply: Reply) -> None:
        """``item`` is done with the next commit; ``reply`` is called with what came of it. ``work`` is the same object
        for all of a kind."""
        key = work, call.queue
        peer = call.request.peer
        batch = self._open.get(key)
        if batch is None or batch.number < self._latest.get(peer, 0) or len(batch.items) >= MOST:
            batch = self._open[key] = Batch(self, next(self._numbers), call.queue, work, reply)
            self._desk.enlist(batch)
        batch.calls.append(call)
        batch.items.append(item)
        self._latest[peer] = batch.number

    def after(self, request: Request) -> None:
        """This connection has asked for something else; what it asks for next comes after that."""
        if self._open:
            self._latest[request.peer] = next(self._numbers)

    def _close(self) -> None:
        """Nothing joins the batches that are enlisted by now."""
        if self._open:
            self._open.clear()
            self._latest.clear()

    def answer(self, batch: Batch, found: Sequence[Any], error: QueueError | None) -> None:
        """Every request of the batch is answered here, or enlisted again by itself."""
        if error is not None and len(batch.calls) > 1:
            self._one_by_one(batch)
            return
        if error is not None or len(found) != len(batch.calls):
            found = [error or QueueError("internal error: a request has no answer")] * len(batch.calls)
        for call, answer in zip(batch.calls, found, strict=True):
            try:
                if isinstance(answer, QueueError):
                    call.refuse(answer)
                else:
                    batch.reply(call, answer)
            except Exception:
                log.exception("an answer failed")
                with suppress(Exception):  # the connection is beyond answering; the others are not
                    call.refuse(QueueError("internal error"))

    def _one_by_one(self, batch: Batch) -> None:
        """The store refused them together; that need not be the fault of all."""
        for call, item in zip(batch.calls, batch.items, strict=True):
            single = batch.like()
            single.calls.append(call)
            single.items.append(item)
            self._desk.enlist(single)
