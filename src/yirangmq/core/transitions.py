"""State transitions of a message, by lease, by message id and by expiry, as pure functions.

A function takes the message, its policy and the time, and returns the message after the transition, with the failure to
store if there is one. ``place`` is a new place, for a message that goes to the end of its rank. A verb that does not
apply to the state raises ``WrongState``.

The HTTP queue's API names a message by its id alone: there is no lease, and the state decides. Those functions return
None if the call succeeded before, because a repeated call must succeed again. For them a message that is done or
dropped does not exist (``NotFound``)."""

from typing import NamedTuple

from yirangmq.core.backoff import RandomFraction, backoff_ms
from yirangmq.core.errors import LeaseExpired, LeaseMismatch, NotFound, WrongState
from yirangmq.core.message import (
    MAX_FAILURE_TEXT,
    Envelope,
    Message,
    MessageFailure,
    Reason,
    bounded_failure_text,
    new_message,
)
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.states import TRANSITIONS, State, Verb

# -- transitions by lease ----------------------------------------------------------------------------------------------

FINAL_REASONS = frozenset({Reason.VALIDATION_ERROR, Reason.REJECTED, Reason.CORRUPT, Reason.POISON})
"""Reasons after which a retry cannot succeed."""


class TransitionResult(NamedTuple):
    """Result of a transition: the message after it, and the failure to store, if there is one."""

    message: Message
    failure: MessageFailure | None = None


class Cause(NamedTuple):
    """Cause of a nack. ``delay_ms``: the delay that the consumer chose; None: the policy's backoff."""

    reason: Reason
    text: str = ""
    delay_ms: int | None = None


def fresh(envelope: Envelope, seq: int, now: int) -> Message:
    """Return the initial row of a published message: ready, or delayed until ``available_at``."""
    waits = envelope.available_at > now
    state = _next_state(None, Verb.POSTPONE if waits else Verb.PUBLISH)
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
    """Return the initial row of a draft. Its content must be set before ``until``."""
    row = fresh(envelope._replace(available_at=now), seq, now)
    return row._replace(state=_next_state(None, Verb.DRAFT), due_at=until)


def set_content(message: Message, policy: QueuePolicy, now: int, place: int) -> Message:
    """Set the content of a draft: it becomes ready, at the end of its rank. Its time to live starts here."""
    expires = message.expires_at or (now + policy.ttl_ms if policy.ttl_ms else 0)
    state = _next_state(message.state, Verb.SET)
    seq, queue, id, _, rank, _, attempt, leases, _, _, _, *rest = message
    return new_message((seq, queue, id, state, rank, place, attempt, leases, expires, expires, now, *rest))


def refuse(message: Message, policy: QueuePolicy, now: int, text: str) -> TransitionResult:
    """Refuse a message that fails validation: it becomes a dead letter without having been ready."""
    failure = MessageFailure(Reason.VALIDATION_ERROR, text[:MAX_FAILURE_TEXT], now, 0, "")
    return TransitionResult(_dead_letter(message, policy, now, Reason.VALIDATION_ERROR), failure)


def quarantine(message: Message, policy: QueuePolicy, now: int, text: str) -> TransitionResult:
    """Quarantine a message with a stored payload that differs from the published one. It is kept for inspection, even
    if dead letters are off."""
    failure = MessageFailure(Reason.CORRUPT, text[:MAX_FAILURE_TEXT], now, message.attempt, "")
    if policy.dlq.enabled:
        return TransitionResult(_dead_letter(message, policy, now, Reason.CORRUPT), failure)
    return TransitionResult(park(message._replace(reason=Reason.CORRUPT), now), failure)


def lease(message: Message, now: int, until: int, consumer: str) -> Message:
    """Lease the message: one more attempt, and a new fence."""
    return _to_holder(message, Verb.LEASE, now, until, consumer)


def _to_holder(message: Message, verb: Verb, now: int, until: int, consumer: str) -> Message:
    state = _next_state(message.state, verb)
    seq, queue, id, _, rank, place, attempt, leases, _, expires_at, _, _, reason, repeats, *rest = message
    attempt, leases = attempt + 1, leases + 1
    row = (seq, queue, id, state, rank, place, attempt, leases, until, expires_at, now, consumer, reason, repeats)
    return new_message((*row, *rest))


def claim(message: Message, now: int, until: int, consumer: str) -> Message:
    """First half of a lease: the consumer gets the id, which counts as the attempt. ``start`` delivers the content."""
    return _to_holder(message, Verb.CLAIM, now, until, consumer)


