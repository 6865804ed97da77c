"""Topic operations of the client: publish, subscribe, read by range, and administration, as coroutines.

Records are checked here by the rules of the server before they are sent. A frame is stored as a whole or not at all.
A record has no id, so one that was sent again may be in the log twice; its receipt says ``resent``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from yirangmq.client.admin_calls import Caller
from yirangmq.client.connection import Courier, Errand
from yirangmq.client.cursors import AtServer, CursorFile, InFile, Keeping, Nowhere
from yirangmq.client.producer import Shipment
from yirangmq.client.topic_connection import Confirming, Terms
from yirangmq.client.topic_subscription import FOREVER, AsyncTopicSubscription
from yirangmq.client.values import Event, Receipt, TopicRecord, new_topic_record
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.topic_filter import make_filter
from yirangmq.core.topics import MOST_SEQUENCE, NO_HEADERS, NewRecord, Start, check_subscriber, check_topic
from yirangmq.format.json_codec import dumps
from yirangmq.wire import messages
from yirangmq.wire.frames import Kind
from yirangmq.wire.records import check_record

# -- frames and receipts -----------------------------------------------------------------------------------------------

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


# -- operations --------------------------------------------------------------------------------------------------------

SECOND_NS = 1_000_000_000
RECONNECT = 3.0
"""Seconds before a subscription that lost its connection tries to come again, more or less by half."""


class Page(NamedTuple):
    """Records by range. ``next`` is where the next page begins; ``first`` and ``last`` are what the log holds."""

    epoch: str
    first: int
    last: int
    next: int
    records: list[TopicRecord]


class AsyncTopics:
    """The topics of a server."""

    def __init__(self, courier: Courier, caller: Caller) -> None:
        self._courier = courier
        self._caller = caller
        self._subscriptions: set[AsyncTopicSubscription] = set()

    # -- publishing -------------------------------------------------------------------------------------------------

    async def publish(
        self, topic: str, payload: object, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Receipt:
        """One record: bytes as they are, any other payload as JSON. It is on disk when this returns."""
        body = messages.TopicPublish([messages.TopicRecord(*_plain(new_record(topic, payload, key, headers)))])
        errand = await self._courier.see_through(Errand(Kind.TOPIC_PUBLISH, body), self._courier.terms.timeout)
        return _receipts(body, errand)[0]

    async def publish_many(self, records: Iterable[NewRecord | tuple[Any, ...]]) -> list[Receipt]:
        """Each ``(topic, payload)``, with a key and headers if need be; several frames are on their way at once, and
        each is stored whole or not at all. If the server refuses one, nothing after it is sent; the error's
        ``receipts`` tell what was stored."""
        made: Iterable[NewRecord] = each_new(records)
        if isinstance(records, list | tuple):
            made = list(made)
        await self._courier.line()
        shipment = Shipment(self._courier, Kind.TOPIC_PUBLISH, _receipts, lambda body: len(body.records))
        return await shipment.send(in_frames(made, self._courier.welcome.max_frame))

    # -- subscribing ---------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: str | Sequence[str] = (),
        *,
        mask: int = 0,
        name: str = "",
        start: str = "new",
        sequence: int | None = None,
        time: datetime | float | None = None,
        epoch: str = "",
        resume: bool = True,
        cursor_file: str | Path | None = None,
        confirm: Confirming = "after",
        reconnect: float = RECONNECT,
        new_epoch: str = "raise",
        idle: float | None = None,
        on_event: Callable[[Event], None] | None = None,
        progress: float = 1.0,
    ) -> AsyncTopicSubscription:
        """Follow topics by names, patterns or a mask; all of them if none is named.

        It begins with what is published from now on (``start="new"``), with the first that is kept
        (``"beginning"``), at a ``sequence`` or at a ``time``. With a ``name`` it is durable: the server keeps how far
        it has come, and it goes on there, unless ``resume`` is false. With a ``cursor_file`` it keeps that itself.
        ``confirm``: ``"after"`` a record is done with, ``"before"`` it is handed out, or ``"manual"``.
        ``new_epoch``: what to do where the feed began anew, ``"raise"`` or ``"follow"`` from its beginning.
        ``on_event`` hears of states, gaps and epochs; ``reconnect`` and ``idle`` are seconds."""
        where = _where(start, sequence, time)
        file = None if cursor_file is None else CursorFile(cursor_file)
        if file is not None and name:
            raise BadInput("stands beside name; one of them keeps the cursor", field="cursor_file")
        place = file.read() if file is not None and resume else None
        if place is not None:
            where, epoch = (Start.SEQUENCE, place.sequence + 1), place.epoch
        wanted = (topics,) if isinstance(topics, str) else tuple(topics)
        make_filter(wanted, mask)
        terms = Terms(
            wanted,
            mask,
            check_subscriber(name) if name else "",
            *where,
            epoch,
            resume,
            _one_of(confirm, "confirm", "after", "before", "manual"),
            validation.check_milliseconds(reconnect, "reconnect") / 1000,
            _one_of(new_epoch, "new_epoch", "raise", "follow") == "follow",
            FOREVER if idle is None else validation.check_milliseconds(idle, "idle") / 1000,
            validation.check_milliseconds(progress, "progress") / 1000,
        )
        keeping: Keeping = AtServer() if name else InFile(file) if file is not None else Nowhere()
        made = AsyncTopicSubscription(
            self._courier.own(0),
            terms,
            keeping,
            on_event or _nobody,
            self._subscriptions.discard,
            self._courier.terms.retries,
        )
        self._subscriptions.add(made)
        return made

    # -- reading and administration ------------------------------------------------------------------------------------

    async def list(self) -> dict[str, Any]:
        """The state of the feed, its epoch, its first and last sequence, its gaps, and ``topics``: a row for each."""
        return dict(await self._caller.call("topics"))

    async def show(self, topic: str) -> dict[str, Any]:
        """One topic's row."""
        check_topic(topic)
        for row in (await self.list())["topics"]:
            if row["topic"] == topic:
                return dict(row)
        raise NotFound(f"there is no topic {topic!r}", field="topic")

    async def read(
        self,
        topics: str | Sequence[str] = (),
        *,
        sequence: int | None = None,
        time: datetime | float | None = None,
        limit: int = 100,
    ) -> Page:
        """Records by range, without following: from a sequence, from a time, or from the first that is kept."""
        wanted = [topics] if isinstance(topics, str) else [*topics]
        make_filter(wanted)
        given: dict[str, Any] = {"topics": wanted, "limit": limit}
        if sequence is not None:
            given["start"] = sequence
        elif time is not None:
            given["at_ns"] = _nanoseconds(time)
        page = await self._caller.call("topic_read", **given)
        records = [new_topic_record(tuple(one)) for one in page["records"]]
        return Page(page["epoch"], page["first"], page["last"], page["next"], records)

    async def subscribers(self) -> Sequence[dict[str, Any]]:
        """Everybody who follows, and every durable subscriber that does not: state, sequence, lag …"""
        return [dict(row) for row in await self._caller.call("topic_subscribers")]

    async def drop_subscriber(self, name: str) -> None:
        """Forget a durable subscriber that is not connected; the log is held back by it no longer."""
        await self._caller.call("topic_cursor_drop", name=check_subscriber(name))

    async def trim(self, before: int, *, dry_run: bool = False) -> dict[str, Any]:
        """Give up every record before this sequence, as far as whole segments go; or say what would go."""
        return dict(await self._caller.call("topic_trim", before=before, dry_run=dry_run))

    async def tune(
        self, *, recovery_workers: int | None = None, buffer_bytes: int | None = None, lag_limit: int | None = None
    ) -> dict[str, int]:
        """Change numbers of the running server until it stops; those in force. Nothing given: only look."""
        given = {"recovery_workers": recovery_workers, "buffer_bytes": buffer_bytes, "lag_limit": lag_limit}
        changed = {name: value for name, value in given.items() if value is not None}
        return dict(await self._caller.call("topic_tune", **changed))

    async def close(self) -> None:
        """All subscriptions."""
        for subscription in [*self._subscriptions]:
            await subscription.close()


