"""State transitions of a message, by lease and by message id, as pure functions.

A function takes the message, its policy and the time, and returns the message after it, with the failure to store if
there is one. ``place`` is a fresh place in line, for a message that goes behind those already waiting in its rank. A
verb that does not apply to the state raises ``WrongState``.

The HTTP queue's API names a message by its id alone: there is no lease, and the state decides. Those functions return
None where the call succeeded before, because repeating it must succeed again. A message that is done or dropped does
not exist for them (``NotFound``)."""

from typing import NamedTuple

from yirangmq.core.errors import LeaseExpired, LeaseMismatch, NotFound, WrongState
from yirangmq.core.message import MAX_MESSAGE, Envelope, Failure, Message, Reason, new_message
from yirangmq.core.policy import Chance, QueuePolicy, backoff_ms
from yirangmq.core.states import TRANSITIONS, State, Verb

# -- moves -------------------------------------------------------------------------------------------------------------

FINAL_REASONS = frozenset({Reason.VALIDATION_ERROR, Reason.REJECTED, Reason.CORRUPT, Reason.POISON})
"""Trying again cannot help."""


class Outcome(NamedTuple):
    """What became of it, and the failure to remember, if there was one."""

    message: Message
    failure: Failure | None = None


class Cause(NamedTuple):
    """Why a consumer gives a message back."""

    reason: Reason
    text: str = ""
    delay_ms: int | None = None


def fresh(envelope: Envelope, seq: int, now: int) -> Message:
    """The first card of a published message: ready at once, or delayed until its time."""
    waits = envelope.available_at > now
    state = _follow(None, Verb.POSTPONE if waits else Verb.PUBLISH)
    due = _earliest(envelope.available_at if waits else 0, envelope.expires_at)
    return Message(
        seq,
        envelope.queue,
        envelope.id,
        state,
        envelope.rank,
        seq,
        0,
        0,
        due,
        envelope.expires_at,
        now,
        "",
        "",
        0,
        True,
        envelope.group,
        envelope.target,
        envelope.size,
    )


def draft(envelope: Envelope, seq: int, until: int, now: int) -> Message:
    """The first card of a message whose content is still to come; ``until`` then at the latest."""
    card = fresh(envelope._replace(available_at=now), seq, now)
    return card._replace(state=_follow(None, Verb.DRAFT), due_at=until)


def set_content(message: Message, policy: QueuePolicy, now: int, place: int) -> Message:
    """The content of a draft has come: in line, behind those waiting in its rank. From here on it ages."""
    expires = message.expires_at or (now + policy.ttl_ms if policy.ttl_ms else 0)
    state = _follow(message.state, Verb.SET)
    seq, queue, id, _, rank, _, attempt, leases, _, _, _, *rest = message
    return new_message((seq, queue, id, state, rank, place, attempt, leases, expires, expires, now, *rest))


def refuse(message: Message, policy: QueuePolicy, now: int, text: str) -> Outcome:
    """A message that fails validation at the door goes to the dead letters without ever being ready."""
    failure = Failure(Reason.VALIDATION_ERROR, text[:MAX_MESSAGE], now, 0, "")
    return Outcome(_bury(message, policy, now, Reason.VALIDATION_ERROR), failure)


def set_aside(message: Message, policy: QueuePolicy, now: int, text: str) -> Outcome:
    """Its stored bytes are not those that were sent. It is kept to be looked at, also where dead letters are off."""
    failure = Failure(Reason.CORRUPT, text[:MAX_MESSAGE], now, message.attempt, "")
    if policy.dlq.enabled:
        return Outcome(_bury(message, policy, now, Reason.CORRUPT), failure)
    return Outcome(park(message._replace(reason=Reason.CORRUPT), now), failure)


def lease(message: Message, now: int, until: int, consumer: str) -> Message:
    """Hand it out: one more attempt, a new fence."""
    return _handed_out(message, Verb.LEASE, now, until, consumer)


