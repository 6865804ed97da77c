"""The mark on a store whose messages another node is taking. Knows: the note. Does not know: how they are taken
(``broker.adoption``)."""

from yirangmq.core.errors import WrongState
from yirangmq.core.ports import Transaction

MARK = "pair-adopting"
"""In the other store: who is taking its messages."""


def check_unmarked(transaction: Transaction) -> None:
    """A store whose adoption was broken off must not be served: some of its messages may be delivered elsewhere."""
    found = transaction.note(MARK)
    if found is not None:
        raise WrongState(
            f"its messages are being adopted by {found}: finish that with 'pair adopt' there", field="store"
        )