def _receipts(body: messages.TopicPublish, errand: Errand) -> list[Receipt]:
    return receipts(body, errand.value(Kind.TOPIC_STORED), resent=errand.resent)


def _plain(record: NewRecord) -> tuple[str, bytes, str | None, dict[str, str]]:
    return record.topic, record.payload, record.key, dict(record.headers)


def _where(start: str, sequence: int | None, time: datetime | float | None) -> tuple[Start, int]:
    if sequence is not None and time is not None:
        raise BadInput("stands beside sequence; give one of them", field="time")
    if sequence is not None:
        return Start.SEQUENCE, validation.check_count(sequence, "sequence", least=1, most=MOST_SEQUENCE)
    if time is not None:
        return Start.TIME, _nanoseconds(time)
    if start not in (Start.NEW, Start.BEGINNING):
        raise BadInput(f"must be 'new' or 'beginning', not {start!r}; or give a sequence or a time", field="start")
    return Start(start), 0


def _nanoseconds(time: datetime | float) -> int:
    """Since 1970. (A datetime without a zone is of this machine's.)"""
    seconds: Any = time.timestamp() if isinstance(time, datetime) else time
    if type(seconds) not in (int, float) or not 0 <= seconds * SECOND_NS <= MOST_SEQUENCE:
        raise BadInput(f"must be a datetime or seconds since 1970, not {time!r}", field="time")
    return int(round(seconds * 1_000_000) * 1000)


def _one_of(value: Any, field: str, *allowed: str) -> Any:
    if value not in allowed:
        raise BadInput(f"must be one of {', '.join(allowed)}, not {value!r}", field=field)
    return value


def _nobody(event: Event) -> None:
    """Who wants to know sets ``on_event``."""
