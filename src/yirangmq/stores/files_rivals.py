"""Two files that claim to be one message: which of them stays.

Where a message has two names, because after a power cut the old one came back, the later state stays: more leases,
then the later change, then done before dead before parked before waiting before leased. Only a change that nobody was
told of can leave two names, so either would do."""

from yirangmq.core.states import State
from yirangmq.format.filenames import Card

LATER = (
    State.DRAFT,
    State.CLAIMED,
    State.LEASED,
    State.HELD,
    State.READY,
    State.DELAYED,
    State.PARKED,
    State.DEAD,
    State.DONE,
)


def age(card: Card) -> tuple[int, int, int, int]:
    message = card.message
    state = LATER.index(message.state) if message.state in LATER else len(LATER)
    return message.leases, message.changed_at, state, message.place


def claim(card: Card) -> tuple[bool, int]:
    """Who keeps an id: one that lives before one that is over, then the older one."""
    over = card.message.state in (State.DONE, State.DROPPED)
    return not over, -card.message.seq
