"""Housekeeping of files by date: seven days stay, the undelivered stay, and a dry run changes nothing."""

import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.support.day_files import DAY_MS, Kept, keeping
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.core.errors import BadInput
from yirangmq.core.journal import day_of
from yirangmq.format.journal_line import read
from yirangmq.stores.journal import files
from yirangmq.stores.journal.maintenance import JournalRetention, housekeep

HOUR_MS = 3_600_000


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Kept]:
    with keeping("sqlite", tmp_path) as made:
        yield made


def live(kept: Kept, days: int) -> None:
    """A message a day, delivered at once."""
    for _ in range(days):
        kept.queues.publish("q", b"x")
        kept.queues.ack(kept.queues.lease("q")[0].lease_id)
        kept.clock.advance(DAY_MS)
    kept.store.start_day()


def keep(kept: Kept, *, dry_run: bool = False) -> JournalRetention:
    return housekeep(kept.root, kept.queues.read, day_of(kept.clock.now_ms()), dry_run=dry_run)


def tree(root: Path) -> dict[str, tuple[int, float]]:
    found = [path for path in root.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime) for path in found}


def test_files_by_date_housekeeping_removes_day_eight_and_keeps_day_seven(kept: Kept) -> None:
    live(kept, 9)
    before = tree(kept.root)
    would = keep(kept, dry_run=True)
    assert tree(kept.root) == before
    done = keep(kept)
    assert done == would
    assert done.removed == ["2026-01-13", "2026-01-14"]
    assert done.freed > 0
    assert files.day_names(kept.root) == [f"2026-01-{day}" for day in range(15, 23)]
    assert keep(kept).removed == []


def test_files_by_date_housekeeping_keeps_a_day_with_an_unsettled_message(kept: Kept) -> None:
    kept.queues.publish_many("slow", [b"waits", b"dies"])
    live(kept, 12)
    told = {one.day: one.why for one in keep(kept).kept}
    assert told["2026-01-13"] == "message m-1 of slow is ready"
    assert "2026-01-14" not in told

    kept.queues.ack(kept.queues.lease("slow")[0].lease_id)
    kept.queues.nack(kept.queues.lease("slow")[0].lease_id, "REJECTED")
    assert keep(kept).kept[0] == ("2026-01-13", "message m-2 of slow is dead")
    DeadLetters(kept.queues).purge("slow", all=True)
    assert keep(kept).removed == ["2026-01-13"]


def test_files_by_date_housekeeping_keeps_the_week_when_the_clock_jumps_a_month_ahead(one: Kept) -> None:
    live(one, 7)
    week = files.day_names(one.root)
    assert len(week) == 8
    one.clock.advance(31 * DAY_MS)
    live(one, 0)
    assert keep(one).removed == week[:1]
    one.clock.advance(HOUR_MS)
    assert keep(one).removed == []
    for n in range(1, 8):  # from there on a day goes for each that is lived through
        one.clock.advance(DAY_MS)
        live(one, 0)
        assert keep(one).removed == [week[n]]


def test_files_by_date_removal_of_a_folder_that_was_interrupted_finishes_at_the_next_start(one: Kept) -> None:
    live(one, 2)
    going = one.root / ".going-2026-01-01"
    going.mkdir()
    (going / "00000001.jsonl").write_bytes(b"x\n")
    one.killed()
    assert not going.exists()
    assert files.day_names(one.root) == ["2026-01-13", "2026-01-14", "2026-01-15"]


def test_files_by_date_housekeeping_does_not_depend_on_the_time_zone(one: Kept) -> None:
    """Also at the hours at which its clocks are put forward and back."""
    live(one, 9)
    found = []
    zone = os.environ.get("TZ")
    try:
        for name in ("UTC", "Pacific/Kiritimati", "America/New_York", "Europe/Berlin"):
            os.environ["TZ"] = name
            time.tzset()
            found.append(keep(one, dry_run=True).removed)
    finally:
        os.environ.pop("TZ") if zone is None else os.environ.update(TZ=zone)
        time.tzset()
    assert found == [["2026-01-13", "2026-01-14"]] * 4


