"""The archive: each record once, compared before it is listed, and what was stopped in the middle is made good."""

import json
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from tests.pipeline import made_data
from tests.pipeline.made_data import MESSAGES, NOW, RECORDS
from yirangmq.core.errors import BadInput, NotFound, StoreBusy, StoreDamaged
from yirangmq.pipeline.jobs import archive as archives
from yirangmq.pipeline.jobs import manifest
from yirangmq.pipeline.jobs.archive import archive, compact, housekeep, read_archive

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
TODAY = NOW.date()


def day_of(row: dict[str, Any]) -> str:
    return str(row["timestamp"].date().isoformat())


def test_archive_adds_records_once_by_date_with_their_envelopes(spark: SparkSession, tmp_path: Path) -> None:
    rows = made_data.records(90)
    first = archive(made_data.frame(spark, rows[:50], RECORDS), tmp_path, "topic:*")
    assert (first.sums.rows, first.sums.first, first.sums.last, first.last) == (50, 1, 50, 50)
    second = archive(made_data.frame(spark, rows, RECORDS), tmp_path, "topic:*")
    assert (second.sums.rows, second.sums.first, second.last) == (40, 51, 90)
    third = archive(made_data.frame(spark, rows, RECORDS), tmp_path, "topic:*")
    assert (third.sums.rows, third.files, third.last) == (0, 0, 90)

    found = read_archive(spark, tmp_path)
    names = [part.split()[0] for part in RECORDS.split(", ")]
    assertDataFrameEqual(found.select(*names), made_data.frame(spark, rows, RECORDS))
    assert {str(row["date"]): row["count"] for row in found.groupBy("date").count().collect()} == Counter(
        map(day_of, rows)
    )
    envelope = found.where("global_seq = 3").select("message_id", "type", "version").collect()
    assert [tuple(row) for row in envelope] == [("r-3", "quote", 1)]
    assert all("zstd" in path.name for path in tmp_path.glob("date=*/*"))
    with pytest.raises(BadInput, match=r"is the archive of topic:\*, not of topic:other"):
        archive(made_data.frame(spark, rows, RECORDS), tmp_path, "topic:other")


def test_archive_includes_messages_that_end_late(spark: SparkSession, tmp_path: Path) -> None:
    rows = [row for row in made_data.messages() if row["status"] == "done"][:40]
    archive(made_data.frame(spark, rows[10:30], MESSAGES), tmp_path, "queue:*")
    added = archive(made_data.frame(spark, rows, MESSAGES), tmp_path, "queue:*")
    assert added.sums.rows == 20
    ids = [row["message_id"] for row in read_archive(spark, tmp_path).select("message_id").collect()]
    assert sorted(ids) == sorted(row["message_id"] for row in rows)


def test_archive_ignores_files_that_are_not_in_its_manifest_until_the_next_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = made_data.frame(spark, made_data.records(20), RECORDS)
    archive(frame.where("global_seq <= 10"), tmp_path, "topic:*")
    listed = manifest.load(tmp_path)
    archives.write(archives._shaped(frame.where("global_seq > 10")), tmp_path, "global_seq")  # and then stopped
    assert manifest.load(tmp_path) == listed
    assert len(list(tmp_path.glob("date=*/*"))) > len(listed.files())
    assert read_archive(spark, tmp_path).count() == 10
    assert archive(frame, tmp_path, "topic:*").sums.rows == 10
    assert read_archive(spark, tmp_path).count() == 20
    assert len(list(tmp_path.glob("date=*/*"))) == len(manifest.load(tmp_path).files())


