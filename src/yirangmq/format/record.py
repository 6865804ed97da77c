"""A topic's record as a JSON document, as every surface shows it. Knows: values and text. Does not know: frames."""

import base64
from datetime import UTC, datetime

from yirangmq.core.errors import BadInput
from yirangmq.core.topics import Record
from yirangmq.format.jsontext import dumps, loads

NS = 1_000_000_000


def as_json(record: Record) -> bytes:
    """One line. The payload's own text if it is JSON, Base64 if it is not."""
    head = {
        "sequence": record.sequence,
        "topic": record.topic,
        "topicSequence": record.topic_sequence,
        "at": instant(record.at_ns),
        "atNs": record.at_ns,
        "key": record.key,
        "headers": dict(record.headers),
    }
    begin = dumps(head)[:-1]
    if is_json(record.payload):
        return b'%s,"payload":%s}' % (begin, record.payload)
    return b'%s,"payloadBase64":"%s"}' % (begin, base64.b64encode(record.payload))


def is_json(payload: bytes) -> bool:
    try:
        loads(payload)
    except BadInput:
        return False
    return True


def instant(at_ns: int) -> str:
    """ISO 8601 in UTC, to the nanosecond; a number of nanoseconds past the year 9999 stays a number."""
    seconds, rest = divmod(at_ns, NS)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}+00:00"
    except (OverflowError, ValueError):
        return str(at_ns)
