"""How fast Spark reads and writes through us, beside its own sources on the same messages: ``make bench-spark``.

1 000 000 messages of 2000 bytes, local[2], warm: every figure is the mean of two runs after two over a tenth of the
messages that do not count, for readers also two over all of them, and rivals take turns; where the time that was given
is mostly used up, it is one run. It takes about ten minutes on two quiet cores. ``--quick`` takes a fiftieth, to see
that it runs; its figures mean nothing.

Readers are compared where they do the same: the value alone beside Spark's text and JSON readers, which give no more;
all columns, checksums compared, beside a Python source that yields the same columns as tuples and compares them too.
The query is ``sum(length(value)), count(*)``. Of a text that counts characters, which takes Spark longer than reading
it; so ``octet_length``, which looks at nothing, is asked as well, and told: it shows what reading alone costs.

A target line is printed as soon as it is known, and all of them again at the end: name | figure | wanted | reached or
short."""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from spark_parts import PER_SECOND, Others, Patience, Server, Trickle

from yirangmq.core.topics import NewRecord
from yirangmq.pipeline.local_cluster import LocalCluster
from yirangmq.pipeline.session import session
from yirangmq.pipeline.source.options import TOPIC_COLUMNS
from yirangmq.pipeline.steps import parse_envelope, validate
from yirangmq.stores.log.log import LogSettings, SegmentLog

SIZE = 2000
ROWS, QUICK_ROWS = 1_000_000, 20_000
QUEUE_SHARE = 4
"""One message of so many goes to the queue: all of a batch write is one transaction."""
CLUSTER_SHARE = 4
"""One message of so many is read on the cluster, whose workers have one core each."""
BESIDE_ROWS = 200_000
"""Rows of the batch beside which somebody else publishes."""
PARTS = 10
RUNS = WARMING = 2
SCHEMA = {
    "type": "object",
    "required": ["messageId", "payload"],
    "properties": {"payload": {"type": "object", "required": ["id", "amount"]}},
}
JSON_SCHEMA = "messageId string, type string, timestamp string, payload struct<id bigint, amount bigint, text string>"
SENT_AT = "2026-01-13T09:21:00Z"
TARGETS: list[str] = []


def target(name: str, figure: float, wanted: str, reached: bool, unit: str = "") -> None:
    """Told at once: a run that is cut off has said what it knew."""
    shown = f"{figure:,.0f}" if figure >= 1000 else f"{figure:.3g}"
    TARGETS.append(f"target: {name} | {shown}{unit} | {wanted} | {'reached' if reached else 'short'}")
    tell(TARGETS[-1])


def beside(name: str, ours: float, theirs: float, wanted: float = 0) -> None:
    """``wanted``: how many times as fast; 0: it is told, and no more."""
    told = f"≥ {wanted:g} ×" if wanted else "told"
    target(f"read {name}", ours / theirs, told, ours >= wanted * theirs, " ×")


def tell(text: str) -> None:
    print(text, flush=True)


# -- the messages -----------------------------------------------------------------------------------------------------


def messages(count: int) -> Iterator[bytes]:
    chance = random.Random(1)
    fill = ["".join(chance.choices("abcdefghijklmnop ", k=SIZE)) for _ in range(64)]
    for number in range(count):
        payload = {"id": number, "amount": number % 997, "text": ""}
        envelope = {
            "messageId": f"m-{number}",
            "type": "order",
            "timestamp": "2026-01-13T09:21:00Z",
            "payload": payload,
        }
        text = json.dumps(envelope)
        yield (text[:-3] + fill[number % 64][: SIZE - len(text)] + text[-3:]).encode()


