"""A publisher killed again and again, with a reader of its files beside it: nothing confirmed is lost, nothing is told
twice, and the reader never sees anything else than the writer's records."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from yirangmq.core.errors import NotFound, Retired
from yirangmq.core.topics import Record
from yirangmq.stores.log.log import SegmentLog
from yirangmq.stores.log.readonly import SegmentView

pytestmark = pytest.mark.process
KILLS = 8
ROOT = Path(__file__).parents[2]


class Follower:
    """Reads the files from outside, from where it has come to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.view: SegmentView | None = None
        self.at = 1
        self.missed: list[tuple[int, int]] = []

    def follow(self) -> None:
        try:
            self.view = self.view or SegmentView(self.folder)
        except NotFound:
            return
        self.view.refresh()
        try:
            for record in self.view.reader().records(self.at):
                check(record)
                assert record.sequence == self.at
                self.at += 1
        except Retired as error:
            self.missed.append((error.asked, error.first))
            self.at = error.first


def check(record: Record) -> None:
    assert record.payload.startswith(b"%d " % record.sequence)
    assert record.topic == f"topic-{record.sequence % 3}"


def test_segment_log_writer_killed_repeatedly_loses_no_confirmed_record(tmp_path: Path) -> None:
    folder, chance = tmp_path / "log", Random(7)
    follower = Follower(folder)
    confirmed = 0
    for _ in range(KILLS):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.scenarios.log_writer", str(folder)], stdout=subprocess.PIPE, cwd=ROOT
        ) as writer:
            assert writer.stdout is not None
            for _ in range(chance.randint(20, 150)):
                confirmed = int(writer.stdout.readline())
                if chance.random() < 0.1:
                    follower.follow()
            writer.kill()
            confirmed = max([confirmed, *(int(line) for line in writer.stdout.readlines() if line.endswith(b"\n"))])
        assert SegmentView(folder).last >= confirmed
        with SegmentLog(folder) as log:
            assert log.gaps() == []
            assert confirmed <= log.last <= confirmed + 3
            found = list(log.reader().records(log.first))
        for record in found:
            check(record)
        assert [record.sequence for record in found] == list(range(found[0].sequence, found[-1].sequence + 1))
        confirmed = found[-1].sequence
    follower.follow()
    assert follower.at == confirmed + 1
    assert confirmed > 20 * KILLS
