"""A log whose disk refuses, and a writer that is killed: at every single step, nothing confirmed is lost, nothing is
half-done, and what was refused is not there."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.faulty_disk import UnwillingDisk, dead_from, full_from, full_once, willing
from tests.support.segment_log import SMALL, CarelessDisk, Killed, MortalDisk, fill, new, open_log, segments, sequences
from yirangmq.core.errors import QueueError, StoreError, StoreFull, StoreReadOnly
from yirangmq.core.topics import NewRecord, Record
from yirangmq.fsio.disk import LARGE, Disk
from yirangmq.stores.log.log import SegmentLog
from yirangmq.stores.log.readonly import SegmentView

TRIMS = {9: 10, 14: 20, 24: 40}
"""After which append to trim, and to where."""
APPENDS = 34
Refuse = Callable[[int, str], int]


class TouchyDisk(UnwillingDisk, CarelessDisk):
    """Refuses as told, and is quick."""


class Story:
    """A little life of a log: appends over several segments, with files retired and used again."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder = folder
        self.disk = disk
        self.confirmed: list[int] = []
        self.errors: list[QueueError] = []
        self.epochs: set[str] = set()

    def run(self) -> None:
        try:
            log = SegmentLog(self.folder, SMALL, disk=self.disk)
        except QueueError as error:
            self.errors.append(error)
            return
        self.epochs.add(log.epoch)
        try:
            for turn in range(APPENDS):
                self._append(log, turn)
                if turn in TRIMS:
                    self._trim(log, TRIMS[turn])
        finally:
            self._close(log)

    def _append(self, log: SegmentLog, turn: int) -> None:
        before = log.last
        try:
            done = log.append(new(2, ("trades", "quotes")[turn % 2], 250, turn))
        except QueueError as error:
            self.errors.append(error)
            assert log.last == before
        else:
            assert done.first == before + 1
            self.confirmed += range(done.first, done.last + 1)

    def _trim(self, log: SegmentLog, before: int) -> None:
        try:
            log.trim(before)
        except QueueError as error:
            self.errors.append(error)

    def _close(self, log: SegmentLog) -> None:
        try:
            log.close()
        except QueueError as error:
            self.errors.append(error)

    def check(self) -> list[Record]:
        """Open what is left, with a disk that does what it is asked."""
        with open_log(self.folder) as log:
            found = list(log.reader().records(log.first))
            assert self.epochs <= {log.epoch}
            assert log.gaps() == []
            assert sequences(found) == list(range(log.first, log.last + 1))
            assert {number for number in self.confirmed if number >= log.first} <= set(sequences(found))
            assert log.first <= max(TRIMS.values())
            numbers = {topic: [r.topic_sequence for r in found if r.topic == topic] for topic in log.topics()}
            for mine in numbers.values():
                assert mine == list(range(mine[0], mine[0] + len(mine))) if mine else True
            assert log.append(new(1)).first == len(sequences(found)) + log.first
            return found


def calls_of_a_whole_story(tmp_path: Path) -> int:
    disk = TouchyDisk()
    story = Story(tmp_path / "whole", disk)
    story.run()
    assert story.errors == []
    assert len(story.confirmed) == 2 * APPENDS
    return len(disk.calls)


@pytest.mark.parametrize("how", [full_once, full_from, dead_from], ids=lambda how: how.__name__)
def test_fault_injection_at_every_disk_call_loses_no_confirmed_record(
    tmp_path: Path, how: Callable[[int], Refuse]
) -> None:
    whole = calls_of_a_whole_story(tmp_path)
    assert whole > 100
    refused = 0
    for at in range(1, whole + 1):
        disk = TouchyDisk()
        disk.start(how(at))
        story = Story(tmp_path / f"{at}", disk)
        story.run()
        refused += bool(story.errors)
        disk.start(willing)
        if story.epochs or story.folder.exists():
            story.check()
    assert refused > whole // 3


class DyingStory(Story):
    def _close(self, log: SegmentLog) -> None:
        """The system lets go of what a killed process held."""
        log._lock.close()
        log._appender._disk = CarelessDisk()
        log._appender.close()


