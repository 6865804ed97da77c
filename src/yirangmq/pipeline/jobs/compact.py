"""``compact``: the files of a closed day into few, and ``housekeep``: that for every day, and old days go.

The old files are removed last: after the new ones were read back and found equal in rows, first, last and checksum,
and after the archive lists them."""

from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from yirangmq.core.errors import BadInput, NotFound, StoreDamaged
from yirangmq.pipeline.jobs import archive as archives
from yirangmq.pipeline.jobs import manifest as manifests
from yirangmq.pipeline.jobs.manifest import Manifest, Sums

FILE_BYTES = 128 << 20
KEEP_DAYS = 7


@dataclass(frozen=True, slots=True)
class Compacted:
    day: str
    before: int
    after: int
    sums: Sums


@dataclass(frozen=True, slots=True)
class Kept:
    """What housekeeping did."""

    compacted: tuple[Compacted, ...]
    removed: tuple[str, ...]
    rows_removed: int
    kept: tuple[str, ...]


def compact(spark: SparkSession, folder: Path, day: str, today: date, file_bytes: int = FILE_BYTES) -> Compacted:
    """``BadInput`` for a day that is not over."""
    if read_day(day) >= today:
        raise BadInput(f"{day} is not over; only closed days are compacted", field="day")
    with manifests.alone(folder):
        known = manifests.load(folder)
        manifests.sweep(folder, known)
        if not known.files(day):
            raise NotFound(f"the archive in {folder} holds nothing of {day}", field="day")
        return _compact(spark, folder, known, day, file_bytes)[1]


def housekeep(
    spark: SparkSession, folder: Path, today: date, keep_days: int = KEEP_DAYS, *, dry_run: bool = False
) -> Kept:
    """The last ``keep_days`` days and today stay."""
    if keep_days < 1:
        raise BadInput(f"must be at least 1, not {keep_days}", field="keep-days")
    with manifests.alone(folder):
        known = manifests.load(folder)
        edge = today - timedelta(days=keep_days)
        old = tuple(day for day in sorted(known.days) if read_day(day) < edge)
        kept = tuple(day for day in sorted(known.days) if day not in old)
        rows = Sums.together(file.sums for day in old for file in known.files(day)).rows
        done = []
        if not dry_run:
            manifests.sweep(folder, known)
            for day in kept:
                if read_day(day) < today and len(known.files(day)) > 1:
                    known, made = _compact(spark, folder, known, day, FILE_BYTES)
                    done.append(made)
            manifests.save(folder, known.without(old))
            manifests.sweep(folder, known.without(old))
    return Kept(tuple(done), old, rows, kept)


def _compact(
    spark: SparkSession, folder: Path, known: Manifest, day: str, file_bytes: int
) -> tuple[Manifest, Compacted]:
    before = known.files(day)
    wanted = Sums.together(file.sums for file in before)
    size = sum((folder / file.name).stat().st_size for file in before)
    rows = archives.read_archive(spark, folder, [day])
    files, sums = archives.write(rows, folder, archives.sequence_of(rows), max(1, -(-size // file_bytes)))
    if sums != wanted or set(files) != {day}:
        raise StoreDamaged(f"{day} holds {sums}, and the archive lists {wanted}; nothing was removed")
    made = known.with_day(day, files[day])
    manifests.save(folder, made)
    manifests.sweep(folder, made)
    return made, Compacted(day, len(before), len(files[day]), sums)


def read_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{text!r} is no day such as 2026-03-01", field="day") from None
