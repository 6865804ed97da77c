"""Routes of whole queues: how many messages are where, which failed, and everything that is done to all of them."""

from yirangmq.broker.bulk import failed_page
from yirangmq.broker.two_step import Orders
from yirangmq.core.access import LIST
from yirangmq.core.message import Counts
from yirangmq.core.ports import Transaction
from yirangmq.doors.http.mq.accept import preferred
from yirangmq.doors.http.mq.call import Call
from yirangmq.doors.http.mq.lists import Listing, Page, queues_page

PER_PAGE = 500


class Queues:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def stats(self, call: Call) -> None:
        call.submit(
            lambda transaction: self._orders.stats(transaction, call.queue),
            lambda counts: call.json(_stats(call.namespace, counts)),
        )

    def namespaces(self, call: Call) -> None:
        """Those of which there is anything to count: a queue that has never had a message is not there yet."""
        grant = call.grant

        def is_wanted(transaction: Transaction, queue: str) -> bool:
            return (grant is None or grant.allows(LIST, queue)) and any(transaction.counts(queue))

        self._list(call, queues_page(is_wanted))

    def failed(self, call: Call) -> None:
        self._list(call, lambda transaction, cursor: failed_page(transaction, call.queue, cursor, PER_PAGE))

    def _list(self, call: Call, page: Page) -> None:
        form = preferred(call.request.headers.get("accept", ""))
        call.answer(call.stream(form, Listing(call.house, form, page)))

    def renew_failed(self, call: Call) -> None:
        call.no_document()
        call.method("failed_renew", {"queue": call.queue})

    def abandon_failed(self, call: Call) -> None:
        call.no_document()
        call.method("failed_abandon", {"queue": call.queue})

    def clear(self, call: Call) -> None:
        call.no_document()
        call.method("queue_clear", {"queue": call.queue})


def _stats(namespace: str, counts: Counts) -> dict[str, object]:
    return {
        "namespace": namespace,
        "drafting": counts.draft,
        "waiting": counts.ready + counts.delayed + counts.held,
        "ordered": counts.claimed,
        "active": counts.leased,
        "completed": counts.acked,
        "failed": counts.dead + counts.parked,
    }
