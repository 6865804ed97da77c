"""Topics as a batch (a range of the log, once) and as a stream (the log as it grows).

Every record of a range is accounted for: it is returned, or reported as missing.

An offset of a stream is ``{"global_seq": last, "epoch": …, "after": begin}``. Everything up to ``last`` is planned, and
the micro-batch that it ends began after ``after``. Spark stores where a batch ends, but queries the begin of the very
first batch again after a restart, when "latest" may have moved. With ``after`` in the offset the first batch is
repeatable like every other.

A named query (``groupId``) holds a cursor at the broker: records that it has not committed are not retired."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from yirangmq.pipeline.source.errors import RecordsRetired, RequestRejected, SourceError, print_notice
from yirangmq.pipeline.source.frames import BulkChecksums, FrameColumns
from yirangmq.pipeline.source.http_client import broker_of, log_of
from yirangmq.pipeline.source.local_log import LogAccess, LogInfo
from yirangmq.pipeline.source.options import Options, arrow_schema, columns_of
from yirangmq.pipeline.source.planning import (
    LogRange,
    TopicSelection,
    check_kept,
    check_missing,
    ranges_of,
    resolve_end,
    resolve_start,
    topic_selection,
)

if TYPE_CHECKING:
    import pyarrow


# -- batch -------------------------------------------------------------------------------------------------------------

NEVER_NULL = frozenset({"topic", "partition", "offset", "global_seq", "timestamp", "value"})


class TopicRows:
    """Reader of a range as Arrow batches. Holds plain values only, so that it can be sent to a task."""

    def __init__(self, options: Options, selection: TopicSelection, columns: Mapping[str, str]) -> None:
        self._options = options
        self._choice = selection
        self._columns = dict(columns)
        self._verify = options.flag("verify")
        self._fail = options.flag("failOnDataLoss")

    def read(self, part: LogRange) -> Iterator["pyarrow.RecordBatch"]:
        """Yield the batches of the range. Every record is returned, or reported as missing."""
        log, constants = log_of(self._options), ConstantArrays()
        schema = arrow_schema(self._columns)
        after = part.after
        try:
            while after < part.last:
                try:
                    for found, last in self._frames(log, after, part):
                        after = last
                        batch = self._batch(found, schema, constants)
                        if batch is not None:
                            yield batch
                    check_missing(after + 1, part.last, fail=self._fail)
                    after = part.last
                except RecordsRetired as error:
                    after = min(check_kept(error.requested - 1, error.first, fail=self._fail), part.last)
        finally:
            log.close()

    def _frames(self, log: LogAccess, after: int, part: LogRange) -> Iterator[tuple[FrameColumns, int]]:
        """Yield the frames of the range in groups, each with its last sequence. Frames outside the range are skipped
        unchecked."""
        sums = BulkChecksums()
        for run in log.runs(after, part.last, part.hints if after == part.after else ()):
            found = FrameColumns(run)
            sequence = found.sequence
            steps = sequence[1:] - sequence[:-1]
            are_next = sequence[0] == after + 1 and sequence[-1] <= part.last and (steps == 1).all()
            if not are_next:
                found = found.select((sequence > after) & (sequence <= part.last))
            if len(found):
                if self._verify:
                    found.verify(sums)
                if not are_next:
                    self._report_missing([after, *found.sequence.tolist()])
                after = int(found.sequence[-1])
                yield found, after

    def _report_missing(self, sequence: list[int]) -> None:
        for before, number in pairwise(sequence):
            check_missing(before + 1, number - 1, fail=self._fail)

    def _batch(
        self, found: FrameColumns, schema: "pyarrow.Schema", constants: "ConstantArrays"
    ) -> "pyarrow.RecordBatch | None":
        import pyarrow as pa

        kept = self._choice.rows(found)
        if kept is not None:
            found = found.select(kept)
        if not len(found):
            return None
        arrays = [_column(name, found, constants) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


class ConstantArrays:
    """Cache of Arrow arrays with one value in all rows, built once for many batches.

    The latest array of each column is kept. A longer one is sliced to the number of rows."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[str, pyarrow.Array[Any]]] = {}

    def rows(
        self, name: str, count: int, make: "Callable[[int], pyarrow.Array[Any]]", value: str = ""
    ) -> "pyarrow.Array[Any]":
        of, made = self._made.get(name, ("", None))
        if made is None or of != value or len(made) < count:
            made = make(count)
            self._made[name] = value, made
        return made if len(made) == count else made.slice(0, count)


