"""Messages of a queue in etcd: transitions by the rules of ``core``, retry notes, and dead-letter retention.

A message that was delivered once and acked leaves no note. A message that came back has a note with its attempts, its
place in line and the instant from which it may be delivered again. ``out`` in a note says that a consumer has it again.

A dead letter is the message below ``dead/`` and its reason below ``why/``. The sweep drops dead letters past their
retention, oldest first and at most ``MOST`` per call, in a fenced transaction. Parked messages stay."""

from typing import Any

from yirangmq.cluster.etcd.client import Etcd, created_at, delete, end_of
from yirangmq.cluster.keys import Keys
from yirangmq.core import transitions
from yirangmq.core.errors import BadInput
from yirangmq.core.message import RANK_LAST, Failure, Message, Reason, check_reason
from yirangmq.core.policy import Chance, QueuePolicy
from yirangmq.core.states import State
from yirangmq.core.validation import Fields
from yirangmq.format.envelope import iso
from yirangmq.format.json_codec import dumps, loads

# -- transitions and notes ---------------------------------------------------------------------------------------------


def fresh(queue: str, index: int, name: bytes) -> Message:
    text = name.decode("latin-1")
    return Message(index, queue, text, State.READY, RANK_LAST, index, 0, 0, 0, 0, 0, "", "", 0, True)


def leased(card: Message, policy: QueuePolicy, now: int, home: bytes) -> Message:
    return transitions.lease(card, now, now + policy.visibility_ms, home.decode("latin-1"))


def home_of(card: Message) -> bytes:
    return card.consumer.encode("latin-1")


def name_of(card: Message) -> bytes:
    return card.id.encode("latin-1")


def lapsed(card: Message, policy: QueuePolicy, now: int, place: int) -> transitions.Outcome:
    outcome = transitions.expire(card, policy, now, place)
    assert outcome is not None, "a lease that ends leaves a message"
    return outcome


def refused(
    card: Message, policy: QueuePolicy, now: int, given: bytes, place: int, fraction: float
) -> transitions.Outcome:
    """Apply a consumer's nack. A nack that cannot be read counts as one without a reason."""
    try:
        fields = Fields(loads(given) if given else {})
        seconds = fields.take("delaySec", None)
        delay = round(float(seconds) * 1000) if isinstance(seconds, int | float) else None
        reason = check_reason(fields.take("reasonCode", Reason.HANDLER_ERROR))
        cause = transitions.Cause(reason, str(fields.take("reasonMessage", "")), delay)
    except (BadInput, ValueError):
        cause = transitions.Cause(Reason.HANDLER_ERROR)
    return transitions.nack(card, policy, now, cause, place, Chance(fraction))


def note(card: Message, *, out: bool) -> bytes:
    kept: dict[str, Any] = {
        "attempt": card.attempt,
        "leases": card.leases,
        "place": card.place,
        "state": card.state.value,
        "due": card.due_at,
        "reason": card.reason,
        "repeats": card.repeats,
        "key": card.id,
        "out": out,
    }
    return dumps(kept)


def read_note(queue: str, index: int, text: bytes) -> tuple[Message, bool]:
    """Return the message, and whether a consumer has it. For a note that cannot be read, return a ready message."""
    try:
        kept = loads(text)
        return (
            fresh(queue, index, kept["key"].encode("latin-1"))._replace(
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
        return fresh(queue, index, b""), False


def why(card: Message, failure: Failure | None) -> bytes:
    """Encode the reason that is stored beside a dead letter."""
    return dumps(
        {
            "state": card.state.value,
            "reasonCode": card.reason,
            "reasonMessage": failure.reason_message if failure else "",
            "attempt": card.attempt,
            "consumer": failure.consumer if failure else "",
            "diedAt": iso(card.changed_at),
            "due": card.due_at if card.state is State.DEAD else 0,
        }
    )


# -- retention of dead letters -----------------------------------------------------------------------------------------

MOST = 50


async def sweep_dead(etcd: Etcd, keys: Keys, fence: int, now: int) -> int:
    """Drop dead letters past their retention, oldest first and at most ``MOST``; return their number.

    Parked messages stay."""
    start = keys.base + b"why/"
    found = await etcd.range(start, end_of(start), limit=MOST)
    over = [kv.key for kv in found.kvs if 0 < _due(kv.value) <= now]
    gone = []
    for key in over:
        dead = keys.base + b"dead/" + key.removeprefix(start) + b"/"
        gone += [delete(key), delete(dead, end_of(dead))]
    if gone:
        await etcd.txn([created_at(keys.leader, fence)], gone, repeat=True)
    return len(over)


def _due(text: bytes) -> int:
    try:
        return int(loads(text)["due"])
    except (BadInput, ValueError, KeyError, TypeError):
        return 0
