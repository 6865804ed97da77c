"""Records as this API shows them: a payload that is JSON stands in them untouched, any other as base64."""

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from yirangmq.core.errors import BadInput
from yirangmq.format.json_codec import dumps, loads

SECOND = 1_000_000_000


def shown_record(record: Sequence[Any]) -> bytes:
    """One record, its members in the order of ``core.topics.Record``."""
    sequence, topic_sequence, at_ns, topic, key, headers, payload = record
    about = {
        "sequence": sequence,
        "topicSequence": topic_sequence,
        "at": iso_ns(at_ns),
        "topic": topic,
        "key": key,
        "headers": dict(headers),
    }
    return b"%s,%s}" % (dumps(about)[:-1], _payload(payload))


def _payload(payload: bytes) -> bytes:
    try:
        loads(payload)
    except BadInput:
        return b'"payloadBase64":"%s"' % base64.b64encode(payload)
    return b'"payload":%s' % payload


def on_one_line(text: bytes) -> bytes:
    """The same JSON: a line's end in it can only stand between values."""
    return text.replace(b"\r", b" ").replace(b"\n", b" ")


def iso_ns(at_ns: int) -> str:
    """To the nanosecond."""
    seconds, rest = divmod(at_ns, SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}+00:00"
