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
from yirangmq.core.topics import MOST_SEQUENCE, Cursor, Log, Piece
from yirangmq.format.envelope import iso
from yirangmq.fsio.background import Aside, Call, Done
from yirangmq.observe.logs import log as journal
from yirangmq.observe.logs import values
from yirangmq.protocols.http.types import Outlet, Response
from yirangmq.protocols.http.v1.endpoint import Ask, Endpoint, Field, text, whole
from yirangmq.protocols.http.v1.schemas import COUNT, FLAG, items, ref, thing
from yirangmq.topics.cursors import check_epoch
from yirangmq.topics.publisher import Publisher

# -- stream of record frames -------------------------------------------------------------------------------------------

READ_BYTES = 1 << 20
"""Bytes per read of a stream."""
PIECE_BYTES = 16 << 20
"""Bytes of a file range between two lookups of the next range."""
THREADS = 4
"""Reader threads of all streams together."""


class Readers:
    """Pool of reader threads, shared by all streams."""

    def __init__(self, call: Call) -> None:
        self._aside = Aside(call, partial(ThreadPoolExecutor, THREADS, "frames"))
        self.run = self._aside.run

    def stop(self) -> None:
        self._aside.stop()


class Frames:
    """Body stream of the record frames of a range (``protocols.http.types.Stream``).

    Read-ahead: while the client receives one block, a reader thread reads the next. Loop thread only, except for
    ``_read``; a stream has at most one read in progress."""

    def __init__(self, log: Log, start: int, stop: int, readers: Readers) -> None:
        self._reader = log.reader()
        self._readers = readers
        self._start = start
        self._stop = stop
        self._pieces: Iterator[Piece] | None = None
        self._piece: Piece | None = None
        self._at = 0
        self._outlet: Outlet | None = None
        self._ahead: bytes | None = None
        """Block that is read and not written yet; None: no block, b"": end of the range."""
        self._error: QueueError | None = None
        self._is_reading = False
        self._is_clogged = False
        self._is_gone = False

    def open(self, done: Done) -> None:
        """Read the first block; call ``done`` when it is available, or with the error."""

        def told(data: bytes | None, error: QueueError | None) -> None:
            self._is_reading = False
            self._ahead, self._error = data, error
            if error is not None or self._is_gone:
                self._close()
            done(None, error)

        self._is_reading = True
        self._readers.run(self._read, told)

    # -- protocols.http.types.Stream -----------------------------------------------------------------------------------

    def start(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._go_on()

    def drained(self) -> None:
        self._is_clogged = False
        self._go_on()

    def gone(self) -> None:
        self._is_gone = True
        self._outlet = None
        if not self._is_reading:
            self._close()

    # -- on the loop's thread -----------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Write the block that is available and start reading the next one."""
        outlet, data = self._outlet, self._ahead
        if outlet is None or self._is_clogged or (data is None and self._error is None):
            return
        if data is None:
            self._fail(outlet)
        elif not data:
            self._outlet = None
            self._close()
            outlet.end()
        else:
            self._ahead = None
            self._ask()
            self._is_clogged = not outlet.write(data)

    def _ask(self) -> None:
        self._is_reading = True
        self._readers.run(self._read, self._told)

    def _told(self, data: bytes | None, error: QueueError | None) -> None:
        self._is_reading = False
        self._ahead, self._error = data, error
        if self._is_gone:
            self._close()
        else:
            self._go_on()

    def _fail(self, outlet: Outlet) -> None:
        journal.warning("records_read_failed", extra=values(error=str(self._error)))
        self._outlet = None
        self._close()
        outlet.fail()

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
MOST_PLACES = 10_000
LATEST_MS = MOST_SEQUENCE // 1_000_000


def topics_of(ask: Ask) -> Publisher:
    if ask.house.topics is None:
        raise NotFound("this server has no topics", field="path")
    return ask.house.topics


def log_of(ask: Ask, epoch: str = "") -> Log:
    """Return the topic log, opened if necessary. Raise ``WrongEpoch`` if ``epoch`` is given and differs."""
    log = topics_of(ask).opened().feed.log
    check_epoch(log, epoch, "what you know")
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


def run_in_background(ask: Ask, work: Callable[[], Any], reply: Callable[[Any], None]) -> None:
    topics_of(ask).aside.run(work, ask.told(reply))


# -- the log ----------------------------------------------------------------------------------------------------------


def show_log(ask: Ask) -> None:
    log = log_of(ask)
    about = {"epoch": log.epoch, "first": log.first, "last": log.last}
    topics = topics_of(ask)
    ask.reply({**about, "state": str(topics.state or ""), "gaps": [list(gap) for gap in log.gaps()]})


def find_sequence(ask: Ask) -> None:
    at_ns = ask.query()["atMs"] * 1_000_000
    log = log_of(ask)

    def work() -> int:
        with closing(log.reader()) as reader:
            return max(reader.sequence_at(at_ns), reader.first)

    run_in_background(ask, work, lambda sequence: ask.reply({"sequence": sequence}))


def list_places(ask: Ask) -> None:
    query = ask.query()
    log = log_of(ask, query.get("epoch", ""))
    start, stop = _span(log, query)

    def work() -> list[list[int]]:
        with closing(log.reader()) as reader:
            return [list(place) for place in reader.places(start, stop, MOST_PLACES)]

    run_in_background(ask, work, lambda places: ask.reply({"places": places}))


class LogRoutes:
    """Endpoints of the log, including the stream of record frames. Call ``stop`` when the server stops."""

    def __init__(self) -> None:
        self._readers: Readers | None = None

    def frames(self, ask: Ask) -> None:
        query = ask.query()
        log = log_of(ask, query.get("epoch", ""))
        start, stop = _span(log, query)
        if self._readers is None:
            self._readers = Readers(topics_of(ask).opened().feed.loop.call)
        headers = (("content-type", TYPE), ("cache-control", "no-store"))
        stream = Frames(log, start, stop, self._readers)
        stream.open(ask.told(lambda _: ask.exchange.answer(Response(200, b"", headers, stream))))

    def stop(self) -> None:
        if self._readers is not None:
            self._readers.stop()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/log", "The log that all topics lie in: its epoch, its first and its last sequence",
                     show_log, "topics", "follow", ref("Log"), refusals=REFUSALS),
            Endpoint("GET", "/v1/log/sequence", "The first sequence from a time on; one past the last if there is none",
                     find_sequence, "topics", "follow", thing(sequence=COUNT), query=(AT,), refusals=REFUSALS),
            Endpoint("GET", "/v1/log/places", "Where a range could be cut into parts of about the same size",
                     list_places, "topics", "follow", thing(places=items(PLACE)), query=RANGE,
                     refusals=(*REFUSALS, "retired", "wrong_epoch")),
            Endpoint("GET", "/v1/log/frames", "The records of a range as they lie in the log, one after the other",
                     self.frames, "topics", "follow", {"type": "string", "format": "binary"}, query=RANGE,
                     refusals=(*REFUSALS, "retired", "wrong_epoch"), media=TYPE),
            *CURSORS,
        )  # fmt: skip