def start(message: Message, now: int, until: int) -> Message:
    """Second half of a lease: the consumer fetches the content."""
    state = _next_state(message.state, Verb.START)
    seq, queue, id, _, rank, place, attempt, leases, _, expires_at, _, *rest = message
    return new_message((seq, queue, id, state, rank, place, attempt, leases, until, expires_at, now, *rest))


def unclaim(message: Message, now: int) -> Message:
    """Undo a claim because its consumer has disconnected: the message keeps its place, and the attempt does not
    count."""
    state = _next_state(message.state, Verb.RELEASE)
    return message._replace(
        state=state, attempt=message.attempt - 1, due_at=message.expires_at, changed_at=now, consumer=""
    )


def check_lease(message: Message | None, leases: int, consumer: str | None, now: int, lease: str) -> Message:
    """Return the message of a lease in force. A stale, foreign or expired lease is an error, never a silent
    success."""
    if message is None:
        raise NotFound(f"lease {lease}: no such message")
    if message.state is not State.LEASED or message.leases != leases:
        raise LeaseExpired(
            f"lease {lease} is over: message {message.id} is {message.state} (attempt {message.attempt})"
        )
    if consumer is not None and consumer != message.consumer:
        raise LeaseMismatch(f"lease {lease} is held by consumer {message.consumer!r}, not {consumer!r}")
    if message.due_at <= now:
        raise LeaseExpired(f"lease {lease} expired {(now - message.due_at) / 1000:g} s ago")
    return message


def acked_before(message: Message | None, leases: int) -> bool:
    """Return True if this lease was acknowledged before, so that a repeated ack succeeds."""
    return message is not None and message.state is State.DONE and message.leases == leases


def nacked_before(message: Message | None, leases: int) -> bool:
    """Return True if the holder released or nacked this lease before, so that a repeated call succeeds. After an
    expired lease, or a drop or redrive by an operator, the message has no consumer."""
    if message is None or message.leases != leases or not message.consumer:
        return False
    return message.state in (State.DELAYED, State.READY, State.DEAD, State.PARKED, State.DROPPED)


def ack(message: Message, policy: QueuePolicy, now: int) -> Message:
    """Acknowledge: the message is done. It is kept as history for the archive's retention, or as a tombstone."""
    keep = policy.archive.enabled
    due = now + (max(policy.archive.retention_ms, policy.tombstone_ms) if keep else policy.tombstone_ms)
    state = _next_state(message.state, Verb.ACK)
    seq, queue, id, _, rank, place, attempt, leases, _, expires_at, _, consumer, reason, repeats, _, *rest = message
    row = (seq, queue, id, state, rank, place, attempt, leases, due, expires_at, now, consumer, reason, repeats, keep)
    return new_message((*row, *rest))


def extend(message: Message, now: int, until: int) -> Message:
    return message._replace(state=_next_state(message.state, Verb.EXTEND), due_at=until, changed_at=now)


def nack(
    message: Message, policy: QueuePolicy, now: int, cause: Cause, place: int, chance: RandomFraction
) -> TransitionResult:
    """Fail an attempt: the message waits for a retry, or becomes a dead letter if a retry cannot succeed."""
    repeats = message.repeats + 1 if cause.reason == message.reason else 1
    text = bounded_failure_text(cause.text, policy.dlq.traceback_chars)
    failure = MessageFailure(cause.reason, text, now, message.attempt, message.consumer)
    message = message._replace(reason=cause.reason, repeats=repeats)
    poison = policy.retry.poison_after and repeats >= policy.retry.poison_after
    if cause.reason in FINAL_REASONS or poison or _is_last(message, policy):
        return TransitionResult(_dead_letter(message, policy, now, Reason.POISON if poison else cause.reason), failure)
    if _is_expired(message, now):
        return TransitionResult(_expire_ttl(message, policy, now), failure)
    delay = backoff_ms(policy.retry, message.attempt, chance) if cause.delay_ms is None else cause.delay_ms
    if delay == 0:
        return TransitionResult(_release(message, policy, now, place), failure)
    due = _earliest(now + delay, message.expires_at)
    return TransitionResult(
        message._replace(state=_next_state(message.state, Verb.RETRY), due_at=due, changed_at=now), failure
    )


def fail(message: Message, policy: QueuePolicy, now: int, text: str) -> TransitionResult:
    """Fail the message finally: it becomes a dead letter, without a retry until an operator redrives it."""
    failure = MessageFailure(Reason.HANDLER_ERROR, text[:MAX_FAILURE_TEXT], now, message.attempt, message.consumer)
    return TransitionResult(_dead_letter(message, policy, now, Reason.HANDLER_ERROR), failure)


