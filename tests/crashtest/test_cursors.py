"""Cursors in SQLite under power cuts. (Those in a file are part of the log's own days.)"""

import shutil
from pathlib import Path
from random import Random

from yirangmq.core.topics import Cursor
from yirangmq.crashtest.backends import SHARED, STORE, RecordingVfs
from yirangmq.crashtest.disk_model import CallReturned, CallStarted, DiskModel, IoJournal, write_tree
from yirangmq.crashtest.power_cuts import possible_disks
from yirangmq.stores.cursors import SqliteCursors

EPOCH = "e" * 32
PUTS = 6


def cursors(number: int) -> list[Cursor]:
    """What is kept after so many puts: two subscribers that move together."""
    return [Cursor(name, EPOCH, number, "x" * 300, 0) for name in ("audit", "billing")] if number else []


def test_power_cut_at_any_point_keeps_sqlite_cursors_and_their_batches_whole(tmp_path: Path) -> None:
    day = tmp_path / "day"
    day.mkdir()
    journal = IoJournal(day)
    vfs = RecordingVfs("yirangmq-torture-cursors", journal)
    try:
        place = SqliteCursors(day / STORE, vfs="yirangmq-torture-cursors")
        for number in range(1, PUTS + 1):
            journal.add(CallStarted(number))
            place.put(cursors(number))
            journal.add(CallReturned(number))
        place.close()
    finally:
        vfs.unregister()
    shadow, chance, confirmed, called, opened = DiskModel(journal.start), Random(1), 0, 0, 0
    for event in journal.events:
        for wreck in possible_disks(shadow, 3, chance):
            folder = tmp_path / "wreck"
            folder.mkdir()
            write_tree({path: content for path, content in wreck.tree.items() if path != SHARED}, folder)
            left = SqliteCursors(folder / STORE)
            assert left.all() in (cursors(confirmed), cursors(max(confirmed, called))), wreck.story
            left.close()
            shutil.rmtree(folder)
            opened += 1
        shadow.feed(event)
        if isinstance(event, CallStarted):
            called = event.call
        elif isinstance(event, CallReturned):
            confirmed = event.call
    assert confirmed == PUTS
    assert opened > 50
