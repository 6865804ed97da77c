"""A row of a batch: a record whose topic says where it goes (``queue:mail``, ``topic:trades``, ``dlq:mail``), and whose
headers are the members of an envelope. From rows to what the broker stores.

Knows: the forms of both. Does not know: stores, ledgers."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from yirangmq.core import names
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Ids
from yirangmq.core.topics import NewRecord, Record
from yirangmq.format.content import is_plain_json
from yirangmq.format.envelope import JSON_TYPE, NewMessage, build
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
IS_JSON = "isJson"
"""A header of a row for a queue: ``yes``, the payload is JSON; ``maybe``: it is if it can be read as such."""
MAX_REASON = 1000
LARGE = 1 << 20
"""A payload that may be too large for a record."""
BAD = "bad row: "
"""How the reason begins of a row that could not be taken as it was."""


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


class Sorter:
    """From records to rows, one lot after the other. ``mark`` is a header for each record that goes to a topic,
    ``check`` refuses what cannot be one. ``bad_queue``: a row that cannot be taken is buried, in the dead letters of
    its own queue or else in those of this one; without it ``BadInput`` names the row. The same records are sorted
    alike every time."""

    def __init__(
        self, ids: Ids, now: int, mark: tuple[str, str], check: Callable[[NewRecord], None], bad_queue: str = ""
    ) -> None:
        self._ids = ids
        self._check = check
        self._now = now
        self._mark = mark
        self._bad_queue = bad_queue
        self._number = 0
        self._topics: set[str] = set()

    def sort(self, records: Iterable[Record]) -> Rows:
        rows = Rows({}, {}, [])
        for record in records:
            number, self._number = self._number, self._number + 1
            try:
                self._take(record, rows)
            except QueueError as error:
                words = str(error).removeprefix(f"{error.field}: ")
                field = error.field or "value"
                if not self._bad_queue:
                    raise type(error)(words, field=f"rows[{number}].{field}") from None
                self._bury(record, f"{BAD}{field}: {words}", rows)
        return rows

    def _take(self, record: Record, rows: Rows) -> None:
        kind, _, place = record.topic.partition(":")
        if kind == "topic":
            name, value = self._mark
            new = NewRecord(place, record.payload, record.key, {**record.headers, name: value})
            if record.headers or place not in self._topics or len(record.payload) > LARGE:
                self._check(new)
                self._topics.add(place)
            rows.records.append(new)
        elif kind == "queue":
            queue = names.check_queue(place, "target")
            rows.queues.setdefault(queue, []).append(self._envelope(queue, record))
        elif kind == "dlq":
            queue = names.check_queue(place, "target")
            why = record.headers.get(REASON, "")[:MAX_REASON] or "refused by a pipeline"
            rows.dead.setdefault(queue, []).append((self._envelope(queue, record), why))
        else:
            raise BadInput(f"{record.topic[:60]!r} is not queue:NAME, topic:NAME or dlq:NAME", field="target")

    def _bury(self, record: Record, why: str, rows: Rows) -> None:
        """Its bytes, under a fresh id; whatever else it said may be what was wrong with it."""
        place = record.topic.partition(":")[2]
        try:
            queue = names.check_queue(place, "target")
        except BadInput:
            queue = self._bad_queue
        envelope = build(queue, NewMessage(payload=record.payload), self._ids.new(1)[0], self._now)
        rows.dead.setdefault(queue, []).append((envelope, why[:MAX_REASON]))

    def _envelope(self, queue: str, record: Record) -> Envelope:
        return _envelope(queue, record, self._ids.new(1)[0], self._now)


def set_aside(rows: Rows, queue: str, largest: int) -> None:
    """Those too large for their queue go to its dead letters, whole."""
    why = f"{BAD}value: {{}} bytes, queue {queue!r} takes {largest}"
    large = [envelope for envelope in rows.queues[queue] if len(envelope.payload) > largest]
    if large:
        rows.queues[queue] = [envelope for envelope in rows.queues[queue] if len(envelope.payload) <= largest]
        rows.dead.setdefault(queue, []).extend((one, why.format(len(one.payload))) for one in large)


def _envelope(queue: str, record: Record, id: str, now: int) -> Envelope:
    given: dict[str, Any] = {}
    attributes: dict[str, Any] = {} if record.key is None else {"key": record.key}
    for name, text in record.headers.items():
        if name in TEXTS:
            given[TEXTS[name]] = text
        elif name in NUMBERS:
            given[NUMBERS[name]] = _number(name, text)
        elif name == ATTRIBUTES:
            attributes |= _object(text)
        elif name == IS_JSON:
            if text == "yes" or (text == "maybe" and is_plain_json(record.payload)):
                given["content_type"] = JSON_TYPE
        elif name != REASON:
            attributes[name] = text
    return build(queue, NewMessage(payload=record.payload, attributes=attributes, **given), id, now)


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
