"""Files by date in Spark: each record a row, each message a row, and the jobs on top of them."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.pipeline import commands
from tests.support.pipeline_server import Served
from yirangmq import NewMessage
from yirangmq.broker.queues import Queues
from yirangmq.pipeline import run_registry
from yirangmq.pipeline.jobs.analysis import settled
from yirangmq.pipeline.jobs.archive import archive, compact, housekeep, read_archive
from yirangmq.pipeline.jobs.report import report
from yirangmq.pipeline.run_registry import DataAccess, JobSource
from yirangmq.pipeline.source.options import QUEUE_COLUMNS
from yirangmq.stores.journal.files import JournalFiles, files
from yirangmq.stores.journal.store import JournaledStore
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import START_MS, CountingIds, ManualClock, open_for_test

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
DAY_MS = 86_400_000
BINARY = bytes(range(256))


class Week(NamedTuple):
    folder: Path
    queues: Queues
    clock: ManualClock


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Week]:
    """Three days with four messages each: two delivered, one dead, one that waits; and a queue that was deleted."""
    folder, clock = tmp_path_factory.mktemp("week") / "by-date", ManualClock(START_MS + 4 * DAY_MS)  # a Saturday
    store = JournaledStore(MemoryStore(), JournalFiles(folder, durability="os"), clock)
    queues = open_for_test(store=store, clock=clock, ids=CountingIds())
    for day in range(3):
        batch = [NewMessage(payload={"day": day}, type="text", priority=1), BINARY, b"dies"]
        queues.publish_many(f"q{day % 2}", batch)
        queues.publish("w", b"waits")
        clock.advance(1000)
        first, second, third = queues.lease(f"q{day % 2}", 3, consumer="w")
        clock.advance(2000)
        queues.ack([first.lease_id, second.lease_id])
        queues.nack(third.lease_id, "REJECTED", "never")
        if day == 1:
            queues.publish("gone", b"with its queue")
            queues.delete_queue("gone")
        clock.advance(DAY_MS - 3000)
    with (folder / files(folder)[-1]).open("ab") as file:
        file.write(b'{"record":"accepted","at":"20')  # being written
    yield Week(folder, queues, clock)
    store.close()


def rows(frame: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def test_files_by_date_give_spark_a_row_per_record_and_a_row_per_message(spark: SparkSession, week: Week) -> None:
    records = spark.read.format("yirangmq").options(source="files", path=str(week.folder)).load()
    assert set(QUEUE_COLUMNS) <= set(records.columns)
    counts = {
        (row["record"], row["status"]): row["count"] for row in records.groupBy("record", "status").count().collect()
    }
    assert counts == {
        ("accepted", "ready"): 13,
        ("outcome", "done"): 6,
        ("outcome", "dead"): 3,
        ("queue_deleted", "dropped"): 1,
    }
    found = rows(run_registry.read(spark, JobSource("files", str(week.folder)), DataAccess()))
    assert len({(one["queue"], one["message_id"]) for one in found}) == len(found) == 13
    assert {one["status"] for one in found if one["queue"] == "gone"} == {"dropped"}
    binary = next(one for one in found if one["message_id"] == "m-2")
    assert (bytes(binary["value"]), binary["status"], binary["worker"]) == (BINARY, "done", "w")
    assert (binary["leased_at"] - binary["enqueued_at"]).total_seconds() == 1
    text = next(one for one in found if one["message_id"] == "m-1")
    assert (bytes(text["value"]), text["type"], text["priority"], text["attempt"]) == (b'{"day":0}', "text", 1, 1)
    dead = next(one for one in found if one["status"] == "dead")
    assert (dead["failure_reason"], dead["failure_message"], dead["delivery"]) == ("REJECTED", "never", "FAILED")
    some = spark.read.format("yirangmq").options(
        source="files", path=str(week.folder), days="2026-01-17,2026-01-18", queue="q1", columns="seq,value"
    )
    assert (some.load().columns, some.load().count()) == (["seq", "value"], 6)


def test_files_by_date_can_be_reported_archived_compacted_and_housekept(
    spark: SparkSession, week: Week, tmp_path: Path
) -> None:
    place, reach = JobSource("files", str(week.folder)), DataAccess()
    now = datetime.fromtimestamp(week.clock.now_ms() / 1000, UTC)
    told = report(run_registry.read(spark, place, reach), now)
    weeks = {(row["queue"], str(row["week"])): row["published"] for row in told["weeks"].collect()}
    assert weeks == {
        ("gone", "2026-01-12"): 1,
        ("q0", "2026-01-12"): 3,
        ("q0", "2026-01-19"): 3,
        ("q1", "2026-01-12"): 3,
        ("w", "2026-01-12"): 2,
        ("w", "2026-01-19"): 1,
    }
    waits = [row for row in told["times"].collect() if row["span"] == "wait" and row["queue"] == "q0"]
    assert [row["p95"] for row in waits] == [1.0]

    def added() -> int:
        return archive(settled(run_registry.read_day_files(spark, place)), tmp_path, str(place)).sums.rows

    assert (added(), added()) == (7, 0)
    kept = read_archive(spark, tmp_path)
    assert {row["status"]: row["count"] for row in kept.groupBy("status").count().collect()} == {
        "done": 6,
        "dropped": 1,
    }
    made = compact(spark, tmp_path, "2026-01-18", date(2026, 1, 26))
    assert (made.sums.rows, made.after) == (3, 1)
    assert housekeep(spark, tmp_path, date(2026, 1, 26), dry_run=True).removed == ("2026-01-17", "2026-01-18")


def test_files_by_date_can_be_read_by_the_poison_and_replay_commands(
    spark: SparkSession, week: Week, served: Served, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YIRANGMQ_BROKER", served.url)
    command = commands.made(capfdbinary)
    poison = command(f"pipeline poison --from files:{week.folder} --least 2 --json").json
    dead = [("q0", 2, 2, 1, ["REJECTED"])]  # two of q0 died, one of q1
    assert [
        (row["queue"], row["messages"], row["failures"], row["workers"], row["reasons"]) for row in poison["payloads"]
    ] == dead
    line = f"pipeline replay --from files:{week.folder} --to queue:f.again --name files-1 --where \"status = 'done'\""
    line += " --since 2026-01-18 --json"
    assert command(f"{line} --dry-run").json["count"] == 4
    assert command(line).json["count"] == 4
    assert command(line).json["first"] is False
    assert served.payloads("f.again") == [b'{"day":1}', b'{"day":2}', BINARY, BINARY]  # those have a priority


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"path": "/nowhere"}, "cannot be read"),
        ({"days": "today"}, "is not a day"),
        ({"subscribe": "t"}, "does not apply to files by date"),
        ({"columns": "postion"}, "did you mean position"),
    ],
    ids=["path", "days", "subscribe", "columns"],
)
def test_files_by_date_with_wrong_options_are_refused(
    spark: SparkSession, week: Week, more: dict[str, str], why: str
) -> None:
    options = {"source": "files", "path": str(week.folder), **more}
    with pytest.raises(Exception, match=why):
        spark.read.format("yirangmq").options(**options).load().count()
