"""Messages of a queue in etcd: transitions by the rules of ``core``, retry notes, and dead-letter retention.

A message that was delivered once and acked leaves no note. A message that came back has a note with its attempts, its
place in line and the instant from which it may be delivered again. ``out`` in a note says that a consumer has it again.

A dead letter is the message below ``dead/`` and its reason below ``why/``. The sweep drops dead letters past their
retention, oldest first and at most ``MAX_PER_SWEEP`` per call, in a fenced transaction. Parked messages stay."""

from typing import Any

from yirangmq.cluster.etcd.client import Etcd, create_revision_equals, delete, prefix_end
from yirangmq.cluster.keys import Keys
from yirangmq.core import transitions
from yirangmq.core.backoff import RandomFraction
from yirangmq.core.errors import BadInput
from yirangmq.core.message import RANK_LAST, Message, MessageFailure, Reason, check_reason
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.states import State
from yirangmq.core.validation import Fields
from yirangmq.format.envelope import iso
from yirangmq.format.json_codec import dumps, loads

# -- transitions and notes ---------------------------------------------------------------------------------------------


def new_message(queue: str, index: int, name: bytes) -> Message:
    text = name.decode("latin-1")
    return Message(index, queue, text, State.READY, RANK_LAST, index, 0, 0, 0, 0, 0, "", "", 0, True)


def leased(message: Message, policy: QueuePolicy, now: int, home: bytes) -> Message:
    return transitions.lease(message, now, now + policy.visibility_ms, home.decode("latin-1"))


def home_of(message: Message) -> bytes:
    return message.consumer.encode("latin-1")


def name_of(message: Message) -> bytes:
    return message.id.encode("latin-1")


def expired(message: Message, policy: QueuePolicy, now: int, place: int) -> transitions.TransitionResult:
    outcome = transitions.expire(message, policy, now, place)
    assert outcome is not None, "a lease that ends leaves a message"
    return outcome


def nacked(
    message: Message, policy: QueuePolicy, now: int, given: bytes, place: int, fraction: float
) -> transitions.TransitionResult:
    """Apply a consumer's nack. A nack that cannot be read counts as one without a reason."""
    try:
        fields = Fields(loads(given) if given else {})
        seconds = fields.take("delaySec", None)
        delay = round(float(seconds) * 1000) if isinstance(seconds, int | float) else None
        reason = check_reason(fields.take("reasonCode", Reason.HANDLER_ERROR))
        cause = transitions.Cause(reason, str(fields.take("reasonMessage", "")), delay)
    except (BadInput, ValueError):
        cause = transitions.Cause(Reason.HANDLER_ERROR)
    return transitions.nack(message, policy, now, cause, place, RandomFraction(fraction))


def encode_note(message: Message, *, out: bool) -> bytes:
    kept: dict[str, Any] = {
        "attempt": message.attempt,
        "leases": message.leases,
        "place": message.place,
        "state": message.state.value,
        "due": message.due_at,
        "reason": message.reason,
        "repeats": message.repeats,
        "key": message.id,
        "out": out,
    }
    return dumps(kept)


def read_note(queue: str, index: int, text: bytes) -> tuple[Message, bool]:
    """Return the message, and whether a consumer has it. For a note that cannot be read, return a ready message."""
    try:
        kept = loads(text)
        return (
            new_message(queue, index, kept["key"].encode("latin-1"))._replace(
                attempt=int(kept["attempt"]),
                leases=int(kept["leases"]),
                place=int(kept["place"]),
                state=State.DELAYED if kept["state"] == State.DELAYED else State.READY,
                due_at=int(kept["due"]) if kept["state"] == State.DELAYED else 0,
                reason=str(kept["reason"]),
                repeats=int(kept["repeats"]),
            ),
            bool(kept["out"]),
        )
    except (BadInput, ValueError, KeyError, TypeError, AttributeError):
        return new_message(queue, index, b""), False


def why(message: Message, failure: MessageFailure | None) -> bytes:
    """Encode the reason that is stored beside a dead letter."""
    return dumps(
        {
            "state": message.state.value,
            "reasonCode": message.reason,
            "reasonMessage": failure.reason_message if failure else "",
            "attempt": message.attempt,
            "consumer": failure.consumer if failure else "",
            "diedAt": iso(message.changed_at),
            "due": message.due_at if message.state is State.DEAD else 0,
        }
    )


# -- retention of dead letters -----------------------------------------------------------------------------------------

MAX_PER_SWEEP = 50


async def sweep_dead(etcd: Etcd, keys: Keys, fence: int, now: int) -> int:
    """Drop dead letters past their retention, oldest first and at most ``MAX_PER_SWEEP``; return their number.

    Parked messages stay."""
    start = keys.base + b"why/"
    found = await etcd.range(start, prefix_end(start), limit=MAX_PER_SWEEP)
    over = [kv.key for kv in found.kvs if 0 < _due(kv.value) <= now]
    gone = []
    for key in over:
        dead = keys.base + b"dead/" + key.removeprefix(start) + b"/"
        gone += [delete(key), delete(dead, prefix_end(dead))]
    if gone:
        await etcd.txn([create_revision_equals(keys.leader, fence)], gone, repeat=True)
    return len(over)


def _due(text: bytes) -> int:
    try:
        return int(loads(text)["due"])
    except (BadInput, ValueError, KeyError, TypeError):
        return 0