def _handed_out(message: Message, verb: Verb, now: int, until: int, consumer: str) -> Message:
    state = _follow(message.state, verb)
    seq, queue, id, _, rank, place, attempt, leases, _, expires_at, _, _, reason, repeats, *rest = message
    attempt, leases = attempt + 1, leases + 1
    card = (seq, queue, id, state, rank, place, attempt, leases, until, expires_at, now, consumer, reason, repeats)
    return new_message((*card, *rest))


def claim(message: Message, now: int, until: int, consumer: str) -> Message:
    """The first half of a lease: its id is given out, and that is the attempt. Its content is fetched by ``start``."""
    return _handed_out(message, Verb.CLAIM, now, until, consumer)


def start(message: Message, now: int, until: int) -> Message:
    """The second half of a lease."""
    state = _follow(message.state, Verb.START)
    return new_message((*message[:3], state, *message[4:8], until, message[9], now, *message[11:]))


def unclaim(message: Message, now: int) -> Message:
    """Whoever was to have it had left: it stands where it stood, and the attempt did not happen."""
    state = _follow(message.state, Verb.RELEASE)
    return message._replace(
        state=state, attempt=message.attempt - 1, due_at=message.expires_at, changed_at=now, consumer=""
    )


def held(message: Message | None, leases: int, consumer: str | None, now: int, lease: str) -> Message:
    """The message a live lease names; a stale, foreign or lapsed one is an error, never a silent success."""
    if message is None:
        raise NotFound(f"lease {lease}: no such message")
    if message.state is not State.LEASED or message.leases != leases:
        raise LeaseExpired(
            f"lease {lease} is over: message {message.id} is {message.state} (attempt {message.attempt})"
        )
    if consumer is not None and consumer != message.consumer:
        raise LeaseMismatch(f"lease {lease} belongs to consumer {message.consumer!r}, not {consumer!r}")
    if message.due_at <= now:
        raise LeaseExpired(f"lease {lease} lapsed {(now - message.due_at) / 1000:g} s ago")
    return message


def acked_before(message: Message | None, leases: int) -> bool:
    """This very lease was acknowledged already: repeating a call that succeeded succeeds."""
    return message is not None and message.state is State.DONE and message.leases == leases


def nacked_before(message: Message | None, leases: int) -> bool:
    """This very lease was given back by its holder already. (A lease that lapsed, or a message dropped or redriven
    by somebody else, has no consumer any more.)"""
    if message is None or message.leases != leases or not message.consumer:
        return False
    return message.state in (State.DELAYED, State.READY, State.DEAD, State.PARKED, State.DROPPED)


def ack(message: Message, policy: QueuePolicy, now: int) -> Message:
    """It worked. Kept as history for a while, or remembered by id only."""
    keep = policy.archive.enabled
    due = now + (max(policy.archive.retention_ms, policy.tombstone_ms) if keep else policy.tombstone_ms)
    state = _follow(message.state, Verb.ACK)
    seq, queue, id, _, rank, place, attempt, leases, _, expires_at, _, consumer, reason, repeats, _, *rest = message
    card = (seq, queue, id, state, rank, place, attempt, leases, due, expires_at, now, consumer, reason, repeats, keep)
    return new_message((*card, *rest))


def extend(message: Message, now: int, until: int) -> Message:
    return message._replace(state=_follow(message.state, Verb.EXTEND), due_at=until, changed_at=now)


def nack(message: Message, policy: QueuePolicy, now: int, cause: Cause, place: int, chance: Chance) -> Outcome:
    """It did not work: wait and try again, or the dead letters when trying again cannot help."""
    repeats = message.repeats + 1 if cause.reason == message.reason else 1
    failure = Failure(cause.reason, cause.text[:MAX_MESSAGE], now, message.attempt, message.consumer)
    message = message._replace(reason=cause.reason, repeats=repeats)
    poison = policy.retry.poison_after and repeats >= policy.retry.poison_after
    if cause.reason in FINAL_REASONS or poison or _is_last(message, policy):
        return Outcome(_bury(message, policy, now, Reason.POISON if poison else cause.reason), failure)
    if _is_expired(message, now):
        return Outcome(_out_of_time(message, policy, now), failure)
    delay = backoff_ms(policy.retry, message.attempt, chance) if cause.delay_ms is None else cause.delay_ms
    if delay == 0:
        return Outcome(_release(message, policy, now, place), failure)
    due = _earliest(now + delay, message.expires_at)
    return Outcome(message._replace(state=_follow(message.state, Verb.RETRY), due_at=due, changed_at=now), failure)


