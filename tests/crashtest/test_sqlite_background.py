"""Power cuts while SQLite commits aside and a server goes on: before, between and in the middle of its writes."""

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.sqlite import OrderedIds, ids, redo_of
from yirangmq.crashtest.backends import STORE, RecordingDisk, RecordingVfs
from yirangmq.crashtest.disk_model import DiskModel, Event, IoJournal, write_tree
from yirangmq.crashtest.power_cuts import possible_disks
from yirangmq.stores.sqlite.redo_format import RedoPosition
from yirangmq.stores.sqlite.redo_log import RedoLog
from yirangmq.stores.sqlite.server_store import open_served_store
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.testing import open_for_test

RING = 8192
ROOM = 2000
"""More than any record takes."""
MESSAGES = 40
REAL_NEXT = RedoLog.start_commit


class Busy(IoJournal):
    """Somebody publishes whenever SQLite writes or syncs something for its commit aside."""

    def __init__(self, top: Path) -> None:
        super().__init__(top)
        self.publish: Any = None
        self.is_aside = False
        self._is_publishing = False

    def add(self, event: Event) -> None:
        super().add(event)
        if self.is_aside and not self._is_publishing:
            self._is_publishing = True
            self.publish()
            self._is_publishing = False


def live(top: Path, seed: int, often: float) -> tuple[IoJournal, list[tuple[int, str]], int]:
    """A journal, each message with the number of events after which it was confirmed, and how many were published in
    the middle of a commit."""
    chance = Random(seed)
    journal = Busy(top)
    name = f"yirangmq-aside-{seed}"
    vfs = RecordingVfs(name, journal)
    disk = RecordingDisk(journal, use_syncfs=False)
    confirmed: list[tuple[int, str]] = []
    within = 0
    try:
        store = open_served_store(top / STORE, vfs=name, disk=disk, redo_bytes=RING, seconds=None)
        with open_for_test(store=store, ids=OrderedIds()) as queues:

            def publish() -> None:
                nonlocal within
                within += journal.is_aside
                id = queues.publish("q", chance.randbytes(chance.choice((10, 400, 900)))).id
                confirmed.append((len(journal.events), id))

            def publish_if() -> None:
                """Where there is room; else whoever publishes would wait for the end of the commit it is in."""
                if chance.random() < 0.2 and redo_of(store).log.free_bytes > ROOM:
                    publish()

            journal.publish = publish_if
            while len(confirmed) < MESSAGES:
                publish()
                if chance.random() < often:
                    journal.is_aside = True
                    redo_of(store).run_background_commit()
                    journal.is_aside = False
    finally:
        vfs.unregister()
    return journal, confirmed, within


def losses(folder: Path, seed: int, states: int, often: float = 0.4) -> tuple[int, int, int]:
    """How many disks were tried, how many of them had lost something, and how many were cut in the middle."""
    (folder / "day").mkdir()
    journal, confirmed, within = live(folder / "day", seed, often)
    everything = [id for _, id in confirmed]
    shadow = DiskModel(journal.start)
    chance = Random(seed)
    seen: set[tuple[bytes, int]] = set()
    lost = 0
    for point in range(len(journal.events) + 1):
        sure = sum(number <= point for number, _ in confirmed)
        for wreck in possible_disks(shadow, states, chance):
            if (wreck.digest, sure) in seen or STORE not in wreck.tree:
                continue
            seen.add((wreck.digest, sure))
            left = folder / "wreck"
            left.mkdir()
            write_tree(wreck.tree, left)
            store = SqliteStore(left / STORE, durability="os")
            found = ids(store)
            is_sound = found == everything[: len(found)] and len(found) >= sure and not [*store.check(repair=False)]
            lost += not is_sound
            store.close()
            shutil.rmtree(left)
        if point < len(journal.events):
            shadow.feed(journal.events[point])
    return len(seen), lost, within


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 20))])
def test_power_cut_during_background_commits_keeps_every_confirmed_message(tmp_path: Path, seed: int) -> None:
    tried, lost, within = losses(tmp_path, seed, states=3)
    assert lost == 0
    assert tried > 200
    assert within > 0


def test_power_cut_test_detects_redo_records_overwritten_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SQLite has not committed yet."""

    def too_early(file: RedoLog) -> RedoPosition:
        mark = file.position = REAL_NEXT(file)
        return mark

    monkeypatch.setattr(RedoLog, "start_commit", too_early)
    assert losses(tmp_path, 1, states=1, often=0.02)[1] > 0
