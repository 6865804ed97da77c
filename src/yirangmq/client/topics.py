"""Topic operations of the client: publish, subscribe, read by range, and administration, as coroutines.

Records are checked here by the rules of the server before they are sent. A frame is stored as a whole or not at all.
A record has no id, so one that was sent again may be in the log twice; its receipt says ``resent``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from yirangmq.client.admin_calls import Caller
from yirangmq.client.connection import PendingRequest, ReconnectingConnection
from yirangmq.client.cursors import CursorFile, CursorKeeper, FileCursorKeeper, NoCursorKeeper, ServerCursorKeeper
from yirangmq.client.producer import FrameBatch
from yirangmq.client.topic_connection import ConfirmMode, TopicOptions
from yirangmq.client.topic_subscription import NO_TIMEOUT_SECONDS, AsyncTopicSubscription
from yirangmq.client.values import Event, Receipt, TopicRecord, new_topic_record
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.topic_filter import listed, make_filter
from yirangmq.core.topics import MAX_SEQUENCE, NO_HEADERS, NewRecord, Start, check_subscriber, check_topic
from yirangmq.format.json_codec import dumps
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind
from yirangmq.wire.records import check_record

# -- frames and receipts -----------------------------------------------------------------------------------------------

FRAME_RECORDS = 256
FRAME_BYTES = 256 * 1024
"""Limits of one frame: it is full when it reaches either."""
RECORD_BYTES = 64
"""Upper bound of a record's size in a frame besides its parts, in bytes."""


def new_record(
    topic: str, payload: object, key: str | None = None, headers: Mapping[str, str] | None = None
) -> NewRecord:
    """Build a record. Bytes are used as they are; any other payload is encoded as JSON."""
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
    """Convert ``NewRecord`` values or tuples with its members: topic, payload, key, headers."""
    for number, one in enumerate(records):
        if not isinstance(one, tuple | list) or not 2 <= len(one) <= 4:
            raise BadInput("must be (topic, payload), optionally with a key and headers", field=f"records[{number}]")
        yield new_record(*one)


def in_frames(records: Iterable[NewRecord], max_frame: int) -> Iterator[messages.TopicPublish]:
    """Divide records into TOPIC_PUBLISH frames. A frame exceeds ``max_frame`` only if one record alone does."""
    batch: list[messages.RecordBody] = []
    size = 0
    for topic, payload, key, headers in records:
        weight = RECORD_BYTES + len(payload) + len(topic) + 4 * len(key or "") + _size(headers)
        if batch and (len(batch) == FRAME_RECORDS or size >= FRAME_BYTES or size + weight > max_frame - RECORD_BYTES):
            yield messages.TopicPublish(batch)
            batch, size = [], 0
        batch.append(messages.RecordBody(topic, payload, key, dict(headers)))
        size += weight
    if batch:
        yield messages.TopicPublish(batch)


def _size(headers: Mapping[str, str]) -> int:
    return sum(4 * len(name) + 4 * len(value) + 10 for name, value in headers.items())


def receipts(sent: messages.TopicPublish, stored: messages.TopicStored, *, resent: bool) -> list[Receipt]:
    """Return the receipt of each record of a frame. The log numbers the records consecutively, and each topic does
    as well."""
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
"""Interval between reconnects of a topic subscription, in seconds, ±50 % jitter."""


class TopicPage(NamedTuple):
    """Records of a range. ``next`` is the start of the next page; ``first`` and ``last`` are the log's bounds."""

    epoch: str
    first: int
    last: int
    next: int
    records: list[TopicRecord]


