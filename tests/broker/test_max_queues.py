"""The quota ``max_queues``: no new queue past it, whichever verb would make one; queues that exist go on."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.queues import take
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.group_commit_threads import ThreadedGroupCommitter
from yirangmq.broker.operations import AtomicBundle
from yirangmq.broker.queues import Queues
from yirangmq.broker.two_step import Drafts
from yirangmq.core.errors import QuotaExceeded
from yirangmq.core.policy import Defaults
from yirangmq.format.envelope import NewMessage, build
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import CountingIds, ManualClock

MOST = 3


class Limited:
    """Queues of a server that allows three."""

    def __init__(self) -> None:
        self.clock, ids, self.store = ManualClock(), CountingIds(), MemoryStore()
        self.context = TransactionContext(self.clock, ids, Defaults(max_queues=MOST))
        self.queues = Queues(
            self.store, self.clock, ids, "test", ThreadedGroupCommitter(self.store), context=self.context
        )


@pytest.fixture
def limited() -> Iterator[Limited]:
    made = Limited()
    for queue in ("a", "b", "c"):
        made.queues.publish(queue, 1)
    yield made
    made.store.close()


def publish(limited: Limited) -> None:
    limited.queues.publish("new", 1)


def set_policy(limited: Limited) -> None:
    limited.queues.set_policy("new", {"retry": {"limit": 2}})


def configure(limited: Limited) -> None:
    limited.queues.bulk.configure("new", "called-so", "concurrency", 2)


def draft(limited: Limited) -> None:
    drafts = Drafts(limited.context)
    limited.queues.run(lambda transaction: drafts.draft(transaction, "new", [("m", 1)], "called-so"))


def bundle(limited: Limited) -> None:
    """To a queue that exists and to a new one: all or nothing."""
    sent = AtomicBundle()
    for queue in ("a", "new"):
        sent.add(build(queue, NewMessage(payload=2), f"{queue}-2", limited.clock.now_ms()))
    limited.queues.run(lambda transaction: sent.perform(limited.context, transaction, limited.clock.now_ms()))


WAYS: tuple[Callable[[Limited], None], ...] = (publish, set_policy, configure, draft, bundle)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_max_queues_refuses_a_new_queue_and_changes_nothing(limited: Limited, way: Callable[[Limited], None]) -> None:
    notes = limited.queues.read(lambda transaction: transaction.notes(""))
    with pytest.raises(QuotaExceeded, match=r"max_queues: .*has 3 queues and allows 3; .*setting max_queues") as caught:
        way(limited)
    assert (caught.value.code, caught.value.field, caught.value.retry_after) == ("quota_exceeded", "max_queues", None)
    assert limited.queues.queues() == ["a", "b", "c"]
    assert limited.queues.counts("a").ready == 1
    assert limited.queues.read(lambda transaction: transaction.notes("")) == notes


def test_max_queues_leaves_queues_that_exist_alone(limited: Limited) -> None:
    limited.queues.publish("a", 2)
    limited.queues.set_policy("b", {"retry": {"limit": 2}})
    limited.queues.ack(take(limited.queues, "c").lease_id)
    assert limited.queues.counts("a").ready == 2


def test_max_queues_allows_a_new_queue_in_place_of_a_deleted_queue(limited: Limited) -> None:
    limited.queues.delete_queue("b")
    limited.queues.publish("new", 1)
    assert limited.queues.queues() == ["a", "c", "new"]


def test_max_queues_below_the_number_of_existing_queues_refuses_only_new_queues(limited: Limited) -> None:
    limited.context.defaults = Defaults(max_queues=1)
    limited.queues.publish("c", 2)
    with pytest.raises(QuotaExceeded, match="has 3 queues and allows 1"):
        limited.queues.publish("new", 1)


def test_max_queues_has_no_limit_in_a_program_that_opens_a_store_itself() -> None:
    assert Defaults().max_queues == 0