def _column(name: str, found: FrameColumns, constants: ConstantArrays) -> "pyarrow.Array[Any]":
    import pyarrow as pa

    count = len(found)
    match name:
        case "key":
            return (
                found.keys() if found.has_key.any() else constants.rows(name, count, lambda n: pa.nulls(n, pa.string()))
            )
        case "value":
            return found.payloads()
        case "topic":
            codes, names = found.topics()
            if len(names) == 1:
                return constants.rows(name, count, lambda n: pa.repeat(pa.scalar(names[0], pa.string()), n), names[0])
            return pa.array(names, pa.string()).take(pa.array(codes))
        case "partition":
            return constants.rows(name, count, lambda n: pa.repeat(pa.scalar(0, pa.int32()), n))
        case "offset":
            return pa.array(found.topic_sequence)
        case "global_seq":
            return pa.array(found.sequence)
        case "timestamp":
            return pa.array(found.at_ns // 1000).view(pa.timestamp("us", tz="UTC"))
        case _:
            return found.header_maps() if found.headers_size.any() else constants.rows(name, count, _empty_maps)


def _empty_maps(count: int) -> "pyarrow.Array[Any]":
    import numpy as np
    import pyarrow as pa

    none = pa.array([], pa.string())
    return pa.MapArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), none, none)


class TopicReader(DataSourceReader):
    """Batch reader of a range of the log."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._choice = topic_selection(options)
        self._columns = columns_of(options)
        self._low = 0
        self._high: int | None = None
        self._since_ms: int | None = None
        self._before_ms: int | None = None

    def partitions(self) -> Sequence[InputPartition]:
        options, log = self._options, log_of(self._options)
        try:
            info = log.info()
            self._report_unknown(log)
            after = resolve_start(options, log, info, "earliest")
            after = check_kept(after, info.first, fail=options.flag("failOnDataLoss"))
            last = min(resolve_end(options, log, info), info.last if self._high is None else self._high)
            after = max(after, self._low - 1)
            if self._since_ms is not None:
                after = max(after, log.sequence_at(self._since_ms) - 1)
            if self._before_ms is not None:
                last = min(last, log.sequence_at(self._before_ms) - 1)
            return ranges_of(log, options, after, last) or [LogRange(0, 0)]
        finally:
            log.close()

    def _report_unknown(self, log: LogAccess) -> None:
        """Report subscribed topics without any record.

        A topic is created by its first record, so this is no error. It may be a misspelt name."""
        if self._choice.topics:
            known = log.topics()
            for topic in self._choice.topics:
                if topic not in known:
                    print_notice(f"the topic {topic!r} has no record and never had one{_near(topic, known)}")

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        part = cast("LogRange", partition)
        if part.last > part.after:
            yield from TopicRows(self._options, self._choice, self._columns).read(part)


def _near(topic: str, known: list[str]) -> str:
    close = get_close_matches(topic, known, 1, 0.6)
    return f"; did you mean {close[0]}?" if close else ""


class PushingTopicReader(TopicReader):
    """Reader with filter pushdown.

    Filters on topic and global_seq are evaluated here completely. Filters on time only reduce the range."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for filter in filters:
            if not self._take(filter):
                yield filter

    def _take(self, filter: Filter) -> bool:
        """Use the filter. Return True if no row that fails it will be returned, so that Spark need not evaluate it
        again."""
        name, value = ".".join(getattr(filter, "attribute", ())), getattr(filter, "value", None)
        if isinstance(filter, IsNotNull):
            return name in NEVER_NULL
        if name == "global_seq" and type(value) is int:
            return self._take_range(filter, value)
        if name == "topic" and isinstance(filter, EqualTo | In):
            wanted = [value] if isinstance(filter, EqualTo) else cast("Any", value)
            self._choice = self._choice.narrowed(frozenset(str(one) for one in wanted if one is not None))
            return True
        if name == "timestamp" and isinstance(value, datetime):
            self._narrow_time(filter, value)
        return False

    def _take_range(self, filter: Filter, value: int) -> bool:
        if isinstance(filter, EqualTo):
            low, high = value, value
        elif isinstance(filter, GreaterThan | GreaterThanOrEqual):
            low, high = value + isinstance(filter, GreaterThan), None
        elif isinstance(filter, LessThan | LessThanOrEqual):
            low, high = 0, value - isinstance(filter, LessThan)
        else:
            return False
        self._low = max(self._low, low)
        if high is not None:
            self._high = max(0, high if self._high is None else min(self._high, high))
        return True

    def _narrow_time(self, filter: Filter, value: datetime) -> None:
        """Narrow the time range, to the millisecond and slightly wider than requested; Spark evaluates the exact
        filter."""
        at_ms = int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
        if isinstance(filter, EqualTo | GreaterThan | GreaterThanOrEqual):
            self._since_ms = max(self._since_ms or 0, max(0, at_ms - 1))
        if isinstance(filter, EqualTo | LessThan | LessThanOrEqual):
            before = max(0, at_ms + 2)
            self._before_ms = before if self._before_ms is None else min(self._before_ms, before)


