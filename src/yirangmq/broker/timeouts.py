"""The default time-outs that messages in a store were handed out with, so that a server started with others knows.

Knows: the note. Does not know: what is done then (``broker.wholesale``)."""

from yirangmq.core.policy import Defaults
from yirangmq.core.ports import Transaction

NOTE = "mq/timeouts"


def are_other(transaction: Transaction, defaults: Defaults) -> bool:
    return _said(defaults) != (transaction.note(NOTE) or _said(Defaults()))


def keep(transaction: Transaction, defaults: Defaults) -> None:
    transaction.set_note(NOTE, _said(defaults))


def _said(defaults: Defaults) -> str:
    return f"{defaults.draft_ms}/{defaults.claim_ms}/{defaults.active_ms}"
