"""A standby's store: looked at, and never changed.

Knows: which methods of a transaction are work. Does not know: doors."""

from collections.abc import Callable
from typing import Any, cast

from yirangmq.core.active_guard import Duty
from yirangmq.core.ports import Transaction

WORK = frozenset(
    {
        "add",
        "delete_queue",
        "forget",
        "forget_keys",
        "free_keys",
        "heads",
        "hold_keys",
        "in_runs",
        "places",
        "rewrite",
        "set_note",
        "set_policy",
        "swap",
        "trim",
    }
)
"""What changes a store, and what is asked for only in order to: handing messages out."""


class NeedsWrite(BaseException):
    """Of ``read_only``: the work would change the store. Not an ``Exception``, so that no work takes it for an error of
    one message and goes on."""


class _Sealed:
    def __init__(self, transaction: Transaction, refusal: Callable[[], BaseException]) -> None:
        self._transaction = transaction
        self._refusal = refusal

    def __getattr__(self, name: str) -> Any:
        if name in WORK:
            raise self._refusal()
        return getattr(self._transaction, name)


def sealed(transaction: Transaction, duty: Duty) -> Transaction:
    """The same, to be read only: every change is refused with the name of the active node."""
    return cast("Transaction", _Sealed(transaction, duty.refusal))


def read_only(transaction: Transaction) -> Transaction:
    """The same for a transaction without the write lock: every change raises ``NeedsWrite``."""
    return cast("Transaction", _Sealed(transaction, NeedsWrite))