# -- stream ------------------------------------------------------------------------------------------------------------

Offset = dict[str, Any]


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options) -> None:
        if options.source != "topic":
            raise SourceError(f"source: a {options.source} can be read in a batch only; a stream follows topics")
        self._options = options
        self._choice = topic_selection(options)
        self._columns = columns_of(options)
        self._fail = options.flag("failOnDataLoss")
        self._log = log_of(options)
        self._target: int | None = None
        self._waiting_since: float | None = None
        self._is_known = False
        """Whether the start of this query has been reported."""
        self._group = options.text("groupId")
        self._broker = broker_of(options) if self._group else None

    def __getstate__(self) -> dict[str, Any]:
        """Return the part of the state that a task needs."""
        return {"_options": self._options, "_choice": self._choice, "_columns": self._columns}

    # -- position -----------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        info = self._log.info()
        after = resolve_start(self._options, self._log, info, "latest")
        self._is_known = True
        self._create_cursor(after, info.epoch)
        return {"global_seq": after, "epoch": info.epoch}

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        """Return the end of the next micro-batch, or ``start`` itself if there is none yet.

        Spark before 4.2 calls this without arguments; the result is then the end of the log."""
        info = self._log.info()
        if start is None:
            return {"global_seq": info.last if self._target is None else self._target, "epoch": info.epoch}
        self._report_resumed(start)
        after = self._resume_after(start, info)
        last = info.last if self._target is None else min(info.last, self._target)
        if limit is not None and not isinstance(limit, ReadAllAvailable):
            last = self._apply_max_rows(after, self._apply_min_rows(after, last, limit), limit)
        if last <= after:
            return start
        return {"global_seq": last, "epoch": info.epoch, "after": after}

    def _resume_after(self, start: Offset, info: LogInfo) -> int:
        """Return the end of the previous batch, or a later sequence if the log lost the records after it."""
        after = int(start["global_seq"])
        if start.get("epoch", info.epoch) != info.epoch:
            words = f"the log is a new one: this query has epoch {start['epoch']}, the log is of epoch {info.epoch}"
            if self._fail:
                raise SourceError(f"{words}; set failOnDataLoss=false to read the new one from its beginning")
            print_notice(f"{words}; reading it from its beginning (failOnDataLoss=false)")
            return info.first - 1
        if after > info.last:
            raise SourceError(
                f"this query has read up to {after}, and the log ends at {info.last}: it is a different log; "
                "give the query a new checkpoint"
            )
        return check_kept(after, info.first, fail=self._fail)

    def _report_resumed(self, start: Offset) -> None:
        if not self._is_known:
            self._is_known = True
            ignored = [name for name in ("startingOffsets", "startingTimestamp") if name in self._options]
            tail = f", {ignored[0]} ignored" if ignored else ""
            print_notice(f"resuming from checkpoint at {start['global_seq']}{tail}")

    def _apply_min_rows(self, after: int, last: int, limit: ReadLimit) -> int:
        """Return ``after`` (no batch yet) while there are too few records and ``maxTriggerDelay`` has not passed, else
        ``last``."""
        least = limit.min_rows if isinstance(limit, ReadMinRows) else self._options.whole("minOffsetsPerTrigger")
        if last - after >= least or last <= after or self._target is not None:
            self._waiting_since = None
            return last
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < self._options.milliseconds("maxTriggerDelay") / 1000:
            return after
        self._waiting_since = None
        return last

    def _apply_max_rows(self, after: int, last: int, limit: ReadLimit) -> int:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.whole("maxOffsetsPerTrigger")
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.whole("maxBytesPerTrigger")
        last = min(last, after + rows)
        try:
            split_points = self._log.split_points(after, last) if last > after else []
        except RecordsRetired:
            return last  # partitions() reports it
        begin = split_points[0].size if split_points else 0
        over = [point.sequence - 1 for point in split_points if point.size - begin > most]
        return max(over[0], after + 1) if over else last

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.whole("maxOffsetsPerTrigger"))

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._log.info().last

    def reportLatestOffset(self) -> Offset | None:
        info = self._log.info()
        return {"global_seq": info.last, "epoch": info.epoch}

    # -- reading ------------------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._report_resumed(start)
        info = self._log.info()
        after, last = int(end["after"] if "after" in end else start["global_seq"]), int(end["global_seq"])
        if end.get("epoch", info.epoch) != info.epoch:
            words = f"records {after + 1} to {last} are of epoch {end['epoch']}, the log is of epoch {info.epoch}"
            if self._fail:
                raise SourceError(f"{words}: they were removed. Set failOnDataLoss=false to continue without them")
            print_notice(f"{words}; going on without them (failOnDataLoss=false)")
            return []
        after = min(check_kept(after, info.first, fail=self._fail), last) if last > after else last
        return ranges_of(self._log, self._options, after, last)

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        return TopicRows(self._options, self._choice, self._columns).read(cast("LogRange", partition))

    # -- cursor -------------------------------------------------------------------------------------------------------

    def commit(self, end: Offset) -> None:
        """Store the cursor of a named query: everything up to here is in the sink, so the broker may retire it."""
        self._put_cursor(int(end["global_seq"]), end.get("epoch"))

    def _create_cursor(self, after: int, epoch: str) -> None:
        """Create the cursor of a named query before its first batch, so that no record it still has to read is retired.

        The cursor never moves forward here: the query may be one that was stopped in its first batch."""
        if self._broker is None or not self._group:
            return
        try:
            known = self._broker.document("GET", f"/v1/cursors/{quote(self._group)}")
            if known["epoch"] == epoch and known["sequence"] <= after:
                return
        except RequestRejected as error:
            if error.code != "not_found":
                raise
        self._put_cursor(after, epoch)

    def _put_cursor(self, sequence: int, epoch: str | None) -> None:
        if self._broker is not None and self._group:
            filter_text = ",".join((*self._choice.topics, *self._choice.patterns)) or "*"
            body = {"sequence": sequence, "filter": filter_text} | ({"epoch": epoch} if epoch else {})
            self._broker.document("PUT", f"/v1/cursors/{quote(self._group)}", body)

    def stop(self) -> None:
        self._log.close()
        if self._broker is not None:
            self._broker.close()