def fail(message: Message, policy: QueuePolicy, now: int, text: str) -> Outcome:
    """It did not work, and is not to be tried again until somebody says so."""
    failure = Failure(Reason.HANDLER_ERROR, text[:MAX_MESSAGE], now, message.attempt, message.consumer)
    return Outcome(_bury(message, policy, now, Reason.HANDLER_ERROR), failure)


def abandon(message: Message, policy: QueuePolicy, now: int, text: str) -> Outcome:
    """The one consumer that may have it will not come: among the dead letters, where somebody may see it."""
    failure = Failure(Reason.REJECTED, text[:MAX_MESSAGE], now, message.attempt, "")
    return Outcome(_bury(message, policy, now, Reason.REJECTED), failure)


def release(message: Message, policy: QueuePolicy, now: int, place: int) -> Message:
    """Given back untouched, by a consumer that stops or never got it: the attempt did not happen, the fence stays."""
    return _release(message._replace(attempt=message.attempt - 1, consumer=""), policy, now, place)


def expire(message: Message, policy: QueuePolicy, now: int, place: int) -> Outcome | None:
    """Time acts on it. None: it is over, forget it entirely."""
    match message.state:
        case State.LEASED | State.CLAIMED:
            return _lapse(message, policy, now, place)
        case State.DELAYED if _is_expired(message, now):
            return _out_of_time_outcome(message, policy, now)
        case State.DELAYED:
            return Outcome(_ripen(message, policy, now, place))
        case State.READY | State.HELD:
            return _out_of_time_outcome(message, policy, now)
        case State.DRAFT:
            return Outcome(drop(message._replace(reason=Reason.EXPIRED), policy, now))
        case State.DEAD:
            return Outcome(drop(message, policy, now))
        case _:
            return None


def redrive(message: Message, now: int, place: int) -> Message:
    """Back in line with a clean slate: attempts start again, the priority stays."""
    state = _follow(message.state, Verb.REDRIVE)
    return message._replace(
        state=state, place=place, attempt=0, due_at=0, expires_at=0, changed_at=now, consumer="", reason="", repeats=0
    )


def hold(message: Message) -> Message:
    """Behind another of its group; only its age can act on it meanwhile."""
    return message._replace(state=_follow(message.state, Verb.HOLD), due_at=message.expires_at)


def free(message: Message, available_at: int, now: int) -> Message:
    """Its turn in the group: ready, unless its own delay is not over."""
    if available_at > now and not message.attempt:
        due = _earliest(available_at, message.expires_at)
        return message._replace(state=_follow(message.state, Verb.POSTPONE), due_at=due, changed_at=now)
    return message._replace(state=_follow(message.state, Verb.FREE), due_at=message.expires_at, changed_at=now)


def park(message: Message, now: int) -> Message:
    return message._replace(state=_follow(message.state, Verb.PARK), due_at=0, changed_at=now)


def drop(message: Message, policy: QueuePolicy, now: int) -> Message:
    """Given up by somebody other than its holder; its id is remembered for the tombstone window."""
    return _give_up(message._replace(consumer=""), policy, now)


def _give_up(message: Message, policy: QueuePolicy, now: int) -> Message:
    state = _follow(message.state, Verb.DROP)
    return message._replace(state=state, due_at=now + policy.tombstone_ms, changed_at=now, body=False)


