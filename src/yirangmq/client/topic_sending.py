"""From what a program publishes to a topic to the frames that carry it, and their receipts. Sans-IO.

Everything is checked here, by the rules the server has, before it is sent."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from yirangmq.client.topic_values import Receipt
from yirangmq.core.errors import BadInput
from yirangmq.core.topics import NO_HEADERS, NewRecord
from yirangmq.format.json_codec import dumps
from yirangmq.wire import messages
from yirangmq.wire.records import check_record

FRAME_RECORDS = 256
FRAME_BYTES = 256 * 1024
"""A frame is full when it has as much of either."""
RECORD_BYTES = 64
"""What a record needs at most in a frame beside its parts."""


def new_record(
    topic: str, payload: object, key: str | None = None, headers: Mapping[str, str] | None = None
) -> NewRecord:
    """Bytes as they are; any other payload as JSON."""
    if not isinstance(payload, bytes):
        payload = _bytes(payload)
    record = NewRecord(topic, payload, key, NO_HEADERS if headers is None else headers)
    check_record(record)
    return record


def _bytes(payload: object) -> bytes:
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    try:
        return dumps(payload)
    except BadInput as error:
        raise BadInput(str(error), field="payload") from None


def each_new(records: Iterable[Any]) -> Iterator[NewRecord]:
    """Of ``NewRecord`` or tuples with its members: topic, payload, key, headers."""
    for number, one in enumerate(records):
        if not isinstance(one, tuple | list) or not 2 <= len(one) <= 4:
            raise BadInput("must be (topic, payload), and may have a key and headers", field=f"records[{number}]")
        yield new_record(*one)


def in_frames(records: Iterable[NewRecord], max_frame: int) -> Iterator[messages.TopicPublish]:
    """None is larger than the server takes, if it can be helped."""
    batch: list[messages.TopicRecord] = []
    size = 0
    for topic, payload, key, headers in records:
        weight = RECORD_BYTES + len(payload) + len(topic) + 4 * len(key or "") + _size(headers)
        if batch and (len(batch) == FRAME_RECORDS or size >= FRAME_BYTES or size + weight > max_frame - RECORD_BYTES):
            yield messages.TopicPublish(batch)
            batch, size = [], 0
        batch.append(messages.TopicRecord(topic, payload, key, dict(headers)))
        size += weight
    if batch:
        yield messages.TopicPublish(batch)


def _size(headers: Mapping[str, str]) -> int:
    return sum(4 * len(name) + 4 * len(value) + 10 for name, value in headers.items())


def receipts(sent: messages.TopicPublish, stored: messages.TopicStored, *, resent: bool) -> list[Receipt]:
    """Of each record of a frame: the log numbers them in a row, each topic in one of its own."""
    left = dict(stored.topics)
    made: list[Receipt] = []
    sequence = stored.last
    for record in reversed(sent.records):
        number = left[record.topic]
        left[record.topic] = number - 1
        made.append(Receipt(stored.epoch, sequence, number, stored.at_ns, resent))
        sequence -= 1
    made.reverse()
    return made
