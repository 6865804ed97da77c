"""Messages as this API shows them, written to bytes: a payload's own text stands in them untouched."""

from collections.abc import Iterable
from typing import Any

from yirangmq.format.delivery import Delivery, Look, failure_document
from yirangmq.format.envelope import as_json, iso
from yirangmq.format.json_codec import dumps
from yirangmq.wire.messages import unpack


def delivery(one: Delivery, ahead: int) -> bytes:
    """A message in a consumer's hands; the wall clock is ``ahead`` of store time."""
    message = one.message
    lease = {
        "leaseId": one.lease_id,
        "leaseUntil": iso(message.due_at + ahead),
        "consumerId": message.consumer,
        "attempt": message.attempt,
    }
    return b'{"lease":%s,"message":%s}' % (dumps(lease), as_json(one.envelope))


def looks(page: Any) -> tuple[list[Look], str]:
    """What a named method found, and the cursor of what follows."""
    parts, cursor = unpack(page)
    return [Look(*one) for one in parts], cursor


def listing(queue: str, found: Iterable[Look], cursor: str) -> bytes:
    """A page of messages."""
    messages = b",".join(map(shown, found))
    end = dumps(cursor or None)
    return b'{"queue":%s,"messages":[%s],"cursor":%s}' % (dumps(queue), messages, end)


def shown(look: Look) -> bytes:
    """Where a message stands, why it failed last, and what was sent."""
    return _written(_card(look), look)


def story(look: Look) -> bytes:
    """The same, and what happened to it so far, as much as is remembered."""
    return _written({**_card(look), "history": _history(look)}, look)


def _written(card: dict[str, Any], look: Look) -> bytes:
    sent = b"null" if look.envelope is None else as_json(look.envelope)
    return b'%s,"message":%s}' % (dumps(card)[:-1], sent)


def _card(look: Look) -> dict[str, Any]:
    message, sent = look.message, look.envelope
    return look.card() | {
        "leases": message.leases,
        "publishedAt": None if sent is None else iso(sent.published_at),
        "availableAt": None if sent is None else iso(sent.available_at),
        "expiresAt": iso(message.expires_at) if message.expires_at else None,
        "bytes": None if sent is None else len(sent.payload),
        "dlqQueue": look.rules.dlq.queue,
        "failure": None if look.failure is None else failure_document(look.failure),
    }


def _history(look: Look) -> list[dict[str, Any]]:
    """In order of time. A store remembers the first step, the latest failure and the latest change."""
    message, sent = look.message, look.envelope
    steps: list[dict[str, Any]] = []
    if sent is not None:
        steps.append({"at": iso(sent.published_at), "what": "published"})
        if sent.available_at > sent.published_at:
            steps.append({"at": iso(sent.available_at), "what": "available"})
    if look.failure is not None:
        failed = failure_document(look.failure)
        steps.append({"at": failed.pop("failedAt"), "what": "failed", **failed})
    now = {"at": iso(message.changed_at), "what": message.state.value, "attempt": message.attempt}
    if message.consumer:
        now["consumerId"] = message.consumer
    steps.append(now)
    return sorted(steps, key=lambda step: str(step["at"]))
