"""A log whose end is lost, while durable readers know better: a new epoch begins after everything that they know."""

import shutil
from pathlib import Path

import pytest

from tests.support.segment_log import Killed, MortalDisk, cut_tail, fill, new, open_log, segments, sequences
from yirangmq.core.topics import Gap, KnownPositions
from yirangmq.stores.log.check import check
from yirangmq.stores.log.log import LogSettings
from yirangmq.stores.log.readonly import SegmentView


def known_to(**positions: int) -> KnownPositions:
    return lambda epoch, since_ns: positions


@pytest.mark.parametrize("lost", [1, 3])
def test_lost_tail_that_a_reader_has_confirmed_begins_a_new_epoch_after_it(tmp_path: Path, lost: int) -> None:
    """P-30: no sequence is assigned twice in one epoch, in the log or in a topic."""
    with open_log(tmp_path / "log") as log:
        fill(log, 40, size=60)
        before = log.topics()
    epoch = cut_tail(tmp_path / "log", lost)
    with open_log(tmp_path / "log", known=known_to(ledger=40, other=38)) as log:
        assert log.epoch != epoch
        assert log.loss in log.notes
        assert "ledger" in log.loss
        assert f"after sequence {40 - lost} are lost, at least up to 40" in log.loss
        done = log.append(new(2))
        assert (done.first, done.last) == (41, 42)
        assert log.gaps() == [Gap(41 - lost, 40)]
        topics = log.topics()
        assert topics["trades"].topic_sequence > before["trades"].topic_sequence + 1
        kept = list(log.reader().records(1))
        assert sequences(kept) == [*range(1, 41 - lost), 41, 42]
        assert topics["trades"].records == sum(record.topic == "trades" for record in kept)
        new_epoch = log.epoch
    with open_log(tmp_path / "log", known=known_to()) as log:
        assert (log.epoch, log.loss, log.notes) == (new_epoch, "", [])
        assert list(log.reader().records(1)) == kept
        assert log.append(new(1)).first == 43
    assert [finding.kind for finding in check(SegmentView(tmp_path / "log")).findings] == ["gap"]


def test_tail_that_holds_all_that_readers_have_confirmed_keeps_its_epoch(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        fill(log, 10, size=60)
    epoch = cut_tail(tmp_path / "log", 2)
    with open_log(tmp_path / "log", known=known_to(ledger=8)) as log:
        assert (log.epoch, log.loss) == (epoch, "")
        assert log.append(new(1)).first == 9


def test_lost_tail_of_a_log_without_any_record_left_begins_a_new_epoch(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", LogSettings(ahead=False)) as log:
        fill(log, 5, size=60)
    epoch = cut_tail(tmp_path / "log", 5)
    with open_log(tmp_path / "log", known=known_to(ledger=5)) as log:
        assert log.epoch != epoch
        assert log.append(new(1)).first == 6
        assert log.gaps() == [Gap(1, 5)]
    with open_log(tmp_path / "log") as log:
        assert sequences(log.reader().records(1)) == [6]


def test_lost_last_segment_begins_the_new_epoch_after_what_readers_have_confirmed(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        fill(log, 100, size=60)
    segments(tmp_path / "log")[-1].unlink()
    with open_log(tmp_path / "log", known=known_to(ledger=100)) as log:
        assert log.append(new(1)).first == 101
        assert "at least up to 100" in log.loss


def test_lost_tail_is_found_again_after_a_kill_at_any_step(tmp_path: Path) -> None:
    """Every state of the folder that a kill can leave opens with a new epoch, and with the records that are left."""
    with open_log(tmp_path / "log") as log:
        fill(log, 10, size=60)
    epoch = cut_tail(tmp_path / "log", 2)
    for step in range(100):
        folder = tmp_path / str(step)
        shutil.copytree(tmp_path / "log", folder)
        try:
            open_log(folder, disk=MortalDisk(step + 1, 0.5), known=known_to(ledger=10)).close()
            is_over = True
        except Killed:
            is_over = False
        with open_log(folder, known=known_to(ledger=10)) as log:
            assert log.epoch != epoch
            assert log.append(new(1)).first == 11
            assert sequences(log.reader().records(1))[:8] == list(range(1, 9))
        if is_over:
            return
    raise AssertionError("it never ends")
