"""How a message looks: as a block of text for people, as one JSON document for programs."""

from typing import Any

from yirangmq.cli.table import safe
from yirangmq.core.message import RANK_LAST, Envelope
from yirangmq.format import delivery
from yirangmq.format.delivery import Delivery, Look
from yirangmq.format.envelope import as_json, header_of, iso
from yirangmq.format.json_codec import dumps

SHOWN_BYTES = 4096
"""Of a payload that is not text; all of it is in --json and --raw."""


def payload_text(envelope: Envelope) -> str:
    """The payload for a screen: text as it is but for control characters, other bytes by their beginning."""
    try:
        text = envelope.payload.decode()
    except UnicodeDecodeError:
        more = " …" if len(envelope.payload) > SHOWN_BYTES else ""
        return f"{len(envelope.payload)} bytes: {envelope.payload[:SHOWN_BYTES].hex(' ')}{more}"
    return safe(text, keep="\n\t")


def header_text(envelope: Envelope) -> str:
    """The members of the envelope in one line, those with a name of their own first."""
    header = header_of(envelope)
    del header["messageId"], header["queue"]
    parts = [f"{name}={_short(value)}" for name, value in header.items()]
    return safe("  ".join(parts))


def _short(value: object) -> str:
    return value if isinstance(value, str) else dumps(value).decode()


def delivery_block(delivery: Delivery) -> str:
    title = f"-- {delivery.id}  attempt {delivery.attempt}  lease {delivery.lease_id}"
    return f"{title}\n   {header_text(delivery.envelope)}\n{payload_text(delivery.envelope)}"


def look_line(look: Look) -> bytes:
    """Card, envelope and latest failure in one document; the payload's text is its own."""
    message = as_json(look.envelope) if look.envelope is not None else b"null"
    failure = dumps(delivery.failure_document(look.failure)) if look.failure is not None else b"null"
    return b'%s,"message":%s,"failure":%s}' % (dumps(look.card())[:-1], message, failure)


def letter_card(look: Look) -> dict[str, Any]:
    """A dead letter in a listing: where it came from, why it is here."""
    message, failure = look.message, look.failure
    return {
        "messageId": message.id,
        "sourceQueue": message.queue,
        "dlqQueue": look.rules.dlq.queue,
        "state": message.state.value,
        "reasonCode": message.reason or (failure.reason_code if failure else None),
        "reasonMessage": failure.reason_message if failure else None,
        "failedAt": iso(failure.failed_at if failure else message.changed_at),
        "attempt": message.attempt,
        "consumerId": (failure.consumer if failure else message.consumer) or None,
        "priority": None if message.rank == RANK_LAST else message.rank,
        "seq": message.seq,
    }


def letter_record(look: Look) -> bytes:
    """The dead-letter record as published; its card where the envelope or the failure is no longer there."""
    if look.envelope is None or look.failure is None:
        return dumps(letter_card(look))
    return delivery.dead_letter_record(look.message, look.envelope, look.failure, look.rules)