def make_messages(folder: Path, count: int) -> None:
    """The same ones as a topic and as lines of files."""
    (folder / "data").mkdir(parents=True)
    (folder / "lines").mkdir()
    found = messages(count)
    with SegmentLog(folder / "data" / "topics", LogSettings(durability="os")) as log:
        for part in range(PARTS):
            with (folder / "lines" / f"part-{part}.json").open("wb") as lines:
                for begin in range(0, count // PARTS, 1000):
                    some = [next(found) for _ in range(min(1000, count // PARTS - begin))]
                    log.append([NewRecord("orders", one) for one in some])
                    lines.writelines(one + b"\n" for one in some)


# -- row by row, as most Python sources do it -------------------------------------------------------------------------


class RowByRow(DataSource):
    """``lean``: three columns, and no checksum is looked at."""

    @classmethod
    def name(cls) -> str:
        return "row_by_row"

    def schema(self) -> str:
        if "lean" in self.options:
            return "value binary, topic string, global_seq bigint"
        return ", ".join(f"`{name}` {kind}" for name, kind in TOPIC_COLUMNS.items())

    def reader(self, schema: Any) -> DataSourceReader:
        return RowReader(self.options["path"], int(self.options.get("files", "1000000")), lean="lean" in self.options)


class RowReader(DataSourceReader):
    def __init__(self, path: str, files: int, *, lean: bool) -> None:
        self._path, self._files, self._lean = path, files, lean

    def partitions(self) -> list[InputPartition]:
        names = [name for name in sorted(os.listdir(self._path)) if name.endswith(".log")]
        return [InputPartition(name) for name in names[: self._files]]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        data = memoryview(Path(self._path, partition.value).read_bytes())
        return self._lean_rows(data) if self._lean else self._rows(data)

    def _rows(self, data: memoryview) -> Iterator[tuple[Any, ...]]:
        """A record at a time: what ``format("yirangmq")`` gives, and with the same care."""
        import struct

        from yirangmq.pipeline.source.frames import crc32
        from yirangmq.pipeline.source.msgpack import read_map

        unpack, sign = struct.Struct(">I8sIQQQHHHH").unpack_from, bytes((1, 20, 0, 0, 0, 0, 0, 0))
        at = struct.unpack_from(">Q", data, 64)[0]
        last_ns, when = -1, None
        while at + 48 <= len(data):
            length, found, crc, sequence, number, at_ns, marks, topic, key, headers = unpack(data, at)
            if found != sign:
                return
            end = at + length + 12
            if crc32(data[at + 16 : end]) != crc:
                raise ValueError(f"record {sequence} does not hold what was written")
            if at_ns != last_ns:
                last_ns, when = at_ns, datetime.fromtimestamp(at_ns / 1e9, UTC)
            key_from = at + 48 + topic
            told_from = key_from + key
            value_from = told_from + headers
            yield (
                str(data[key_from:told_from], "utf-8") if marks & 1 else None,
                bytes(data[value_from:end]),
                str(data[at + 48 : key_from], "utf-8"),
                0,
                number,
                sequence,
                when,
                read_map(data[told_from:value_from], 0) if headers else {},
            )
            at = end

    def _lean_rows(self, data: memoryview) -> Iterator[tuple[Any, ...]]:
        import struct

        at = struct.unpack_from(">Q", data, 64)[0]
        while at + 48 <= len(data):
            length, sign, _, sequence, _, _, _, topic, key, headers = struct.unpack_from(">I8sIQQQHHHH", data, at)
            if sign != bytes((1, 20, 0, 0, 0, 0, 0, 0)):
                return
            body = at + 48
            payload = body + topic + key + headers
            at += length + 12
            yield bytes(data[payload:at]), str(data[body : body + topic], "utf-8"), sequence


# -- measuring --------------------------------------------------------------------------------------------------------


Measure = Callable[[str], Column]
Work = Callable[[int], object]
"""Does something with so many messages."""


class Bench:
    def __init__(self, spark: SparkSession, folder: Path, url: str, rows: int, runs: Callable[[], int]) -> None:
        self.spark, self.folder, self.url, self.rows, self.runs = spark, folder, url, rows, runs

    def rates(self, title: str, works: dict[str, Work], rows: int = 0, *, is_long: bool = False) -> dict[str, float]:
        """Rows per second of each, in turns; first a tenth of it, twice, for warming up, and all of it twice if
        ``is_long``: Java compiles what it reads rows with for longer than the short ones last."""
        tell(f"\n{title}")
        rows = rows or self.rows
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for work in [*works.values()] * WARMING:
            work(rows // PARTS)
        for work in [*works.values()] * (WARMING if is_long else 0):
            work(rows)
        for _ in range(self.runs()):
            for name, work in works.items():
                begin = time.perf_counter()
                work(rows)
                seconds[name].append(time.perf_counter() - begin)
        found = {name: rows / statistics.mean(taken) for name, taken in seconds.items()}
        for name, rate in found.items():
            spread = max(seconds[name]) / min(seconds[name])
            tell(f"  {name:44} {rate:12,.0f} rows/s  {rate * SIZE / 1e6:8,.0f} MB/s  spread {spread:.2f}")
        return found

    def topic(self, rows: int, **options: str) -> DataFrame:
        """The first so many messages; what was written since lies behind them in the same log."""
        way = {} if "broker" in options else {"path": str(self.folder / "data")}
        end = json.dumps({"global_seq": rows})
        found = self.spark.read.format("yirangmq").options(subscribe="orders", endingOffsets=end, **way, **options)
        return found.load()

    def lines(self, rows: int) -> str:
        """The same as lines of files: all of them, or a tenth."""
        return str(self.folder / "lines") if rows == self.rows else str(self.folder / "lines" / "part-0.json")

    def tuples(self, rows: int, **options: str) -> DataFrame:
        """The same, row by row: all of them, or one file."""
        files = "1000000" if rows == self.rows else "1"
        source = self.spark.read.format("row_by_row").option("path", str(self.folder / "data" / "topics"))
        return source.options(files=files, **options).load()

    def count(self, found: DataFrame, rows: int, column: str = "value", size: Measure = F.length) -> None:
        [row] = found.agg(F.sum(size(column)), F.count("*")).collect()
        assert row[1] == rows or rows < self.rows, row

    # -- reading ------------------------------------------------------------------------------------------------------

    def reading(self) -> None:
        self.spark.dataSource.register(RowByRow)
        parsed = self.spark.read.schema(JSON_SCHEMA)
        found = self.rates(
            "Reading: sum(length), count",
            {
                "a topic, from its files: the value alone": lambda n: self.count(self.topic(n, columns="value"), n),
                "Spark's text reader": lambda n: self.count(self.spark.read.text(self.lines(n)), n),
                "Spark's JSON reader, schema given": lambda n: self.count(
                    parsed.json(self.lines(n)), n, "payload.text"
                ),
                "a topic, from its files: all 8 columns": lambda n: self.count(self.topic(n), n),
                "a topic, over TCP: all 8 columns": lambda n: self.count(self.topic(n, broker=self.url), n),
                "tuples: all 8 columns, checksums compared": lambda n: self.count(self.tuples(n), n),
                "tuples: 3 columns, nothing compared": lambda n: self.count(self.tuples(n, lean="yes"), n),
            },
            is_long=True,
        )
        value, text, json_lines, whole, tcp, tuples, lean = found.values()
        beside("a topic's value, beside Spark's text reader, sum(length)", value, text, 2.5)
        beside("a topic's value, beside Spark's JSON reader, sum(length)", value, json_lines, 3)
        beside("a topic, all columns, beside tuples of the same columns, both with checksums", whole, tuples, 4)
        beside("a topic over TCP, beside its files, all columns", tcp, whole, 0.5)
        beside("a topic, all columns, beside Spark's text reader, sum(length)", whole, text)
        beside("a topic, all columns, beside Spark's JSON reader, sum(length)", whole, json_lines)
        beside("a topic, all columns, beside tuples of three columns without checksums", whole, lean)

    def reading_alone(self) -> None:
        """Where nothing looks at the value."""
        size, parsed = F.octet_length, self.spark.read.schema(JSON_SCHEMA)
        value, text, json_lines = self.rates(
            "Reading alone: sum(octet_length), count",
            {
                "a topic, from its files: the value alone": lambda n: self.count(
                    self.topic(n, columns="value"), n, size=size
                ),
                "Spark's text reader": lambda n: self.count(self.spark.read.text(self.lines(n)), n, size=size),
                "Spark's JSON reader, schema given": lambda n: self.count(
                    parsed.json(self.lines(n)), n, "payload.text", size
                ),
            },
        ).values()
        beside("a topic's value, beside Spark's text reader, sum(octet_length)", value, text)
        beside("a topic's value, beside Spark's JSON reader, sum(octet_length)", value, json_lines)

    # -- a whole pipeline ---------------------------------------------------------------------------------------------

    def pipeline(self) -> None:
        def whole(found: DataFrame, rows: int) -> None:
            checked = validate(parse_envelope(found.select(F.col("value").cast("binary").alias("value"))), SCHEMA)
            amount = F.get_json_object("payload", "$.amount").cast("bigint")
            groups = checked.groupBy("type", F.size("errors")).agg(F.count("*"), F.sum(amount)).collect()
            assert sum(row[2] for row in groups) == rows

        ours, theirs = self.rates(
            "Pipeline: read, parse envelope, validate, aggregate",
            {
                "from a topic": lambda rows: whole(self.topic(rows, columns="value"), rows),
                "from Spark's text reader": lambda rows: whole(self.spark.read.text(self.lines(rows)), rows),
            },
        ).values()
        target("pipeline, beside Spark's text source", ours / theirs, "≥ 0.8 ×", ours >= 0.8 * theirs, " ×")

    # -- writing ------------------------------------------------------------------------------------------------------

    def writing(self) -> None:
        few = self.rows // QUEUE_SHARE
        out = str(self.folder / "out")

        def ours(rows: int, **place: str) -> None:
            found = self.topic(rows, columns="value")
            found.write.format("yirangmq").mode("append").options(broker=self.url, **place).save()

        def theirs(rows: int) -> None:
            found = self.topic(rows, columns="value")
            found.select(F.col("value").cast("string")).write.mode("overwrite").text(out)

        topic, text = self.rates(
            "Writing to a topic, durability full",
            {"a topic": lambda rows: ours(rows, topic="copied"), "Spark's text sink": theirs},
        ).values()
        target("sink to a topic", topic, "≥ 80,000 rows/s", topic >= 80_000, " rows/s")
        self._beside_commit(min(self.rows, BESIDE_ROWS))
        target("sink to a topic, share of Spark's text sink", topic / text, "told", True, " ×")
        queue, small = self.rates(
            f"Writing to a SQLite queue, durability full, {few:,} rows",
            {"a queue": lambda rows: ours(rows, queue="copied"), "Spark's text sink": theirs},
            few,
        ).values()
        target("sink to a SQLite queue", queue, "≥ 30,000 rows/s", queue >= 30_000, " rows/s")
        target("sink to a SQLite queue, share of Spark's text sink", queue / small, "told", True, " ×")

    def _beside_commit(self, rows: int) -> None:
        """Somebody else publishes to a queue, one message after the other, while a batch for a topic goes in."""
        with Others(self.url) as others:
            found = self.topic(rows, columns="value")
            found.write.format("yirangmq").mode("append").options(broker=self.url, topic="copied").save()
        late = sorted(others.took)
        p50, p99 = (1000 * late[round(share * (len(late) - 1))] for share in (0.5, 0.99))
        tell(f"  beside a batch of {rows:,} rows: {len(late)} messages to a queue, p50 {p50:.1f}, p99 {p99:.1f},"
             f" longest {1000 * late[-1]:.1f} ms")  # fmt: skip
        target("publish to a queue while a batch goes to a topic, p99", p99, "told", True, " ms")

    # -- how long a record takes --------------------------------------------------------------------------------------

    def latency(self, seconds: float) -> None:
        """From publishing a record to the commit of its copy in another topic, both by the log's own clock."""
        found = self.spark.readStream.format("yirangmq").options(
            broker=self.url, subscribe="ticks", startingOffsets="latest"
        )
        ticks = found.load().selectExpr("cast(unix_micros(timestamp) as string) value")
        sink = ticks.writeStream.format("yirangmq").option("checkpointLocation", str(self.folder / "checkpoint"))
        query = sink.options(broker=self.url, topic="ticked").trigger(processingTime="0 seconds").start()
        warm = 3 * PER_SECOND
        try:
            while query.lastProgress is None:
                time.sleep(0.05)
            Trickle(self.url, round(seconds * PER_SECOND) + warm).run()
            query.processAllAvailable()
        finally:
            query.stop()
        copies = self.spark.read.format("yirangmq").options(path=str(self.folder / "data"), subscribe="ticked").load()
        took = copies.selectExpr("offset", "(unix_micros(timestamp) - cast(cast(value as string) as bigint)) / 1e3 ms")
        late = sorted(row.ms for row in took.where(f"offset > {warm}").collect())
        p50, p95 = (late[round(share * (len(late) - 1))] for share in (0.5, 0.95))
        tell(f"\nMicro-batch latency at {PER_SECOND} a second: p50 {p50:.0f} ms, p95 {p95:.0f} ms, {len(late)} records")
        target("micro-batch latency p95 at 50 msg/s", p95 / 1000, "< 1 s", p95 < 1000, " s")


def on_cluster(folder: Path, url: str, rows: int, runs: Callable[[], int], workers: int) -> float:
    with LocalCluster(folder / f"cluster-{workers}", workers) as cluster:
        spark = session("bench", cluster.master, cluster.settings())
        try:
            bench = Bench(spark, folder, url, rows, runs)
            options = {"broker": url, "columns": "value", "minPartitions": "8"}

            def work(rows: int) -> None:
                found = parse_envelope(bench.topic(rows, **options))
                [row] = found.agg(F.count("*"), F.max("type")).collect()
                assert row[0] == rows

            name = f"{workers} worker{'s' * (workers > 1)} of one core"
            title = f"On a standalone cluster: read over TCP, parse, {rows:,} rows"
            [rate] = bench.rates(title, {name: work}).values()
            return rate
        finally:
            spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the messages, one run")
    parser.add_argument("--only", default="reading,pipeline,writing,latency,cluster", help="which parts, with commas")
    parser.add_argument("--minutes", type=float, default=15, help="the time there is (default: 15)")
    parser.add_argument("--folder", type=Path, default=None, help="where to put the data (default: a temporary folder)")
    chosen = parser.parse_args()
    rows, most = (QUICK_ROWS, 1) if chosen.quick else (ROWS, RUNS)
    begun, patience = time.monotonic(), Patience(chosen.minutes, most)
    parts = chosen.only.split(",")
    folder = Path(tempfile.mkdtemp(prefix="bench-spark-", dir=chosen.folder))
    server = None
    try:
        tell(f"making {rows:,} messages of {SIZE} bytes in {folder}")
        make_messages(folder, rows)
        server = Server(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spark = session("bench", "local[2]")
        bench = Bench(spark, folder, server.url, rows, patience.runs)
        seconds = 3 if chosen.quick else 30
        for name, work in (("reading", bench.reading), ("reading", bench.reading_alone), ("pipeline", bench.pipeline),
                           ("writing", bench.writing), ("latency", lambda: bench.latency(seconds))):  # fmt: skip
            if name in parts:
                work()
        spark.stop()
        if "cluster" in parts:
            few = rows // CLUSTER_SHARE
            one, two = (on_cluster(folder, server.url, few, patience.runs, n) for n in (1, 2))
            target("two workers beside one, standalone cluster", two / one, "told", True, " ×")
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    tell(f"\n{(time.monotonic() - begun) / 60:.1f} minutes")
    tell("\n".join(TARGETS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
