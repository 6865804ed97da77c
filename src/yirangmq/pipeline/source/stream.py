"""Topics as a stream: the log as it grows. An offset is ``{"global_seq": last, "epoch": …, "after": begin}``:
everything up to ``last`` is planned, and its own micro-batch began behind ``after``.

That an offset knows where its batch began makes the first batch of a query as good as every other: Spark writes down
where a batch ends, and asks anew where the very first one began, when "latest" may be somewhere else by then."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from yirangmq.pipeline.source.access import Info
from yirangmq.pipeline.source.choice import choice_of
from yirangmq.pipeline.source.columns import columns_of
from yirangmq.pipeline.source.errors import Refused, Retired, SourceError, say
from yirangmq.pipeline.source.options import Options
from yirangmq.pipeline.source.ranges import Range, begins_after, check_kept, ranges_of
from yirangmq.pipeline.source.topics import TopicRows
from yirangmq.pipeline.source.ways import broker_of, log_of

if TYPE_CHECKING:
    import pyarrow

Offset = dict[str, Any]


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options) -> None:
        if options.source != "topic":
            raise SourceError(f"source: a {options.source} can be read in a batch only; a stream follows topics")
        self._options = options
        self._choice = choice_of(options)
        self._columns = columns_of(options)
        self._fail = options.flag("failOnDataLoss")
        self._log = log_of(options)
        self._target: int | None = None
        self._waiting_since: float | None = None
        self._is_known = False
        """Whether it was said where this begins."""
        self._group = options.text("groupId")
        self._broker = broker_of(options) if self._group else None

    def __getstate__(self) -> dict[str, Any]:
        """Only what a task needs."""
        return {"_options": self._options, "_choice": self._choice, "_columns": self._columns}

    # -- where it stands ----------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        info = self._log.info()
        after = begins_after(self._options, self._log, info, "latest")
        self._is_known = True
        self._hold(after, info.epoch)
        return {"global_seq": after, "epoch": info.epoch}

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        """Where the next micro-batch ends; ``start`` itself if there is none yet. (Without arguments, as Spark before
        4.2 asks: the end of the log.)"""
        info = self._log.info()
        if start is None:
            return {"global_seq": info.last if self._target is None else self._target, "epoch": info.epoch}
        self._tell_resumed(start)
        after = self._begin(start, info)
        last = info.last if self._target is None else min(info.last, self._target)
        if limit is not None and not isinstance(limit, ReadAllAvailable):
            last = self._limited(after, self._enough(after, last, limit), limit)
        if last <= after:
            return start
        return {"global_seq": last, "epoch": info.epoch, "after": after}

    def _begin(self, start: Offset, info: Info) -> int:
        """The end of the batch before, unless the log lost what follows it."""
        after = int(start["global_seq"])
        if start.get("epoch", info.epoch) != info.epoch:
            words = f"the log began anew: this query knows epoch {start['epoch']}, the log is of epoch {info.epoch}"
            if self._fail:
                raise SourceError(f"{words}; set failOnDataLoss=false to read the new one from its beginning")
            say(f"{words}; reading it from its beginning (failOnDataLoss=false)")
            return info.first - 1
        if after > info.last:
            raise SourceError(
                f"this query has read up to {after}, and the log ends at {info.last}: it is not the log it was; "
                "give the query a new checkpoint"
            )
        return check_kept(after, info.first, fail=self._fail)

    def _tell_resumed(self, start: Offset) -> None:
        if not self._is_known:
            self._is_known = True
            ignored = [name for name in ("startingOffsets", "startingTimestamp") if name in self._options]
            tail = f", {ignored[0]} ignored" if ignored else ""
            say(f"resuming from checkpoint at {start['global_seq']}{tail}")

    def _enough(self, after: int, last: int, limit: ReadLimit) -> int:
        """Nothing yet, while there is too little and the wait has not been too long."""
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

    def _limited(self, after: int, last: int, limit: ReadLimit) -> int:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.whole("maxOffsetsPerTrigger")
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.whole("maxBytesPerTrigger")
        last = min(last, after + rows)
        try:
            places = self._log.places(after, last) if last > after else []
        except Retired:
            return last  # partitions() says so
        begin = places[0].size if places else 0
        over = [place.sequence - 1 for place in places if place.size - begin > most]
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
        self._tell_resumed(start)
        info = self._log.info()
        after, last = int(end["after"] if "after" in end else start["global_seq"]), int(end["global_seq"])
        if end.get("epoch", info.epoch) != info.epoch:
            words = f"records {after + 1} to {last} are of epoch {end['epoch']}, the log is of epoch {info.epoch}"
            if self._fail:
                raise SourceError(f"{words}: they are gone. Set failOnDataLoss=false to go on without them")
            say(f"{words}; going on without them (failOnDataLoss=false)")
            return []
        after = min(check_kept(after, info.first, fail=self._fail), last) if last > after else last
        return ranges_of(self._log, self._options, after, last)

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        return TopicRows(self._options, self._choice, self._columns).read(cast("Range", partition))

    # -- how far it is done -------------------------------------------------------------------------------------------

    def commit(self, end: Offset) -> None:
        """Everything up to here is in the sink. A named query lets the broker retire it from now on."""
        self._put(int(end["global_seq"]), end.get("epoch"))

    def _hold(self, after: int, epoch: str) -> None:
        """From the first moment on nothing is retired that a named query still has to read. It never moves forward
        here: the query may be one that was stopped in its first batch."""
        if self._broker is None or not self._group:
            return
        try:
            known = self._broker.document("GET", f"/v1/cursors/{quote(self._group)}")
            if known["epoch"] == epoch and known["sequence"] <= after:
                return
        except Refused as error:
            if error.code != "not_found":
                raise
        self._put(after, epoch)

    def _put(self, sequence: int, epoch: str | None) -> None:
        if self._broker is not None and self._group:
            told = ",".join((*self._choice.topics, *self._choice.patterns)) or "*"
            body = {"sequence": sequence, "filter": told} | ({"epoch": epoch} if epoch else {})
            self._broker.document("PUT", f"/v1/cursors/{quote(self._group)}", body)

    def stop(self) -> None:
        self._log.close()
        if self._broker is not None:
            self._broker.close()
