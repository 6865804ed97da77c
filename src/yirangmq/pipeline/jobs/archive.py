"""Archive jobs: ``archive`` to Parquet files by date, ``compact`` for closed days, ``housekeep`` for retention.

Topic records or finished messages are archived once each. A repeated run adds new rows only: of a topic the records
after the last sequence, of queues the messages that are not in the archive yet. Written files are read back and
compared with their input (rows, first, last, checksum) before the manifest lists them.

Compaction joins the files of a day that is over into few. The old files are removed last: after the new files compared
equal and are listed. The manifest is ``pipeline.jobs.manifest``."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from yirangmq.core.errors import BadInput, NotFound, StoreDamaged
from yirangmq.pipeline import steps
from yirangmq.pipeline.jobs import manifest as manifests
from yirangmq.pipeline.jobs.manifest import STAGING, ArchiveFile, Manifest, RowSummary

# -- archive -----------------------------------------------------------------------------------------------------------

ENVELOPE = ("message_id", "type", "version", "sent_at", "attributes", "trace_id")
COMPARED = "rows, first, last and checksum"


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """Result of an archive run: ``sums`` of the added rows; ``last`` is the last archived sequence."""

    sums: RowSummary
    last: int
    days: tuple[str, ...]
    files: int


def archive(frame: DataFrame, folder: Path, of: str) -> ArchiveResult:
    """Add new rows of the data source to the archive: of a topic (``global_seq``) or of queues (``seq``)."""
    with manifests.archive_lock(folder):
        known = manifests.load_or_create(folder, of)
        manifests.remove_unlisted(folder, known)
        rows = _shaped(_new_rows(frame, folder, known))
        files, sums = write(rows, folder, sequence_of(frame))
        if not sums.rows:
            return ArchiveResult(sums, known.last, (), 0)
        made = replace(known, last=max(known.last, sums.last))
        for day, added in files.items():
            made = made.with_day(day, (*known.days.get(day, ()), *added))
        manifests.save(folder, made)
    return ArchiveResult(sums, made.last, tuple(sorted(files)), sum(map(len, files.values())))


def read_archive(spark: SparkSession, folder: Path, days: Sequence[str] | None = None) -> DataFrame:
    """Read the listed files only, with a column ``date``."""
    found = manifests.load(folder)
    files = [file for day in (days if days is not None else [None]) for file in found.files(day)]
    if not files:
        raise NotFound(f"the archive in {folder} has no files" + (f" of {', '.join(days)}" if days else ""))
    return read_files(spark, folder, [file.name for file in files])


def read_files(spark: SparkSession, folder: Path, names: Sequence[str]) -> DataFrame:
    for name in names:
        if not (folder / name).exists():
            raise StoreDamaged(f"{folder / name} is listed in the archive and not there")
    return spark.read.option("basePath", str(folder)).parquet(*(str(folder / name) for name in names))


def sequence_of(frame: DataFrame) -> str:
    return "global_seq" if "global_seq" in frame.columns else "seq"


def _new_rows(frame: DataFrame, folder: Path, known: Manifest) -> DataFrame:
    if sequence_of(frame) == "global_seq":
        return frame.where(F.col("global_seq") > known.last)
    files = [file.name for file in known.files()]
    if not files:
        return frame
    there = read_files(frame.sparkSession, folder, files).select("queue", "message_id")
    return frame.join(there, ["queue", "message_id"], "left_anti")


def _shaped(frame: DataFrame) -> DataFrame:
    """Add the members of an envelope and the day as columns."""
    time = "timestamp" if "timestamp" in frame.columns else "changed_at"
    if time == "timestamp":
        read = steps.parse_envelope(frame)
        frame = read.select(*frame.columns, *(name for name in ENVELOPE if name not in frame.columns))
    return frame.withColumn("date", F.date_format(time, "yyyy-MM-dd"))


def write(
    rows: DataFrame, folder: Path, sequence: str, files_a_day: int = 0
) -> tuple[dict[str, list[ArchiveFile]], RowSummary]:
    """Write rows with a column ``date``, read them back, compare, and move the files to their days. They are not listed
    yet."""
    staging = folder / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    seen = Observation("archive")
    if files_a_day:
        rows = rows.repartitionByRange(files_a_day, sequence)
    observed = rows.observe(seen, *_sums(sequence)).sortWithinPartitions("date", sequence)
    observed.write.partitionBy("date").option("compression", "zstd").parquet(str(staging))
    wanted = _as_sums(seen.get)
    if not wanted.rows:
        shutil.rmtree(staging)
        return {}, wanted
    found = _read_back(rows.sparkSession, staging, sequence)
    got = RowSummary.combine(sums for _, _, sums in found)
    if got != wanted:
        raise StoreDamaged(f"what was written is not what was read ({COMPARED}): {got}, not {wanted}")
    files: dict[str, list[ArchiveFile]] = {}
    for number, (path, day, sums) in enumerate(found):
        name = f"{sums.first:020d}-{sums.last:020d}-{number:05d}.zstd.parquet"
        while (folder / f"date={day}" / name).exists():
            name = f"0{name}"  # compacting a day of one file: both files exist for a moment
        files.setdefault(day, []).append(ArchiveFile(manifests.move_staged(folder, path, day, name), sums))
    shutil.rmtree(staging)
    return files, wanted


def _read_back(spark: SparkSession, staging: Path, sequence: str) -> list[tuple[Path, str, RowSummary]]:
    rows = spark.read.parquet(str(staging))
    found = rows.groupBy(F.col("_metadata.file_path").alias("path")).agg(*_sums(sequence)).collect()
    made = []
    for row in sorted(found, key=lambda row: (row["first"], row["path"])):
        path = Path(unquote(urlsplit(row["path"]).path))
        made.append((path, path.parent.name.removeprefix("date="), _as_sums(row.asDict())))
    return made


def _sums(sequence: str) -> list[Column]:
    hashed = F.xxhash64(sequence, "value").cast("decimal(38,0)")
    return [
        F.count(F.lit(1)).alias("rows"),
        F.coalesce(F.min(sequence), F.lit(0)).alias("first"),
        F.coalesce(F.max(sequence), F.lit(0)).alias("last"),
        F.coalesce(F.sum(hashed), F.lit(0).cast("decimal(38,0)")).cast("string").alias("checksum"),
    ]


def _as_sums(row: dict[str, Any]) -> RowSummary:
    return RowSummary(int(row["rows"]), int(row["first"]), int(row["last"]), str(row["checksum"]))


# -- compaction and retention ------------------------------------------------------------------------------------------

FILE_BYTES = 128 << 20
KEEP_DAYS = 7


@dataclass(frozen=True, slots=True)
class CompactedDay:
    day: str
    before: int
    after: int
    sums: RowSummary


@dataclass(frozen=True, slots=True)
class ArchiveHousekeepingResult:
    """Result of a housekeeping run."""

    compacted: tuple[CompactedDay, ...]
    removed: tuple[str, ...]
    rows_removed: int
    kept: tuple[str, ...]


def compact(spark: SparkSession, folder: Path, day: str, today: date, file_bytes: int = FILE_BYTES) -> CompactedDay:
    """Join the files of a day into few. ``BadInput`` if the day is not over."""
    if read_day(day) >= today:
        raise BadInput(f"{day} is not over; only closed days are compacted", field="day")
    with manifests.archive_lock(folder):
        known = manifests.load(folder)
        manifests.remove_unlisted(folder, known)
        if not known.files(day):
            raise NotFound(f"the archive in {folder} has no files of {day}", field="day")
        return _compact(spark, folder, known, day, file_bytes)[1]


def housekeep(
    spark: SparkSession, folder: Path, today: date, keep_days: int = KEEP_DAYS, *, dry_run: bool = False
) -> ArchiveHousekeepingResult:
    """Compact closed days and remove days before the last ``keep_days`` days. Today is always kept."""
    if keep_days < 1:
        raise BadInput(f"must be at least 1, not {keep_days}", field="keep-days")
    with manifests.archive_lock(folder):
        known = manifests.load(folder)
        edge = today - timedelta(days=keep_days)
        old = tuple(day for day in sorted(known.days) if read_day(day) < edge)
        kept = tuple(day for day in sorted(known.days) if day not in old)
        rows = RowSummary.combine(file.sums for day in old for file in known.files(day)).rows
        done = []
        if not dry_run:
            manifests.remove_unlisted(folder, known)
            for day in kept:
                if read_day(day) < today and len(known.files(day)) > 1:
                    known, made = _compact(spark, folder, known, day, FILE_BYTES)
                    done.append(made)
            manifests.save(folder, known.without(old))
            manifests.remove_unlisted(folder, known.without(old))
    return ArchiveHousekeepingResult(tuple(done), old, rows, kept)


def _compact(
    spark: SparkSession, folder: Path, known: Manifest, day: str, file_bytes: int
) -> tuple[Manifest, CompactedDay]:
    before = known.files(day)
    wanted = RowSummary.combine(file.sums for file in before)
    size = sum((folder / file.name).stat().st_size for file in before)
    rows = read_archive(spark, folder, [day])
    files, sums = write(rows, folder, sequence_of(rows), max(1, -(-size // file_bytes)))
    if sums != wanted or set(files) != {day}:
        raise StoreDamaged(f"{day} holds {sums}, and the archive lists {wanted}; nothing was removed")
    made = known.with_day(day, files[day])
    manifests.save(folder, made)
    manifests.remove_unlisted(folder, made)
    return made, CompactedDay(day, len(before), len(files[day]), sums)


def read_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{text!r} is not a day such as 2026-03-01", field="day") from None
