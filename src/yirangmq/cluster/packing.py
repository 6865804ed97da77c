"""A transaction in the making. Knows: etcd's transactions and their limits. Does not know: queues.

Operations are written where they are sent from; one that is made first and put into its place then is copied whole,
with the message in it. Those that ask nothing share inner transactions, as many as fit: each inner one costs every
member of etcd more than an operation in it does."""

from typing import Any

from yirangmq.cluster.etcd import EQUAL, MOD, Txn

MOST_INSIDE = 24
MOST_TOP = 100
"""etcd takes 128 on a level, of comparisons and of operations, and counts those inside with those beside them."""


class Packing:
    """``place``: where among the answers that of the next operation on the outer level is."""

    def __init__(self, *compare: Any) -> None:
        self.request = Txn(compare=compare)
        self._pack: Any = None
        self._packed = 0

    @property
    def place(self) -> int:
        return len(self.request.success)

    @property
    def is_empty(self) -> bool:
        return not self.request.success

    def has_room(self, operations: int = 1) -> bool:
        return len(self.request.success) + -(-operations // MOST_INSIDE) <= MOST_TOP

    def only_if(self, key: bytes, revision: int) -> None:
        """All of it, only if this key was written last at that revision."""
        self.request.compare.add(result=EQUAL, target=MOD, key=key, mod_revision=revision)

    def put(self, key: bytes, value: bytes) -> None:
        made = self._inside().add().request_put
        made.key, made.value = key, value

    def delete(self, key: bytes, end: bytes = b"") -> None:
        made = self._inside().add().request_delete_range
        made.key = key
        if end:
            made.range_end = end

    def add(self, operation: Any) -> None:
        """On the outer level."""
        self.request.success.append(operation)

    def put_outside(self, key: bytes, value: bytes) -> None:
        """On the outer level, where etcd's quota counts it."""
        made = self.request.success.add().request_put
        made.key, made.value = key, value

    def otherwise(self, operation: Any) -> None:
        self.request.failure.append(operation)

    def _inside(self) -> Any:
        if self._pack is None or self._packed == MOST_INSIDE:
            self._pack = self.request.success.add().request_txn.success
            self._packed = 0
        self._packed += 1
        return self._pack
