"""Rows of a sink batch: from records to envelopes, dead letters and topic records.

The record's topic is the target: ``queue:mail``, ``topic:trades`` or ``dlq:mail``. Its headers are the members of an
envelope; headers of other names are attributes. A row that is invalid becomes a dead letter with the reason if the
batch allows that; otherwise ``BadInput`` names the row. The same records give the same rows every time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from yirangmq.core import validation
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Ids
from yirangmq.core.topics import NewRecord, Record
from yirangmq.format.envelope import JSON_TYPE, NewMessage, build, is_plain_json, plain
from yirangmq.format.json_codec import loads

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
"""Header with a JSON object of attributes. Headers of other names are attributes too, each a string."""
REASON = "reason"
"""Header of a dead letter with the reason."""
TOPIC = b"topic:"
"""Prefix of the target of a row for a topic."""
IS_JSON = "isJson"
"""Header of a row for a queue. ``yes``: the payload is JSON. ``maybe``: it is JSON if it parses as such."""
MAX_REASON = 1000
IDS_AT_ONCE = 500
LARGE = 1 << 20
"""Payload bytes above which a record is checked, because it may be too large for the log."""
BAD = "bad row: "
"""Prefix of the reason of an invalid row."""


class Rows(NamedTuple):
    """Rows of a batch in order: envelopes and dead letters per queue, and records of topics."""

    queues: dict[str, list[Envelope]]
    dead: dict[str, list[tuple[Envelope, str]]]
    records: list[NewRecord]

    @property
    def queue_rows(self) -> int:
        return sum(len(found) for found in self.queues.values())

    @property
    def dead_rows(self) -> int:
        return sum(len(found) for found in self.dead.values())


class SinkRowConverter:
    """Converter of records to rows, part by part. The same records give the same rows every time.

    ``mark`` is a header added to each record of a topic. ``check`` raises if a record is invalid. With ``bad_queue``
    an invalid row becomes a dead letter of its target queue, or of ``bad_queue`` if the target has no valid name.
    Without ``bad_queue`` the row raises ``BadInput`` that names it."""

    def __init__(
        self, ids: Ids, now: int, mark: tuple[str, str], check: Callable[[NewRecord], None], bad_queue: str = ""
    ) -> None:
        self._ids = ids
        self._check = check
        self._now = now
        self._mark = mark
        self._bad_queue = bad_queue
        self._number = 0
        self._spare: list[str] = []
        self._places: dict[str, tuple[str, str]] = {}
        self._plain: Mapping[str, str] | None = None
        """Headers of the previous record of a topic. ``_marked`` has the same headers with the mark."""
        self._marked: dict[str, str] = {}

    def convert(self, records: Iterable[Record]) -> Rows:
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
                self._add_dead_letter(record, f"{BAD}{field}: {words}", rows)
        return rows

    def passed(self, count: int) -> None:
        """Advance the row number by ``count`` rows that were handled elsewhere."""
        self._number += count

    def _take(self, record: Record, rows: Rows) -> None:
        known = self._places.get(record.topic)
        if known is None:
            known = _split_target(record.topic)
        kind, place = known
        if kind == "topic":
            rows.records.append(self._record(place, record))
        elif kind == "queue":
            rows.queues.setdefault(place, []).append(self._envelope(place, record))
        else:
            why = record.headers.get(REASON, "")[:MAX_REASON] or "refused by a pipeline"
            rows.dead.setdefault(place, []).append((self._envelope(place, record), why))
        self._places[record.topic] = known

    def _record(self, topic: str, record: Record) -> NewRecord:
        """Build the record of a topic. Consecutive records with the same headers share them and are checked once."""
        is_same = record.headers is self._plain
        if not is_same:
            name, value = self._mark
            self._plain, self._marked = record.headers, {**record.headers, name: value}
        new = NewRecord(topic, record.payload, record.key, self._marked)
        if not is_same or len(record.payload) > LARGE or record.topic not in self._places:
            self._check(new)
        return new

    def _add_dead_letter(self, record: Record, why: str, rows: Rows) -> None:
        """Add the payload as a dead letter with a new id. The other members are dropped: any of them may be invalid."""
        place = record.topic.partition(":")[2]
        try:
            queue = validation.check_queue(place, "target")
        except BadInput:
            queue = self._bad_queue
        envelope = plain(queue, self._id(), record.payload, self._now)
        rows.dead.setdefault(queue, []).append((envelope, why[:MAX_REASON]))

    def _envelope(self, queue: str, record: Record) -> Envelope:
        json_flag = record.headers.get(IS_JSON, "")
        if record.key is None and json_flag != "yes" and len(record.headers) == (1 if json_flag else 0):
            is_json = json_flag == "maybe" and is_plain_json(record.payload)
            return plain(queue, self._id(), record.payload, self._now, is_json=is_json)
        return _envelope(queue, record, self._id(), self._now)

    def _id(self) -> str:
        if not self._spare:
            self._spare = self._ids.new(IDS_AT_ONCE)[::-1]
        return self._spare.pop()


def _split_target(target: str) -> tuple[str, str]:
    """Split a target into its kind (queue, topic or dlq) and the name."""
    kind, _, place = target.partition(":")
    if kind not in ("queue", "topic", "dlq"):
        raise BadInput(f"{target[:60]!r} is not queue:NAME, topic:NAME or dlq:NAME", field="target")
    return kind, validation.check_queue(place, "target")


def are_for_topics(targets: Iterable[bytes]) -> bool:
    """Return True if all targets are topics with valid names."""
    try:
        return all(_split_target(target.decode())[0] == "topic" for target in targets)
    except (BadInput, UnicodeDecodeError):
        return False


def dead_letter_oversized(rows: Rows, queue: str, largest: int) -> None:
    """Move messages that are too large for their queue to its dead letters, without truncating them."""
    why = f"{BAD}value: {{}} bytes, queue {queue!r} takes {largest}"
    large = [envelope for envelope in rows.queues[queue] if len(envelope.payload) > largest]
    if large:
        rows.queues[queue] = [envelope for envelope in rows.queues[queue] if len(envelope.payload) <= largest]
        rows.dead.setdefault(queue, []).extend((one, why.format(len(one.payload))) for one in large)


def dead_letter_rejected(rows: Rows, queue: str, complaints: Sequence[str]) -> None:
    """Move messages that the queue's processor rejects to its dead letters.

    ``complaints`` has the validation error of each row, "" if it is valid."""
    if any(complaints):
        judged = list(zip(rows.queues[queue], complaints, strict=True))
        rows.queues[queue] = [envelope for envelope, complaint in judged if not complaint]
        rows.dead.setdefault(queue, []).extend((one, f"{BAD}{complaint}") for one, complaint in judged if complaint)


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