def _lapse(message: Message, policy: QueuePolicy, now: int, place: int) -> Outcome:
    """The consumer went silent: at once back in line, or dead if that was the last attempt."""
    repeats = message.repeats + 1 if message.reason == Reason.TIMEOUT else 1
    what = "the lease" if message.state is State.LEASED else "the claim"
    text = f"{what} of attempt {message.attempt} lapsed"
    failure = Failure(Reason.TIMEOUT, text, now, message.attempt, message.consumer)
    message = message._replace(reason=Reason.TIMEOUT, repeats=repeats, consumer="")
    poison = policy.retry.poison_after and repeats >= policy.retry.poison_after
    if poison or _is_last(message, policy):
        return Outcome(_bury(message, policy, now, Reason.POISON if poison else Reason.TIMEOUT), failure)
    if _is_expired(message, now):
        return Outcome(_out_of_time(message, policy, now), failure)
    return Outcome(_release(message, policy, now, place), failure)


def _release(message: Message, policy: QueuePolicy, now: int, place: int) -> Message:
    state = _follow(message.state, Verb.RELEASE)
    where = message.place if policy.keeps_places or message.group else place
    return message._replace(state=state, place=where, due_at=message.expires_at, changed_at=now)


def _ripen(message: Message, policy: QueuePolicy, now: int, place: int) -> Message:
    """The wait is over. A retry goes behind those waiting, unless the queue keeps places; so does a first delay."""
    state = _follow(message.state, Verb.RIPEN)
    front = (policy.keeps_places and message.attempt > 0) or message.group
    where = message.place if front else place
    return message._replace(state=state, place=where, due_at=message.expires_at, changed_at=now)


def _bury(message: Message, policy: QueuePolicy, now: int, reason: Reason) -> Message:
    message = message._replace(reason=reason)
    if policy.dlq.enabled:
        due = now + policy.dlq.retention_ms
        return message._replace(state=_follow(message.state, Verb.BURY), due_at=due, changed_at=now)
    if policy.dlq.when_disabled == "park":
        return park(message, now)
    return _give_up(message, policy, now)


def _out_of_time(message: Message, policy: QueuePolicy, now: int) -> Message:
    if policy.on_expire == "dead":
        return _bury(message, policy, now, Reason.EXPIRED)
    return _give_up(message, policy, now)


def _out_of_time_outcome(message: Message, policy: QueuePolicy, now: int) -> Outcome:
    failure = Failure(Reason.EXPIRED, "its time to live ran out", now, message.attempt, "")
    return Outcome(_out_of_time(message, policy, now), failure)


def _is_last(message: Message, policy: QueuePolicy) -> bool:
    return policy.retry.limit is not None and message.attempt > policy.retry.limit


def _is_expired(message: Message, now: int) -> bool:
    return 0 < message.expires_at <= now


def _earliest(*moments: int) -> int:
    return min((moment for moment in moments if moment), default=0)


def _follow(state: State | None, verb: Verb) -> State:
    found = TRANSITIONS.get((state, verb))
    if found is None:
        raise WrongState(f"{verb} does not apply to a message that is {state or 'new'}")
    return found


# -- by message id, for the HTTP queue's API ---------------------------------------------------------------------------

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
    return ack(_active(message), policy, now)


def fail_order(message: Message | None, policy: QueuePolicy, now: int) -> Outcome | None:
    if message is not None and message.state in (State.DEAD, State.PARKED):
        return None
    return fail(_active(message), policy, now, FAILED)


def renew(message: Message | None, failure: Failure | None, now: int, place: int) -> Message | None:
    """``failure``: its latest. One that is in line again after it, and without its reason, was renewed."""
    found = existing(message)
    if found.state in (State.DEAD, State.PARKED):
        return redrive(found, now, place)
    if failure is not None and not found.reason:
        return None
    raise WrongState(f"message {found.id} is {found.state}, not failed")


def abandon_order(message: Message | None, policy: QueuePolicy, now: int) -> Message | None:
    """One that was dropped by hand has no reason; what time or a rule has dropped was never abandoned."""
    if message is not None and message.state is State.DROPPED and not message.reason:
        return None
    return drop(existing(message)._replace(reason=""), policy, now)


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
