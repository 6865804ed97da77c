"""Endpoints of the log of all topics: its range, record frames as a stream, and cursors of durable subscribers.

They are below ``/v1/log`` and ``/v1/cursors``, for pipelines and other bulk readers. Sequences are those of the log; a
range is (after, last]. Lookups that may wait for the disk run in the publisher's background thread.

Record frames of a range are one long body. Four reader threads serve all clients. Each stream reads ``READ_BYTES`` at
a time, one read ahead of its client. So the loop never waits for the disk, and at most two reads of a stream are in
memory."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

from yirangmq.core.errors import BadInput, NotFound, QueueError, Retired, StoreDamaged, WrongState
from yirangmq.core.topics import MAX_SEQUENCE, Cursor, FileRange, Log
from yirangmq.format.envelope import iso
from yirangmq.fsio.background import Call, Done, LoopExecutor
from yirangmq.observe.logs import log as journal
from yirangmq.observe.logs import values
from yirangmq.protocols.http.types import BodyWriter, Response
from yirangmq.protocols.http.v1.endpoint import BOOLEAN, Endpoint, EndpointCall, Field, text, whole
from yirangmq.protocols.http.v1.schemas import COUNT, FLAG, items, ref, struct
from yirangmq.topics.cursors import check_epoch
from yirangmq.topics.publisher import Publisher

# -- stream of record frames -------------------------------------------------------------------------------------------

READ_BYTES = 1 << 20
"""Bytes per read of a stream."""
PIECE_BYTES = 16 << 20
"""Bytes of a file range between two lookups of the next range."""
THREADS = 4
"""Reader threads of all streams together."""


class ReaderPool:
    """Pool of reader threads, shared by all streams."""

    def __init__(self, call: Call) -> None:
        self._background = LoopExecutor(call, partial(ThreadPoolExecutor, THREADS, "frames"))
        self.run = self._background.run

    def stop(self) -> None:
        self._background.stop()


class RecordFrameStream:
    """Body stream of the record frames of a range (``protocols.http.types.Stream``).

    Read-ahead: while the client receives one block, a reader thread reads the next. Loop thread only, except for
    ``_read``; a stream has at most one read in progress."""

    def __init__(self, log: Log, start: int, stop: int, readers: ReaderPool) -> None:
        self._reader = log.reader()
        self._readers = readers
        self._start = start
        self._stop = stop
        self._pieces: Iterator[FileRange] | None = None
        self._piece: FileRange | None = None
        self._at = 0
        self._writer: BodyWriter | None = None
        self._ahead: bytes | None = None
        """Block that is read and not written yet; None: no block, b"": end of the range."""
        self._error: QueueError | None = None
        self._is_reading = False
        self._is_write_paused = False
        self._is_disconnected = False

    def open(self, done: Done) -> None:
        """Read the first block; call ``done`` when it is available, or with the error."""

        def done_callback(data: bytes | None, error: QueueError | None) -> None:
            self._is_reading = False
            self._ahead, self._error = data, error
            if error is not None or self._is_disconnected:
                self._close()
            done(None, error)

        self._is_reading = True
        self._readers.run(self._read, done_callback)

    # -- protocols.http.types.Stream -----------------------------------------------------------------------------------

    def start(self, writer: BodyWriter) -> None:
        self._writer = writer
        self._write_next()

    def drained(self) -> None:
        self._is_write_paused = False
        self._write_next()

    def disconnected(self) -> None:
        self._is_disconnected = True
        self._writer = None
        if not self._is_reading:
            self._close()

    # -- on the loop's thread -----------------------------------------------------------------------------------------

    def _write_next(self) -> None:
        """Write the block that is available and start reading the next one."""
        writer, data = self._writer, self._ahead
        if writer is None or self._is_write_paused or (data is None and self._error is None):
            return
        if data is None:
            self._fail(writer)
        elif not data:
            self._writer = None
            self._close()
            writer.end()
        else:
            self._ahead = None
            self._read_next()
            self._is_write_paused = not writer.write(data)

    def _read_next(self) -> None:
        self._is_reading = True
        self._readers.run(self._read, self._on_read)

    def _on_read(self, data: bytes | None, error: QueueError | None) -> None:
        self._is_reading = False
        self._ahead, self._error = data, error
        if self._is_disconnected:
            self._close()
        else:
            self._write_next()

    def _fail(self, writer: BodyWriter) -> None:
        journal.warning("records_read_failed", extra=values(error=str(self._error)))
        self._writer = None
        self._close()
        writer.fail()

    def _close(self) -> None:
        pieces, self._pieces = self._pieces, None
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
        self._reader.close()

    # -- in a reader thread --------------------------------------------------------------------------------------------

    def _read(self) -> bytes:
        """Return the next block, or b"" at the end of the range. Runs on a reader thread."""
        if self._pieces is None:
            self._pieces = iter(self._reader.pieces(self._start, self._stop, size=PIECE_BYTES))
        piece = self._piece
        while piece is None or self._at >= piece.length:
            piece = self._piece = next(self._pieces, None)
            self._at = 0
            if piece is None:
                return b""
        data = os.pread(piece.file, min(READ_BYTES, piece.length - self._at), piece.offset + self._at)
        if not data:
            raise StoreDamaged(f"the log ends in the middle of records {piece.first} to {piece.last}")
        self._at += len(data)
        return data


# -- endpoints ---------------------------------------------------------------------------------------------------------

TYPE = "application/vnd.yirangmq.records"
MAX_SPLIT_POINTS = 10_000
LATEST_MS = MAX_SEQUENCE // 1_000_000


def topics_of(call: EndpointCall) -> Publisher:
    if call.context.topics is None:
        raise NotFound("this server has no topics", field="path")
    return call.context.topics


def log_of(call: EndpointCall, epoch: str = "") -> Log:
    """Return the topic log, opened if necessary. Raise ``WrongEpoch`` if ``epoch`` is given and differs."""
    log = topics_of(call).ensure_open().feed.log
    check_epoch(log, epoch, "your position")
    return log


def check_start(log: Log, start: int) -> int:
    """Return ``start`` if the log can deliver from there. One past the end is allowed: the next record.

    Raise ``Retired`` if retention has deleted the record."""
    if start > log.last + 1:
        raise BadInput(f"must be at most {log.last + 1}, one past the end of the log, not {start}", field="fromSeq")
    if start < log.first:
        text = f"sequence {start} is no longer kept; the log begins at {log.first}"
        raise Retired(text, field="fromSeq", asked=start, first=log.first)
    return start


def run_in_background(call: EndpointCall, work: Callable[[], Any], reply: Callable[[Any], None]) -> None:
    topics_of(call).executor.run(work, call.done_callback(reply))


# -- the log ----------------------------------------------------------------------------------------------------------


def show_log(call: EndpointCall) -> None:
    log = log_of(call)
    about = {"epoch": log.epoch, "first": log.first, "last": log.last}
    topics = topics_of(call)
    call.reply({**about, "state": str(topics.state or ""), "gaps": [list(gap) for gap in log.gaps()]})


def find_sequence(call: EndpointCall) -> None:
    at_ns = call.query()["atMs"] * 1_000_000
    log = log_of(call)

    def work() -> int:
        with closing(log.reader()) as reader:
            return max(reader.sequence_at(at_ns), reader.first)

    run_in_background(call, work, lambda sequence: call.reply({"sequence": sequence}))


def list_split_points(call: EndpointCall) -> None:
    query = call.query()
    log = log_of(call, query.get("epoch", ""))
    start, stop = _sequence_range(log, query)

    def work() -> list[list[int]]:
        with closing(log.reader()) as reader:
            return [list(place) for place in reader.places(start, stop, MAX_SPLIT_POINTS)]

    run_in_background(call, work, lambda places: call.reply({"places": places}))


class LogRoutes:
    """Endpoints of the log, including the stream of record frames. Call ``stop`` when the server stops."""

    def __init__(self) -> None:
        self._readers: ReaderPool | None = None

    def frames(self, call: EndpointCall) -> None:
        query = call.query()
        log = log_of(call, query.get("epoch", ""))
        start, stop = _sequence_range(log, query)
        if self._readers is None:
            self._readers = ReaderPool(topics_of(call).ensure_open().feed.loop.call)
        headers = (("content-type", TYPE), ("cache-control", "no-store"))
        stream = RecordFrameStream(log, start, stop, self._readers)
        stream.open(call.done_callback(lambda _: call.exchange.answer(Response(200, b"", headers, stream))))

    def stop(self) -> None:
        if self._readers is not None:
            self._readers.stop()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/log", "Show the log of the topics: its epoch, its first and its last sequence",
                     show_log, "topics", "follow", ref("Log"), refusals=REFUSALS),
            Endpoint("GET", "/v1/log/sequence",
                     "Get the first sequence from a time on; the last sequence + 1 if there is none",
                     find_sequence, "topics", "follow", struct(sequence=COUNT), query=(AT,), refusals=REFUSALS),
            Endpoint("GET", "/v1/log/places", "Get split points that divide a range into parts of about the same size",
                     list_split_points, "topics", "follow", struct(places=items(PLACE)), query=RANGE,
                     refusals=(*REFUSALS, "retired", "wrong_epoch")),
            Endpoint("GET", "/v1/log/frames", "Get the record frames of a range, as stored in the log",
                     self.frames, "topics", "follow", {"type": "string", "format": "binary"}, query=RANGE,
                     refusals=(*REFUSALS, "retired", "wrong_epoch"), media=TYPE),
            *CURSORS,
        )  # fmt: skip


def _sequence_range(log: Log, query: dict[str, Any]) -> tuple[int, int]:
    """Convert (after, last] to [start, stop) and check it against the log."""
    after, last = query["after"], query.get("last", log.last)
    if last > log.last:
        raise BadInput(f"must be at most {log.last}, where the log ends, not {last}", field="last")
    if after > last:
        raise BadInput(f"must be at most {last}, as last is, not {after}", field="after")
    return after + 1, last + 1


# -- cursors ----------------------------------------------------------------------------------------------------------


def list_cursors(call: EndpointCall) -> None:
    topics = topics_of(call)
    found = topics.ensure_open().cursor_committer.all() if topics.is_open else ()
    call.reply({"cursors": [_shown(cursor) for cursor in found]})


def show_cursor(call: EndpointCall) -> None:
    topics = topics_of(call)
    cursor = topics.ensure_open().cursor_committer.get(call.path["name"]) if topics.is_open else None
    if cursor is None:
        raise NotFound(f"there is no durable subscriber {call.path['name']!r}", field="name")
    call.reply(_shown(cursor))


def put_cursor(call: EndpointCall) -> None:
    """Write the cursor of a durable subscriber. Records up to the sequence are confirmed; retention keeps later ones.

    The cursor may also move back."""
    values = call.values()
    name, sequence = values["name"], values["sequence"]
    log = log_of(call, values.get("epoch", ""))
    parts = topics_of(call).ensure_open()
    if any(one.name == name for one in parts.lifecycle.subscribers.values()):
        raise WrongState(f"{name!r} is connected, and confirms by itself", field="name")
    if sequence > log.last:
        raise BadInput(f"must be at most {log.last}, where the log ends, not {sequence}", field="sequence")
    parts.lifecycle.check_kept(sequence + 1)
    cursor = Cursor(name, log.epoch, sequence, values["filter"], parts.feed.loop.now_ns())
    done_callback = call.done_callback(lambda _: call.reply(_shown(cursor)))
    parts.cursor_committer.put(cursor, lambda error: done_callback(None, error))


def drop_cursor(call: EndpointCall) -> None:
    values = call.values()
    call.call("topic_cursor_drop", values, lambda was: call.reply({"dropped": was, "dryRun": values["dry_run"]}))


def _shown(cursor: Cursor) -> dict[str, Any]:
    return {
        "name": cursor.name,
        "epoch": cursor.epoch,
        "sequence": cursor.sequence,
        "filter": cursor.filter,
        "at": iso(cursor.at_ns // 1_000_000),
    }


# -- declarations -----------------------------------------------------------------------------------------------------

SEQUENCE = whole(0, MAX_SEQUENCE)
EPOCH = Field("epoch", text(64), "expected epoch; another epoch of the log is an error")
RANGE = (
    Field("after", SEQUENCE, "sequence before the first record of the range", needed=True),
    Field("last", SEQUENCE, "sequence of the last record; default: the last one of the log"),
    EPOCH,
)
AT = Field("atMs", whole(0, LATEST_MS), "milliseconds since 1970", needed=True)
PLACE = {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}
REFUSALS = ("not_found", "store_error", "store_damaged")
CURSOR_BODY = (
    Field("sequence", SEQUENCE, "last sequence that was processed", needed=True),
    Field("epoch", text(64), "epoch of the sequence"),
    Field("filter", text(10_000), "description of what is followed, any text", "*"),
)
DRY_RUN = Field("dryRun", BOOLEAN, "report whether it could be deleted, without a change", False, key="dry_run")
ONE_CURSOR = "/v1/cursors/{name}"
CURSORS = (
    Endpoint("GET", "/v1/cursors", "List the cursors of durable subscribers", list_cursors, "topics", "follow",
             struct(cursors=items(ref("Cursor"))), refusals=("not_found",)),
    Endpoint("GET", ONE_CURSOR, "Show the cursor of a durable subscriber", show_cursor, "topics", "follow",
             ref("Cursor"),
             refusals=("not_found",)),
    Endpoint("PUT", ONE_CURSOR, "Set the cursor of a durable subscriber; the answer is sent when it is on disk",
             put_cursor, "topics", "consume", ref("Cursor"), body=CURSOR_BODY,
             refusals=(*REFUSALS, "retired", "wrong_epoch", "wrong_state")),
    Endpoint("DELETE", ONE_CURSOR, "Delete a durable subscriber; the log no longer retains records for it", drop_cursor,
             "topics", "consume", struct(dropped=FLAG, dryRun=FLAG), query=(DRY_RUN,), refusals=REFUSALS),
)  # fmt: skip