def abandon(message: Message, policy: QueuePolicy, now: int, text: str) -> TransitionResult:
    """Give a message for one consumer to the dead letters, because that consumer no longer exists."""
    failure = MessageFailure(Reason.REJECTED, text[:MAX_FAILURE_TEXT], now, message.attempt, "")
    return TransitionResult(_dead_letter(message, policy, now, Reason.REJECTED), failure)


def release(message: Message, policy: QueuePolicy, now: int, place: int) -> Message:
    """Release a message unprocessed, because its consumer stops or never received it: the attempt does not count, the
    fence stays."""
    return _release(message._replace(attempt=message.attempt - 1, consumer=""), policy, now, place)


def expire(message: Message, policy: QueuePolicy, now: int, place: int) -> TransitionResult | None:
    """Apply the end of ``due_at``. Return None if the message must be deleted completely."""
    match message.state:
        case State.LEASED | State.CLAIMED:
            return _expire_lease(message, policy, now, place)
        case State.DELAYED if _is_expired(message, now):
            return _expire_ttl_result(message, policy, now)
        case State.DELAYED:
            return TransitionResult(_end_delay(message, policy, now, place))
        case State.READY | State.HELD:
            return _expire_ttl_result(message, policy, now)
        case State.DRAFT:
            return TransitionResult(drop(message._replace(reason=Reason.EXPIRED), policy, now))
        case State.DEAD:
            return TransitionResult(drop(message, policy, now))
        case _:
            return None


def redrive(message: Message, now: int, place: int) -> Message:
    """Redrive: the message is ready again, with attempts from 0 and the same priority."""
    state = _next_state(message.state, Verb.REDRIVE)
    return message._replace(
        state=state, place=place, attempt=0, due_at=0, expires_at=0, changed_at=now, consumer="", reason="", repeats=0
    )


def hold(message: Message) -> Message:
    """Hold the message behind another one of its group; meanwhile only its time to live applies."""
    return message._replace(state=_next_state(message.state, Verb.HOLD), due_at=message.expires_at)


def free(message: Message, available_at: int, now: int) -> Message:
    """Free the next message of a group: it is ready, or delayed if its delay is not over."""
    if available_at > now and not message.attempt:
        due = _earliest(available_at, message.expires_at)
        return message._replace(state=_next_state(message.state, Verb.POSTPONE), due_at=due, changed_at=now)
    return message._replace(state=_next_state(message.state, Verb.FREE), due_at=message.expires_at, changed_at=now)


def park(message: Message, now: int) -> Message:
    return message._replace(state=_next_state(message.state, Verb.PARK), due_at=0, changed_at=now)


def drop(message: Message, policy: QueuePolicy, now: int) -> Message:
    """Drop the message, not by its holder. Its id is kept for the tombstone window."""
    return _drop(message._replace(consumer=""), policy, now)


def _drop(message: Message, policy: QueuePolicy, now: int) -> Message:
    state = _next_state(message.state, Verb.DROP)
    return message._replace(state=state, due_at=now + policy.tombstone_ms, changed_at=now, body=False)


def _expire_lease(message: Message, policy: QueuePolicy, now: int, place: int) -> TransitionResult:
    """Expire a lease or a claim: the message is ready again, or a dead letter if that was the last attempt."""
    repeats = message.repeats + 1 if message.reason == Reason.TIMEOUT else 1
    what = "the lease" if message.state is State.LEASED else "the claim"
    text = f"{what} of attempt {message.attempt} expired"
    failure = MessageFailure(Reason.TIMEOUT, text, now, message.attempt, message.consumer)
    message = message._replace(reason=Reason.TIMEOUT, repeats=repeats, consumer="")
    poison = policy.retry.poison_after and repeats >= policy.retry.poison_after
    if poison or _is_last(message, policy):
        return TransitionResult(
            _dead_letter(message, policy, now, Reason.POISON if poison else Reason.TIMEOUT), failure
        )
    if _is_expired(message, now):
        return TransitionResult(_expire_ttl(message, policy, now), failure)
    return TransitionResult(_release(message, policy, now, place), failure)


def _release(message: Message, policy: QueuePolicy, now: int, place: int) -> Message:
    state = _next_state(message.state, Verb.RELEASE)
    where = message.place if policy.keeps_places or message.group else place
    return message._replace(state=state, place=where, due_at=message.expires_at, changed_at=now)


