"""Moves of messages that change between the listing of one state and of the next."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from yirangmq import NewMessage
from yirangmq.core.ports import MoveResult, Store, Transaction
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import ManualClock, open_for_test


class InterruptedStore:
    """A store in which something happens after messages of a state were listed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.after_reads: dict[int, Callable[[], object]] = {}
        self._reads = 0

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Transaction]:
        if not write and self.after_reads:
            self._reads += 1
            self.after_reads.pop(self._reads, lambda: None)()
        return self._store.transaction(write=write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_purge_counts_a_message_once_that_is_listed_in_two_states(clock: ManualClock) -> None:
    """It is ready in the first listing; then it is leased and nacked, and delayed in the second."""
    store = MemoryStore()
    interrupted = InterruptedStore(store)
    queues, other = open_for_test(store=interrupted, clock=clock), open_for_test(store=store, clock=clock)
    queues.publish("mail", NewMessage(payload=1, id="m"))
    interrupted.after_reads[3] = lambda: other.nack(other.lease("mail")[0].lease_id, delay=60)
    assert queues.purge("mail", all=True, dry_run=True) == MoveResult(1, ["m"])
    assert queues.show("mail", "m").message.state == "delayed"
    assert queues.purge("mail", all=True) == MoveResult(1, ["m"])