class AsyncTopics:
    """Topics of a server, for asyncio."""

    def __init__(self, connection: ReconnectingConnection, caller: Caller) -> None:
        self._connection = connection
        self._caller = caller
        self._subscriptions: set[AsyncTopicSubscription] = set()

    # -- publishing -------------------------------------------------------------------------------------------------

    async def publish(
        self, topic: str, payload: object, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Receipt:
        """Publish one record. Bytes are sent as they are, any other payload as JSON. The record is durable when this
        returns."""
        body = messages.TopicPublish([messages.RecordBody(*_plain(new_record(topic, payload, key, headers)))])
        request = await self._connection.execute(
            PendingRequest(FrameKind.TOPIC_PUBLISH, body), self._connection.options.timeout
        )
        return _receipts(body, request)[0]

    async def publish_many(self, records: Iterable[NewRecord | tuple[Any, ...]]) -> list[Receipt]:
        """Publish records, each ``(topic, payload)`` with an optional key and headers, in frames with several in
        flight.

        Each frame is stored whole or not at all. If the server refuses a frame, no later frame is sent. The error's
        ``receipts`` say which records were stored."""
        made: Iterable[NewRecord] = each_new(records)
        if isinstance(records, list | tuple):
            made = list(made)
        await self._connection.transport()
        frame_batch = FrameBatch(self._connection, FrameKind.TOPIC_PUBLISH, _receipts, lambda body: len(body.records))
        return await frame_batch.send(in_frames(made, self._connection.welcome.max_frame))

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
        confirm: ConfirmMode = "after",
        reconnect: float = RECONNECT,
        new_epoch: str = "raise",
        idle: float | None = None,
        on_event: Callable[[Event], None] | None = None,
        progress: float = 1.0,
    ) -> AsyncTopicSubscription:
        """Subscribe to topics by names, patterns or a mask; to all topics if none is given.

        The subscription starts with new records (``start="new"``), with the first retained record (``"beginning"``),
        at a ``sequence`` or at a ``time``. With a ``name`` it is durable: the server stores its position, and it
        resumes there unless ``resume`` is false. With a ``cursor_file`` the client stores the position in that file.
        ``confirm``: ``"after"`` a record is processed, ``"before"`` it is returned, or ``"manual"``. ``new_epoch``
        is the reaction to a new epoch: ``"raise"``, or ``"follow"`` the new log from its beginning. ``on_event``
        receives state changes, gaps and epochs. ``reconnect`` and ``idle`` are in seconds."""
        where = _start_position(start, sequence, time)
        file = None if cursor_file is None else CursorFile(cursor_file)
        if file is not None and name:
            raise BadInput("is given together with name; only one of them may keep the cursor", field="cursor_file")
        position = file.read() if file is not None and resume else None
        if position is not None:
            where, epoch = (Start.SEQUENCE, position.sequence + 1), position.epoch
        wanted = listed(topics)
        make_filter(wanted, mask)
        options = TopicOptions(
            tuple(wanted),
            mask,
            check_subscriber(name) if name else "",
            *where,
            epoch,
            resume,
            _one_of(confirm, "confirm", "after", "before", "manual"),
            validation.check_milliseconds(reconnect, "reconnect") / 1000,
            _one_of(new_epoch, "new_epoch", "raise", "follow") == "follow",
            NO_TIMEOUT_SECONDS if idle is None else validation.check_milliseconds(idle, "idle") / 1000,
            validation.check_milliseconds(progress, "progress") / 1000,
        )
        cursor_keeper: CursorKeeper = (
            ServerCursorKeeper() if name else FileCursorKeeper(file) if file is not None else NoCursorKeeper()
        )
        made = AsyncTopicSubscription(
            self._connection.clone(0),
            options,
            cursor_keeper,
            on_event or _ignore_event,
            self._subscriptions.discard,
            self._connection.options.retries,
        )
        self._subscriptions.add(made)
        return made

    # -- reading and administration ------------------------------------------------------------------------------------

    async def list(self) -> dict[str, Any]:
        """Return the log's state, epoch, first and last sequence and gaps, and ``topics``, a row for each topic."""
        return dict(await self._caller.call("topics"))

    async def show(self, topic: str) -> dict[str, Any]:
        """Return the row of one topic."""
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
    ) -> TopicPage:
        """Read records of a range without a subscription: from a sequence, from a time, or from the first retained
        record."""
        wanted = listed(topics)
        make_filter(wanted)
        given: dict[str, Any] = {"topics": wanted, "limit": limit}
        if sequence is not None:
            given["start"] = sequence
        elif time is not None:
            given["at_ns"] = _nanoseconds(time)
        page = await self._caller.call("topic_read", **given)
        records = [new_topic_record(tuple(one)) for one in page["records"]]
        return TopicPage(page["epoch"], page["first"], page["last"], page["next"], records)

    async def subscribers(self) -> Sequence[dict[str, Any]]:
        """Return a row for each connected subscriber, and for each durable one that is not connected: state,
        sequence, lag …"""
        return [dict(row) for row in await self._caller.call("topic_subscribers")]

    async def drop_subscriber(self, name: str, *, dry_run: bool = False) -> None:
        """Forget a durable subscriber that is not connected. Its position no longer holds back retention.

        ``dry_run`` raises the same errors and changes nothing."""
        await self._caller.call("topic_cursor_drop", name=check_subscriber(name), dry_run=dry_run)

    async def trim(self, before: int, *, dry_run: bool = False) -> dict[str, Any]:
        """Delete all records before this sequence, in whole segments. ``dry_run`` only returns what would be
        deleted."""
        return dict(await self._caller.call("topic_trim", before=before, dry_run=dry_run))

    async def tune(
        self, *, recovery_workers: int | None = None, buffer_bytes: int | None = None, lag_limit: int | None = None
    ) -> dict[str, int]:
        """Change limits of the running server until it stops. Return the values in force. Without arguments nothing
        changes."""
        given = {"recovery_workers": recovery_workers, "buffer_bytes": buffer_bytes, "lag_limit": lag_limit}
        changed = {name: value for name, value in given.items() if value is not None}
        return dict(await self._caller.call("topic_tune", **changed))

    async def close(self) -> None:
        """Close all subscriptions."""
        for subscription in [*self._subscriptions]:
            await subscription.close()