def _end_delay(message: Message, policy: QueuePolicy, now: int, place: int) -> Message:
    """End a delay. A retried message goes to the end of its rank, unless the queue keeps places; so does a message
    after its first delay."""
    state = _next_state(message.state, Verb.RIPEN)
    front = (policy.keeps_places and message.attempt > 0) or message.group
    where = message.place if front else place
    return message._replace(state=state, place=where, due_at=message.expires_at, changed_at=now)


def _dead_letter(message: Message, policy: QueuePolicy, now: int, reason: Reason) -> Message:
    message = message._replace(reason=reason)
    if policy.dlq.enabled:
        due = now + policy.dlq.retention_ms
        return message._replace(state=_next_state(message.state, Verb.BURY), due_at=due, changed_at=now)
    if policy.dlq.when_disabled == "park":
        return park(message, now)
    return _drop(message, policy, now)


def _expire_ttl(message: Message, policy: QueuePolicy, now: int) -> Message:
    if policy.on_expire == "dead":
        return _dead_letter(message, policy, now, Reason.EXPIRED)
    return _drop(message, policy, now)


def _expire_ttl_result(message: Message, policy: QueuePolicy, now: int) -> TransitionResult:
    failure = MessageFailure(Reason.EXPIRED, "its time to live ran out", now, message.attempt, "")
    return TransitionResult(_expire_ttl(message, policy, now), failure)


def _is_last(message: Message, policy: QueuePolicy) -> bool:
    return policy.retry.limit is not None and message.attempt > policy.retry.limit


def _is_expired(message: Message, now: int) -> bool:
    return 0 < message.expires_at <= now


def _earliest(*moments: int) -> int:
    return min((moment for moment in moments if moment), default=0)


def _next_state(state: State | None, verb: Verb) -> State:
    found = TRANSITIONS.get((state, verb))
    if found is None:
        raise WrongState(f"{verb} does not apply to a message that is {state or 'new'}")
    return found


# -- by message id, for the HTTP queue's API ---------------------------------------------------------------------------

MQ_CONSUMER = "http:mq"
"""Consumer name of messages that are claimed by id: the HTTP queue's API has no consumer names."""
FAILED_TEXT = "the consumer reported a failure"
NOT_YET_LEASED = (State.READY, State.DELAYED, State.HELD)
FINISHED = (State.DONE, State.DROPPED)
NO_SUCH_MESSAGE = "no such message"


def settable(message: Message | None) -> Message:
    """Return the message if its content may be set: a draft, or a message that was not leased yet."""
    found = existing(message)
    if found.state is not State.DRAFT and found.state not in NOT_YET_LEASED:
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


def fail_by_id(message: Message | None, policy: QueuePolicy, now: int) -> TransitionResult | None:
    if message is not None and message.state in (State.DEAD, State.PARKED):
        return None
    return fail(_active(message), policy, now, FAILED_TEXT)


def renew(message: Message | None, failure: MessageFailure | None, now: int, place: int) -> Message | None:
    """Renew a failed message. ``failure``: its latest one. A message with a failure but no reason was renewed
    before."""
    found = existing(message)
    if found.state in (State.DEAD, State.PARKED):
        return redrive(found, now, place)
    if failure is not None and not found.reason:
        return None
    raise WrongState(f"message {found.id} is {found.state}, not failed")


def drop_by_id(message: Message | None, policy: QueuePolicy, now: int) -> Message | None:
    """Drop a message by id. A message dropped by hand has no reason; one dropped by time or a rule has one, and was not
    abandoned before."""
    if message is not None and message.state is State.DROPPED and not message.reason:
        return None
    return drop(existing(message)._replace(reason=""), policy, now)


def existing(message: Message | None) -> Message:
    if message is None or message.state in FINISHED:
        raise NotFound(NO_SUCH_MESSAGE)
    return message


def _active(message: Message | None) -> Message:
    found = existing(message)
    if found.state is not State.LEASED:
        raise WrongState(f"message {found.id} is {found.state}, it is not leased")
    return found


def with_duration(message: Message, span_ms: int) -> Message | None:
    """Return the message with ``due_at`` for a new duration of its state. None if nothing changes, or if it is neither
    a draft nor claimed by id."""
    if message.state is not State.DRAFT and message.consumer != MQ_CONSUMER:
        return None
    until = message.changed_at + span_ms
    return None if until == message.due_at else message._replace(due_at=until)