@pytest.mark.parametrize("share", [0, 0.3, 0.5, 1])
def test_killed_writer_at_any_step_leaves_a_log_that_opens_with_every_confirmed_record(
    tmp_path: Path, share: float
) -> None:
    at, lived = 0, False
    while not lived:
        at += 1
        story = DyingStory(tmp_path / f"{at}", MortalDisk(at, share))
        try:
            story.run()
            lived = True
        except Killed:
            pass
        if story.epochs or story.folder.exists():
            found = story.check()
            assert len(found) <= len(story.confirmed) + 2
    assert at > 100


verbs = st.one_of(
    st.tuples(
        st.just("append"), st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1500)), min_size=1, max_size=6)
    ),
    st.tuples(st.just("trim"), st.integers(0, 60)),
    st.tuples(st.just("mend"), st.none()),
    st.tuples(st.just("open again"), st.none()),
)


@given(st.lists(st.tuples(st.lists(verbs, max_size=8), st.integers(1, 60), st.floats(0, 1)), min_size=1, max_size=4))
def test_killed_writer_several_times_at_any_step_leaves_one_consistent_log(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[list[tuple[str, Any]], int, float]]
) -> None:
    """Each life goes on with what the one before it left, and is killed after so many steps."""
    folder = tmp_path_factory.mktemp("lives") / "log"
    told: dict[int, tuple[str, bytes]] = {}
    epochs: set[str] = set()
    for life, steps, share in lives:
        _live(folder, MortalDisk(steps, share), life, told, epochs)
        with open_log(folder) as log:
            found = {r.sequence: (r.topic, r.payload) for r in log.reader().records(log.first)}
            assert list(found) == list(range(log.first, log.last + 1))
            assert {n: one for n, one in told.items() if n >= log.first} == {
                n: found[n] for n in told if n >= log.first
            }
            assert epochs <= {log.epoch}
            epochs.add(log.epoch)
            assert log.gaps() == []
            told |= found


