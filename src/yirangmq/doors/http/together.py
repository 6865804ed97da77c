"""Requests of the same kind that come in the same turn of the loop are done as one: looked up, decided and written
together, each with its own answer.

Knows: who came when. Does not know: what is done. Requests of one connection are done in the order in which they were
sent, whatever their kinds: one joins only what comes after all that its connection has asked for before."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol

from yirangmq.broker.desk import Desk, Job
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
    __slots__ = ("calls", "items", "number", "queue", "reply", "work")

    def __init__(self, number: int, queue: str, work: Work, reply: Reply) -> None:
        self.number = number
        self.queue = queue
        self.work = work
        self.reply = reply
        self.calls: list[Asker] = []
        self.items: list[Any] = []


class Together:
    """Used from the desk's thread."""

    def __init__(self, desk: Desk) -> None:
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
            batch = self._open[key] = Batch(next(self._numbers), call.queue, work, reply)
            self._submit(batch)
        batch.calls.append(call)
        batch.items.append(item)
        self._latest[peer] = batch.number

    def after(self, request: Request) -> None:
        """This connection has asked for something else; what it asks for next comes after that."""
        if self._open:
            self._latest[request.peer] = next(self._numbers)

    def _submit(self, batch: Batch) -> None:
        def work(transaction: Transaction) -> Sequence[Any]:
            self._close(batch)
            job.requests = len(batch.items)
            return batch.work(transaction, batch.queue, batch.items)

        job = Job(work, lambda found, error: self._answer(batch, found, error))
        self._desk.enlist(job)

    def _close(self, batch: Batch) -> None:
        key = batch.work, batch.queue
        if self._open.get(key) is batch:
            del self._open[key]
        if not self._open:
            self._latest.clear()

    def _answer(self, batch: Batch, found: Sequence[Any], error: QueueError | None) -> None:
        if error is not None and len(batch.calls) > 1:
            self._one_by_one(batch)
            return
        for call, answer in zip(batch.calls, found if error is None else [error], strict=True):
            try:
                if isinstance(answer, QueueError):
                    call.refuse(answer)
                else:
                    batch.reply(call, answer)
            except Exception:
                log.exception("an answer failed")
                call.refuse(QueueError("internal error"))

    def _one_by_one(self, batch: Batch) -> None:
        """The store refused them together; that need not be the fault of all."""
        for call, item in zip(batch.calls, batch.items, strict=True):
            single = Batch(batch.number, batch.queue, batch.work, batch.reply)
            single.calls.append(call)
            single.items.append(item)
            self._submit(single)