def _span(log: Log, query: dict[str, Any]) -> tuple[int, int]:
    """Convert (after, last] to [start, stop) and check it against the log."""
    after, last = query["after"], query.get("last", log.last)
    if last > log.last:
        raise BadInput(f"must be at most {log.last}, where the log ends, not {last}", field="last")
    if after > last:
        raise BadInput(f"must be at most {last}, as last is, not {after}", field="after")
    return after + 1, last + 1


# -- cursors ----------------------------------------------------------------------------------------------------------


def list_cursors(ask: Ask) -> None:
    topics = topics_of(ask)
    found = topics.opened().ledger.all() if topics.is_open else ()
    ask.reply({"cursors": [_shown(cursor) for cursor in found]})


def show_cursor(ask: Ask) -> None:
    topics = topics_of(ask)
    cursor = topics.opened().ledger.get(ask.path["name"]) if topics.is_open else None
    if cursor is None:
        raise NotFound(f"there is no durable subscriber {ask.path['name']!r}", field="name")
    ask.reply(_shown(cursor))


def put_cursor(ask: Ask) -> None:
    """Write the cursor of a durable subscriber. Records up to the sequence are confirmed; retention keeps later ones.

    The cursor may also move back."""
    values = ask.values()
    name, sequence = values["name"], values["sequence"]
    log = log_of(ask, values.get("epoch", ""))
    parts = topics_of(ask).opened()
    if any(one.name == name for one in parts.follows.subscribers.values()):
        raise WrongState(f"{name!r} is connected, and confirms by itself", field="name")
    if sequence > log.last:
        raise BadInput(f"must be at most {log.last}, where the log ends, not {sequence}", field="sequence")
    parts.follows.check_kept(sequence + 1)
    cursor = Cursor(name, log.epoch, sequence, values["filter"], parts.feed.loop.now_ns())
    told = ask.told(lambda _: ask.reply(_shown(cursor)))
    parts.ledger.put(cursor, lambda error: told(None, error))


def drop_cursor(ask: Ask) -> None:
    ask.call("topic_cursor_drop", {"name": ask.path["name"]}, lambda was: ask.reply({"dropped": was}))


def _shown(cursor: Cursor) -> dict[str, Any]:
    return {
        "name": cursor.name,
        "epoch": cursor.epoch,
        "sequence": cursor.sequence,
        "filter": cursor.filter,
        "at": iso(cursor.at_ns // 1_000_000),
    }


# -- declarations -----------------------------------------------------------------------------------------------------

SEQUENCE = whole(0, MOST_SEQUENCE)
EPOCH = Field("epoch", text(64), "refuse a log of another epoch")
RANGE = (
    Field("after", SEQUENCE, "the sequence before the first that is wanted", needed=True),
    Field("last", SEQUENCE, "the last one; the log's if not said"),
    EPOCH,
)
AT = Field("atMs", whole(0, LATEST_MS), "milliseconds since 1970", needed=True)
PLACE = {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}
REFUSALS = ("not_found", "store_error", "store_damaged")
CURSOR_BODY = (
    Field("sequence", SEQUENCE, "everything up to it is done with", needed=True),
    Field("epoch", text(64), "the epoch that the sequence belongs to"),
    Field("filter", text(10_000), "what is followed, in your own words", "*"),
)
ONE_CURSOR = "/v1/cursors/{name}"
CURSORS = (
    Endpoint("GET", "/v1/cursors", "Every durable subscriber's cursor", list_cursors, "topics", "follow",
             thing(cursors=items(ref("Cursor"))), refusals=("not_found",)),
    Endpoint("GET", ONE_CURSOR, "How far a durable subscriber has come", show_cursor, "topics", "follow", ref("Cursor"),
             refusals=("not_found",)),
    Endpoint("PUT", ONE_CURSOR, "Say how far a durable subscriber has come; it is on disk when this answers",
             put_cursor, "topics", "consume", ref("Cursor"), body=CURSOR_BODY,
             refusals=(*REFUSALS, "retired", "wrong_epoch", "wrong_state")),
    Endpoint("DELETE", ONE_CURSOR, "Forget a durable subscriber; the log is held back by it no longer", drop_cursor,
             "topics", "consume", thing(dropped=FLAG), refusals=REFUSALS),
)  # fmt: skip