def test_files_by_date_housekeeping_never_removes_the_day_being_written(one: Kept) -> None:
    one.queues.publish("q", b"x")
    one.queues.ack(one.queues.lease("q")[0].lease_id)
    days = [f"2026-02-{day:02d}" for day in range(1, 12)]
    for number, day in enumerate(days, 100):
        (one.root / day).mkdir()
        (one.root / day / f"{number:08d}.jsonl").touch()
    told = housekeep(one.root, one.queues.read, "2026-03-30")
    assert told.kept[0] == ("2026-01-13", "it is being written")
    with pytest.raises(ValueError, match="is being written"):
        one.store.files.remove("2026-01-13")


def test_files_by_date_housekeeping_refuses_to_keep_less_than_one_day(one: Kept) -> None:
    with pytest.raises(BadInput, match="days"):
        housekeep(one.root, one.queues.read, "2026-01-13", 0)


def test_files_by_date_snapshot_replaces_the_snapshot_of_the_same_hour(one: Kept) -> None:
    for text in (b"1\n", b"2\n"):
        one.store.files.write_extra_file("2026-01-13", "counts-09.json", text)
    assert (one.root / "2026-01-13" / "counts-09.json").read_bytes() == b"2\n"
    assert [path.name for path in (one.root / "2026-01-13").iterdir()] == ["counts-09.json"]


# -- days of a time zone -----------------------------------------------------------------------------------------------

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize("zone", ["Asia/Hong_Kong", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe"])
@pytest.mark.parametrize("start", ["2026-03-28", "2026-10-24"])
def test_files_by_date_in_a_zone_are_in_the_folder_of_the_local_day_and_kept_by_it(
    tmp_path: Path, zone: str, start: str
) -> None:
    """Nine days around a change of the clocks, with a killed process at each local midnight and in the night's hours:
    each message is in the folder of its local day, the comparison at the start finds nothing, and the eighth day goes
    at the local midnight, not at that of UTC."""
    there = ZoneInfo(zone)
    with keeping("sqlite", tmp_path, there) as kept:
        first = datetime.fromisoformat(f"{start}T12:00").replace(tzinfo=there)
        kept.clock.advance(round(first.timestamp() * 1000) - kept.clock.now_ms())
        sent: list[tuple[str, str]] = []
        while True:
            day = day_of(kept.clock.now_ms(), there)
            if len({one for one, _ in sent} | {day}) > 9:
                break
            if (datetime.fromtimestamp(kept.clock.now_ms() / 1000, there).hour) in (23, 0, 2):
                kept.killed()
                assert kept.store.findings == []
            sent.append((day, kept.queues.publish("q", b"x").id))
            kept.queues.ack(kept.queues.lease("q")[0].lease_id)
            kept.clock.advance(HOUR_MS)
        kept.store.start_day()
        kept.agrees()
        found = [
            (name.partition("/")[0], one["messageId"])
            for name in files.files(kept.root)
            for one in map(read, files.lines(kept.root / name))
            if one["record"] == "accepted"
        ]
        assert found == sent
        days = sorted({day for day, _ in sent})
        now, root, read_store = kept.clock.now_ms(), kept.root, kept.queues.read
        assert housekeep(root, read_store, day_of(now - HOUR_MS, there), dry_run=True).removed == days[:1]
        assert housekeep(root, read_store, day_of(now, there)).removed == days[:2], "from midnight there"


@pytest.mark.parametrize(("before", "after"), [("Pacific/Kiritimati", "Pacific/Pago_Pago"), ("UTC", "Asia/Hong_Kong")])
def test_files_by_date_zone_may_change_between_two_starts(tmp_path: Path, before: str, after: str) -> None:
    """A change of the zone moves later records to another day, also to an earlier one; nothing is lost or compared
    wrongly, and the day that is written is not removed."""
    with keeping("sqlite", tmp_path, ZoneInfo(before)) as kept:
        for _ in range(30):
            kept.queues.publish("q", b"x")
            kept.clock.advance(HOUR_MS)
        kept.zone = ZoneInfo(after)
        kept.killed()
        assert kept.store.findings == []
        for _ in range(30):
            kept.queues.publish("q", b"x")
            kept.clock.advance(HOUR_MS)
        kept.killed()
        assert kept.store.findings == []
        kept.agrees()
        assert len(kept.records) == 60
