"""The dead-letter record, exactly as published: the original, why it failed, where it came from and went."""

from typing import Any

from yirangmq.core.message import Envelope, Failure, Message
from yirangmq.core.policy import QueuePolicy
from yirangmq.format.envelope import as_json, iso
from yirangmq.format.jsontext import dumps


def failure_document(failure: Failure) -> dict[str, Any]:
    """Why, when, at which attempt and by whom: the same at every surface."""
    return {
        "reasonCode": failure.reason_code,
        "reasonMessage": failure.reason_message,
        "failedAt": iso(failure.failed_at),
        "attempt": failure.attempt,
        "consumerId": failure.consumer or None,
    }


def dead_letter_record(message: Message, envelope: Envelope, failure: Failure, policy: QueuePolicy) -> bytes:
    """``originalMessage`` holds the envelope with the payload's own text."""
    why = failure_document(failure) | ({"reasonCode": message.reason} if message.reason else {})
    routing = {"sourceQueue": message.queue, "dlqQueue": policy.dlq.queue}
    return b'{"originalMessage":%s,"failure":%s,"routing":%s}' % (as_json(envelope), dumps(why), dumps(routing))
