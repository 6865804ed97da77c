"""Release of the leases of some consumers, page by page.

It is done when a server stops, and for the leases that connections of a killed server left behind. The steps are
slices (``admin.queue_lists``): a server runs each in a commit of its own, so that other requests are served in
between; a new leader runs all of them in one transaction, before it serves."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from yirangmq.admin.queue_lists import Slices, run_slices
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.operations import QueueOperations
from yirangmq.broker.queries import some_with_leases
from yirangmq.broker.settle import Leases
from yirangmq.core.errors import QueueError
from yirangmq.core.message import lease_id
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State

LEASES_PER_PAGE = 500
IsOurs = Callable[[str], bool]
"""Return True if the leases of this consumer are released."""


def release_leases(operations: QueueOperations, is_ours: IsOurs, *, in_place: bool = False) -> Slices:
    """Release the leases. Return their number. ``in_place``: the messages keep their place in the queue."""
    total, after, is_first_page = 0, "", True
    while after or is_first_page:
        queues, after = yield partial(some_with_leases, after=after)
        is_first_page = False
        for queue in queues:
            cursor, is_first = "", True
            while cursor or is_first:
                count, cursor = yield partial(_release_page, operations, is_ours, in_place, queue, cursor)
                total, is_first = total + count, False
    return total


def _release_page(
    operations: QueueOperations, is_ours: IsOurs, in_place: bool, queue: str, cursor: str, transaction: Transaction
) -> tuple[int, str]:
    page = transaction.scan(queue, State.LEASED, LEASES_PER_PAGE, cursor)
    ours = [lease_id(message) for message in page.messages if is_ours(message.consumer)]
    errors = operations.release(transaction, Leases(ours), None, in_place=in_place)
    return errors.count(None), page.cursor


async def run_in_commits(committer: GroupCommitter, steps: Slices) -> Any:
    """Run each step in a commit of its own. Return the value of the steps."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(value: Any, error: QueueError | None) -> None:
        if not future.done():
            future.set_exception(error) if error is not None else future.set_result(value)

    run_slices(committer, steps, done)
    return await future


def run_in_transaction(transaction: Transaction, steps: Slices) -> Any:
    """Run all steps in one transaction. Return the value of the steps."""
    found: Any = None
    while True:
        try:
            work = steps.send(found)
        except StopIteration as end:
            return end.value
        found = None if work is None else work(transaction)