def test_archive_compaction_merges_a_closed_day_and_housekeeping_removes_old_days(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = made_data.records(90)
    for edge in (30, 60, 90):
        archive(made_data.frame(spark, rows[:edge], RECORDS), tmp_path, "topic:*")
    before = [tuple(row) for row in read_archive(spark, tmp_path).orderBy("global_seq").collect()]
    days = sorted(manifest.load(tmp_path).days)
    busy = max(days, key=lambda day: len(manifest.load(tmp_path).files(day)))
    made = compact(spark, tmp_path, busy, TODAY + timedelta(days=1))
    of_day = [row for row in rows if day_of(row) == busy]
    assert (made.after, made.before > 1) == (1, True)
    assert (made.sums.rows, made.sums.first, made.sums.last) == (
        len(of_day),
        of_day[0]["global_seq"],
        of_day[-1]["global_seq"],
    )
    assert len(list((tmp_path / f"date={busy}").iterdir())) == 1
    assert [tuple(row) for row in read_archive(spark, tmp_path).orderBy("global_seq").collect()] == before

    today = date.fromisoformat(days[-1])
    looked = housekeep(spark, tmp_path, today, 2, dry_run=True)
    assert looked.removed == (days[0],)
    assert manifest.load(tmp_path).days.keys() == set(days)
    kept = housekeep(spark, tmp_path, today, 2)
    gone = [row for row in rows if day_of(row) == days[0]]
    assert (kept.removed, kept.rows_removed, kept.kept) == ((days[0],), len(gone), tuple(days[1:]))
    assert not (tmp_path / f"date={days[0]}").exists()
    assert read_archive(spark, tmp_path).count() == len(rows) - len(gone)
    assert archive(made_data.frame(spark, rows, RECORDS), tmp_path, "topic:*").sums.rows == 0  # it does not come back


def test_archive_compaction_removes_nothing_if_the_day_is_open_unknown_or_differs_from_the_manifest(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive(made_data.frame(spark, made_data.records(30), RECORDS), tmp_path, "topic:*")
    listed = manifest.load(tmp_path)
    day = sorted(listed.days)[0]
    with pytest.raises(BadInput, match=r"day: .* is not over"):
        compact(spark, tmp_path, day, date.fromisoformat(day))
    with pytest.raises(NotFound, match="no files of 2001-01-01"):
        compact(spark, tmp_path, "2001-01-01", TODAY)
    with pytest.raises(BadInput, match="is not a day"):
        compact(spark, tmp_path, "yesterday", TODAY)
    value = json.loads((tmp_path / manifest.MANIFEST_NAME).read_text())
    value["days"][day][0]["sums"]["checksum"] = "1"
    (tmp_path / manifest.MANIFEST_NAME).write_text(json.dumps(value))
    with pytest.raises(StoreDamaged, match="nothing was removed"):
        compact(spark, tmp_path, day, TODAY + timedelta(days=1))
    assert read_archive(spark, tmp_path).count() == 30
    (tmp_path / listed.files()[0].name).unlink()
    with pytest.raises(StoreDamaged, match="is listed in the archive and not there"):
        read_archive(spark, tmp_path)


def test_archive_refuses_a_second_job_at_the_same_time_and_a_missing_or_unreadable_manifest(
    spark: SparkSession, tmp_path: Path
) -> None:
    with manifest.archive_lock(tmp_path), pytest.raises(StoreBusy, match="another job"):
        archive(made_data.frame(spark, made_data.records(3), RECORDS), tmp_path, "topic:*")
    with pytest.raises(NotFound, match="there is no archive"):
        read_archive(spark, tmp_path)
    (tmp_path / manifest.MANIFEST_NAME).write_text("{")
    with pytest.raises(StoreDamaged, match="cannot be read"):
        read_archive(spark, tmp_path)


def test_archive_housekeeping_keeps_seven_days_before_today(spark: SparkSession, tmp_path: Path) -> None:
    rows = [row | {"timestamp": NOW - timedelta(days=n)} for n, row in enumerate(made_data.records(10))]
    archive(made_data.frame(spark, rows, RECORDS), tmp_path, "topic:*")
    looked = housekeep(spark, tmp_path, TODAY, dry_run=True)
    assert looked.removed == tuple((TODAY - timedelta(days=n)).isoformat() for n in (9, 8))
    assert looked.kept[0] == (TODAY - timedelta(days=7)).isoformat()
    assert looked.rows_removed == 2
