"""Verbs that name a message by its id alone, as the HTTP queue has them: the state decides, there is no lease.

(message, policy, now) in, message after out; None out: it was done before, and repeating what succeeded succeeds. A
message that is done or dropped exists no more. Pure; the moves themselves are ``core.decide``."""

from yirangmq.core import decide
from yirangmq.core.errors import NotFound, WrongState
from yirangmq.core.message import Failure, Message
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.states import State

ORDERER = "http:mq"
"""Who has what is claimed by id: nobody says a name there."""
FAILED = "the consumer said that it failed"
IN_LINE = (State.READY, State.DELAYED, State.HELD)
OVER = (State.DONE, State.DROPPED)
UNHEARD = "no such message"


def settable(message: Message | None) -> Message:
    """A draft, or a message that nobody has taken yet."""
    found = existing(message)
    if found.state is not State.DRAFT and found.state not in IN_LINE:
        raise WrongState(f"message {found.id} is {found.state}: its content is final")
    return found


def readable(message: Message | None) -> Message:
    found = existing(message)
    if found.state is State.DRAFT:
        raise WrongState(f"message {found.id} is a draft: it has no content yet")
    return found


def complete(message: Message | None, policy: QueuePolicy, now: int) -> Message | None:
    if message is not None and message.state is State.DONE:
        return None
    return decide.ack(_active(message), policy, now)


def fail_order(message: Message | None, policy: QueuePolicy, now: int) -> decide.Outcome | None:
    if message is not None and message.state in (State.DEAD, State.PARKED):
        return None
    return decide.fail(_active(message), policy, now, FAILED)


def renew(message: Message | None, failure: Failure | None, now: int, place: int) -> Message | None:
    """``failure``: its latest. One that is in line again after it, and without its reason, was renewed."""
    found = existing(message)
    if found.state in (State.DEAD, State.PARKED):
        return decide.redrive(found, now, place)
    if failure is not None and not found.reason:
        return None
    raise WrongState(f"message {found.id} is {found.state}, not failed")


def abandon_order(message: Message | None, policy: QueuePolicy, now: int) -> Message | None:
    """One that was dropped by hand has no reason; what time or a rule has dropped was never abandoned."""
    if message is not None and message.state is State.DROPPED and not message.reason:
        return None
    return decide.drop(existing(message)._replace(reason=""), policy, now)


def existing(message: Message | None) -> Message:
    if message is None or message.state in OVER:
        raise NotFound(UNHEARD)
    return message


def _active(message: Message | None) -> Message:
    found = existing(message)
    if found.state is not State.LEASED:
        raise WrongState(f"message {found.id} is {found.state}, nobody is at work on it")
    return found


def retimed(message: Message, span_ms: int) -> Message | None:
    """When time acts on it now that its state lasts so long; None: nothing has changed, or it is not ours to say."""
    if message.state is not State.DRAFT and message.consumer != ORDERER:
        return None
    until = message.changed_at + span_ms
    return None if until == message.due_at else message._replace(due_at=until)