def _live(
    folder: Path, disk: Disk, life: list[tuple[str, Any]], told: dict[int, tuple[str, bytes]], epochs: set[str]
) -> None:
    log: SegmentLog | None = None
    try:
        log = SegmentLog(folder, SMALL, disk=disk)
        epochs.add(log.epoch)
        for verb, value in life:
            if verb == "append":
                batch = [NewRecord(topic, f"{topic}{size}".encode() * (size // 4)) for topic, size in value]
                done = log.append(batch)
                told |= {done.first + n: (record.topic, record.payload) for n, record in enumerate(batch)}
            elif verb == "trim":
                log.trim(min(value, log.last + 1))
            elif verb == "mend":
                assert log.mend() == []
            else:
                closing, log = log, None
                closing.close()
                log = SegmentLog(folder, SMALL, disk=disk)
    except Killed:
        pass
    if log is not None:
        DyingStory(folder, disk)._close(log)


# -- in words ---------------------------------------------------------------------------------------------------------


def test_full_disk_refuses_the_append_and_nothing_else(tmp_path: Path) -> None:
    disk = TouchyDisk()
    with SegmentLog(tmp_path / "log", SMALL, disk=disk) as log:
        before = fill(log, 10)
        disk.start(lambda number, name: errno.ENOSPC if name == "write_at" else 0)
        with pytest.raises(StoreError):
            log.append(new(1))
        assert list(log.reader().records(1)) == before
        assert SegmentView(tmp_path / "log").last == 10


def test_full_disk_refuses_a_large_append_before_any_of_it_is_written(tmp_path: Path) -> None:
    """Who reads from outside would take half of it for what was confirmed."""
    disk = TouchyDisk()
    large = new(300, "fresh", size=LARGE // 250)
    with SegmentLog(tmp_path / "log", SMALL, disk=disk) as log, SegmentView(tmp_path / "log") as view:
        before = fill(log, 10)
        disk.start(lambda number, name: errno.ENOSPC if name == "reserve" else 0)
        with pytest.raises(StoreFull, match="nothing was stored"):
            log.append(large)
        assert disk.calls[-1] == "reserve"
        view.refresh()
        assert list(view.reader().records(1)) == before
        disk.start(willing)
        assert log.append(large).first == 11
        assert sequences(log.reader().records(1)) == list(range(1, 311))


def test_full_disk_that_recovers_is_used_again_without_reopening_the_log(tmp_path: Path) -> None:
    disk = TouchyDisk()
    with SegmentLog(tmp_path / "log", SMALL, disk=disk) as log:
        before = fill(log, 10)
        disk.start(full_once(1))
        with pytest.raises(StoreFull, match="nothing was stored"):
            log.append(new(1))
        assert log.append(new(1, "fresh")).first == 11
        assert list(log.reader().records(1, 11)) == before
        assert log.topics()["fresh"].topic_sequence == 1


def test_full_disk_still_lets_trim_retire_all_but_the_last_segment(tmp_path: Path) -> None:
    disk = TouchyDisk()
    with SegmentLog(tmp_path / "log", SMALL, disk=disk) as log:
        fill(log, 40)
        disk.start(lambda number, name: errno.ENOSPC if name in ("write_at", "open_write") else 0)
        with pytest.raises(StoreFull):
            log.trim(41)  # the last segment would make room for an empty one, and there is none
        assert len(log.chain) == 1
        disk.start(willing)
        assert log.trim(41).first == 41


def test_failed_sync_makes_the_log_refuse_writes_until_it_is_reopened(tmp_path: Path) -> None:
    disk = TouchyDisk()
    with SegmentLog(tmp_path / "log", SMALL, disk=disk) as log:
        before = fill(log, 10)
        disk.start(lambda number, name: errno.EIO if name == "fdatasync" and number < 3 else 0)
        with pytest.raises(StoreError, match="Input/output error"):
            log.append(new(1))
        for _ in range(2):  # the next sync would succeed, and say nothing of what was lost
            with pytest.raises(StoreError, match=r"takes no more: a sync failed .* open it again"):
                log.append(new(1))
        with pytest.raises(StoreError):
            log.trim(11)
        assert list(log.reader().records(1)) == before
        assert SegmentView(tmp_path / "log").last == 10
    with SegmentLog(tmp_path / "log", SMALL, disk=disk) as log:
        assert list(log.reader().records(1)) == before
        assert log.append(new(1)).first == 11


def test_group_commit_that_fails_raises_in_every_caller_that_shared_it(tmp_path: Path) -> None:
    disk = TouchyDisk()
    with SegmentLog(tmp_path / "log", SMALL, disk=disk) as log:
        errors: list[QueueError] = []

        def publish() -> None:
            try:
                log.append(new(1))
            except QueueError as error:
                errors.append(error)

        threads = [threading.Thread(target=publish) for _ in range(4)]
        with log.pause_appends():
            disk.start(lambda number, name: errno.ENOSPC if name == "write_at" and number <= 2 else 0)
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
        assert errors
        assert log.last == 4 - len(errors)
        assert sequences(log.reader().records(1)) == list(range(1, log.last + 1))


def test_log_folder_that_cannot_be_created_raises_store_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file or directory"):
        open_log(tmp_path / "no" / "where" / "log")
    assert list(tmp_path.iterdir()) == []


def test_log_folder_that_cannot_be_written_raises_store_read_only_and_changes_nothing(tmp_path: Path) -> None:
    disk = TouchyDisk()
    with SegmentLog(tmp_path / "log", SMALL, disk=disk) as log:
        fill(log, 30)
    before = {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()}
    disk.start(dead_from(1))
    with pytest.raises(StoreReadOnly):
        SegmentLog(tmp_path / "log", SMALL, disk=disk)
    assert {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()} == before
    assert sequences(SegmentView(tmp_path / "log").reader().records(1)) == list(range(1, 31))


def test_full_disk_while_creating_a_log_leaves_no_partial_segment(tmp_path: Path) -> None:
    disk = TouchyDisk()
    disk.start(lambda number, name: errno.ENOSPC if name == "write_at" else 0)
    with pytest.raises(StoreFull):
        SegmentLog(tmp_path / "log", SMALL, disk=disk)
    assert segments(tmp_path / "log") == []
    disk.start(willing)
    with SegmentLog(tmp_path / "log", SMALL, disk=disk) as log:
        assert log.append(new(1)).first == 1