def _receipts(body: messages.TopicPublish, request: PendingRequest) -> list[Receipt]:
    return receipts(body, request.value(FrameKind.TOPIC_STORED), resent=request.resent)


def _plain(record: NewRecord) -> tuple[str, bytes, str | None, dict[str, str]]:
    return record.topic, record.payload, record.key, dict(record.headers)


def _start_position(start: str, sequence: int | None, time: datetime | float | None) -> tuple[Start, int]:
    if sequence is not None and time is not None:
        raise BadInput("is given together with sequence; give only one", field="time")
    if sequence is not None:
        return Start.SEQUENCE, validation.check_count(sequence, "sequence", least=1, most=MAX_SEQUENCE)
    if time is not None:
        return Start.TIME, _nanoseconds(time)
    if start not in (Start.NEW, Start.BEGINNING):
        raise BadInput(f"must be 'new' or 'beginning', not {start!r}; or give a sequence or a time", field="start")
    return Start(start), 0


def _nanoseconds(time: datetime | float) -> int:
    """Return nanoseconds since 1970. A datetime without a time zone is in this machine's."""
    seconds: Any = time.timestamp() if isinstance(time, datetime) else time
    if type(seconds) not in (int, float) or not 0 <= seconds * SECOND_NS <= MAX_SEQUENCE:
        raise BadInput(f"must be a datetime or seconds since 1970, not {time!r}", field="time")
    return int(round(seconds * 1_000_000) * 1000)


def _one_of(value: Any, field: str, *allowed: str) -> Any:
    if value not in allowed:
        raise BadInput(f"must be one of {', '.join(allowed)}, not {value!r}", field=field)
    return value


def _ignore_event(event: Event) -> None:
    """Default of ``on_event``: ignore the event."""
