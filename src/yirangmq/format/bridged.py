"""A record of a topic as a message of a queue. The payload's bytes are the record's; what else it had stands in the
envelope.

Knows: the forms of both. Does not know: logs, stores, bridges' cursors."""

from typing import Any

from yirangmq.core.bridges import group_of, message_id
from yirangmq.core.errors import BadInput
from yirangmq.core.message import RANK_LAST, Envelope
from yirangmq.core.topics import Record
from yirangmq.core.validation import line_of
from yirangmq.format.envelope import iso
from yirangmq.format.jsontext import dumps, loads

SPACE = b" \t\r\n"
MILLISECOND = 1_000_000


def envelope_of(record: Record, queue: str, epoch: str, now: int, *, groups: bool) -> Envelope:
    """``groups``: its key becomes the group."""
    attributes: dict[str, Any] = {
        "topic": record.topic,
        "sequence": record.sequence,
        "topicSequence": record.topic_sequence,
    }
    if record.key is not None:
        attributes["key"] = record.key
    if record.headers:
        attributes["headers"] = dict(record.headers)
    header: dict[str, Any] = {"timestamp": iso(record.at_ns // MILLISECOND), "attributes": attributes}
    group = group_of(record.key) if groups else None
    if group is not None:
        header["groupId"] = group
    return Envelope(
        queue,
        message_id(epoch, record.sequence),
        RANK_LAST,
        now,
        now,
        0,
        None,
        dumps(header).decode(),
        record.payload,
        _is_json(record.payload),
        line_of(group or ""),
    )


def _is_json(payload: bytes) -> bool:
    """JSON text without space around it, which a store of JSON files would not keep."""
    if not payload or payload[0] in SPACE or payload[-1] in SPACE:
        return False
    try:
        loads(payload)
    except BadInput:
        return False
    return True
