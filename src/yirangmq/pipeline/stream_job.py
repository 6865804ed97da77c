"""Stream job ``process``: a topic through steps into queues and topics.

It runs until it is stopped or, without a trigger, until it has read all existing records. Steps, columns, target and
checkpoint are checked before any data moves. A lock file allows a single query per checkpoint."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from yirangmq.core.errors import BadInput, StoreBusy
from yirangmq.fsio.lock import try_lock
from yirangmq.pipeline import run_registry, spark_errors, steps
from yirangmq.pipeline.declarative_events import QUALITY
from yirangmq.pipeline.run_registry import DataAccess, JobSource
from yirangmq.pipeline.session import LOCAL, is_local, send_modules_of
from yirangmq.pipeline.source.checkpoints import release

Steps = Callable[[DataFrame], DataFrame]
LOCK = "yirangmq.lock"


@dataclass(frozen=True, slots=True)
class StreamJob:
    """Options of a stream job. ``trigger`` is the interval, such as ``1 second``; None reads the existing records and
    ends."""

    source: JobSource
    target: str
    access: DataAccess
    checkpoint: Path
    trigger: str | None = "1 second"
    start: str = "latest"
    most: int | None = None
    dead_letter_bad_rows: bool = True
    """Whether rows that cannot be written go to the dead letters with the reason. Otherwise the query stops at the
    first."""
    skip_lost: bool = False
    """Whether records that were retired before they were read are skipped and reported. Otherwise the query fails."""


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Start position of a stream: ``sequence`` of its checkpoint, or ``start`` without a checkpoint."""

    sequence: int | None
    batch: int | None
    start: str

    def __str__(self) -> str:
        if self.sequence is None:
            return f"no checkpoint yet: starting at {self.start}"
        return f"resuming from checkpoint at {self.sequence:,} (batch {self.batch}); --start is not looked at"


def load_steps(text: str | None, folder: Path, master: str = LOCAL) -> Steps:
    """Import ``module:function``, a function from DataFrame to DataFrame; ``folder`` is searched too.

    On a cluster the modules of that folder are sent with it."""
    if text is None:
        return lambda frame: frame
    module, _, name = text.partition(":")
    if not module or not name:
        raise BadInput(f"{text!r} is not module:function", field="steps")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found = getattr(import_module(module), name, None)
    except ImportError as error:
        raise BadInput(f"{module} cannot be imported: {error}", field="steps") from None
    except Exception as error:
        raise BadInput(f"{module} fails while it is imported: {type(error).__name__}: {error}", field="steps") from None
    if not callable(found):
        raise BadInput(f"{module} has no function {name!r}", field="steps")
    if not is_local(master):
        send_modules_of(folder)
    return found  # type: ignore[no-any-return]


def build_rows(spark: SparkSession, job: StreamJob, transform: Steps) -> DataFrame:
    """Build the rows for the sink. An error names its place, and no data has been read."""
    steps.check_target(job.target)
    options = {**run_registry.source_options(job.source, job.access), "startingOffsets": job.start}
    if job.most is not None:
        options["maxOffsetsPerTrigger"] = str(job.most)
    if job.skip_lost:
        options["failOnDataLoss"] = "false"
    name = getattr(transform, "__qualname__", "steps")
    with spark_errors.translated_errors("from"):
        frame = spark.readStream.format("yirangmq").options(**options).load()
    try:
        made: Any = transform(frame)  # a user's function may return anything
    except (AnalysisException, ParseException) as error:
        raise BadInput(f"{name}: {str(error).strip().splitlines()[0][:400]}", field="steps") from None
    if not isinstance(made, DataFrame) or not made.isStreaming:
        raise BadInput(f"{name} must return the stream it was given with steps on it", field="steps")
    rows = steps.for_sink(made)
    kind = dict(rows.dtypes)["value"]
    if kind not in ("string", "binary"):
        raise BadInput(f"the column value is {kind}, neither string nor binary; try to_json(…)", field="steps")
    own = F.lit(job.target)
    target = F.coalesce(F.col(steps.TARGET), own) if steps.TARGET in rows.columns else own
    return count_rows(rows.withColumn(steps.TARGET, target))


def count_rows(rows: DataFrame) -> DataFrame:
    """Request counts of the rows of each micro-batch from Spark."""
    is_dead = F.col(steps.TARGET).startswith("dlq:")
    metrics = {"rows": F.count(F.lit(1)), "dead": F.count_if(is_dead), "empty": F.count_if(F.col("value").isNull())}
    return rows.observe(QUALITY, *(column.alias(name) for name, column in metrics.items()))


def start_query(rows: DataFrame, job: StreamJob, name: str) -> StreamingQuery:
    writer: DataStreamWriter = rows.writeStream.format("yirangmq").queryName(name).outputMode("append")
    writer = writer.options(**job.access.options(topics=False)).option("checkpointLocation", str(job.checkpoint))
    writer = writer.option("onBadRow", "dlq" if job.dead_letter_bad_rows else "fail")
    if job.trigger is None:
        return writer.trigger(availableNow=True).start()
    try:
        timed = writer.trigger(processingTime=job.trigger)
    except Exception as error:
        words = str(error).strip().splitlines()[0][:200]
        raise BadInput(f"{job.trigger!r} is not a duration such as '1 second': {words}", field="trigger") from None
    return timed.start()


def start_position(job: StreamJob) -> StartPosition:
    """Read the start position from the checkpoint."""
    folder = job.checkpoint / "offsets"
    batches = sorted((int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal()), reverse=True)
    for batch in batches:
        if (job.checkpoint / "commits" / str(batch)).exists():
            return StartPosition(_sequence(folder / str(batch)), batch, job.start)
    return StartPosition(None, None, job.start)


def _sequence(path: Path) -> int | None:
    """Return the sequence in the last line of an offsets file, which is that of the only source."""
    try:
        value: Any = json.loads(path.read_text().strip().splitlines()[-1])
        return int(value["global_seq"])
    except (ValueError, KeyError, TypeError, IndexError):
        return None


@contextmanager
def checkpoint_lock(checkpoint: Path) -> Iterator[None]:
    """Lock the checkpoint: two queries on one checkpoint would corrupt it."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    with (checkpoint / LOCK).open("w") as lock:
        if not try_lock(lock.fileno()):
            raise StoreBusy(f"another query uses the checkpoint {checkpoint}", field="checkpoint")
        try:
            yield
        finally:
            release(str(checkpoint))
