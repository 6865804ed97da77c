"""A row of a batch: a record whose topic says where it goes (``queue:mail``, ``topic:trades``, ``dlq:mail``), and whose
headers are the members of an envelope. From rows to what the broker stores.

Knows: the forms of both. Does not know: stores, ledgers."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from yirangmq.core import names
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Ids
from yirangmq.core.topics import NewRecord, Record, check_topic
from yirangmq.format.envelope import NewMessage, build
from yirangmq.format.jsontext import loads

TEXTS = {
    "messageId": "id",
    "type": "type",
    "traceId": "trace_id",
    "deduplicationKey": "deduplication_key",
    "timestamp": "timestamp",
    "contentType": "content_type",
    "groupId": "group",
    "targetConsumerId": "target",
}
NUMBERS = {"version": "version", "priority": "priority", "delaySec": "delay", "ttlSec": "ttl"}
ATTRIBUTES = "attributes"
"""A header with a JSON object; headers of other names are attributes too, each a text."""
REASON = "reason"
"""The header of a dead letter that says why."""
MAX_REASON = 1000


class Rows(NamedTuple):
    """What a batch brings, in its order."""

    queues: dict[str, list[Envelope]]
    dead: dict[str, list[tuple[Envelope, str]]]
    records: list[NewRecord]

    @property
    def queue_rows(self) -> int:
        return sum(len(found) for found in self.queues.values())

    @property
    def dead_rows(self) -> int:
        return sum(len(found) for found in self.dead.values())


def sort(records: Iterable[Record], ids: Ids, now: int, mark: tuple[str, str]) -> Rows:
    """``mark`` is a header for each record that goes to a topic. ``BadInput`` names the row."""
    rows = Rows({}, {}, [])
    name, value = mark
    for number, record in enumerate(records):
        try:
            kind, _, place = record.topic.partition(":")
            if kind == "topic":
                headers = {**record.headers, name: value}
                rows.records.append(NewRecord(check_topic(place, "target"), record.payload, record.key, headers))
            elif kind == "queue":
                queue = names.check_queue(place, "target")
                rows.queues.setdefault(queue, []).append(_envelope(queue, record, ids, now))
            elif kind == "dlq":
                queue = names.check_queue(place, "target")
                why = record.headers.get(REASON, "")[:MAX_REASON] or "refused by a pipeline"
                rows.dead.setdefault(queue, []).append((_envelope(queue, record, ids, now), why))
            else:
                raise BadInput(f"{record.topic[:60]!r} is not queue:NAME, topic:NAME or dlq:NAME", field="target")
        except QueueError as error:
            words = str(error).removeprefix(f"{error.field}: ")
            raise type(error)(words, field=f"rows[{number}].{error.field or 'value'}") from None
    return rows


def _envelope(queue: str, record: Record, ids: Ids, now: int) -> Envelope:
    given: dict[str, Any] = {}
    attributes: dict[str, Any] = {} if record.key is None else {"key": record.key}
    for name, text in record.headers.items():
        if name in TEXTS:
            given[TEXTS[name]] = text
        elif name in NUMBERS:
            given[NUMBERS[name]] = _number(name, text)
        elif name == ATTRIBUTES:
            attributes |= _object(text)
        elif name != REASON:
            attributes[name] = text
    return build(queue, NewMessage(payload=record.payload, attributes=attributes, **given), ids.new(1)[0], now)


def _number(name: str, text: str) -> float:
    try:
        value = loads(text.encode())
    except BadInput:
        value = None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"must be a number, not {text[:60]!r}", field=name)
    return value


def _object(text: str) -> dict[str, Any]:
    value = loads(text.encode())
    if not isinstance(value, dict):
        raise BadInput("must be a JSON object", field=ATTRIBUTES)
    return value
