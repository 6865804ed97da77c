"""The model of a disk, rule by rule: what fsync makes safe, and what it does not."""

from collections.abc import Iterable
from itertools import product
from pathlib import Path

from yirangmq.crashtest.disk_model import DiskModel, IoJournal, SyncAll, SyncFile, SyncFolder, Truncate, Write
from yirangmq.crashtest.power_cuts import AllKept, AllLost, ScatteredSectors, TornWrite, ZeroFilled

TOP = Path("/disk")


def shadow_of(journal: IoJournal) -> DiskModel:
    shadow = DiskModel(journal.start)
    for event in journal.events:
        shadow.feed(event)
    return shadow


def possible_names(journal: IoJournal) -> set[frozenset[str]]:
    """Every set of names that could be found after a cut now."""
    shadow = shadow_of(journal)
    names = sorted(shadow.unsynced_names)
    spans = [range(shadow.least[name], len(shadow.versions[name])) for name in names]
    found = set()
    for picks in product(*spans):
        closed = shadow.closed(dict(zip(names, picks, strict=True)))
        found.add(frozenset(shadow.rebuild(closed, {})))
    return found


def sets(*names: Iterable[str]) -> set[frozenset[str]]:
    return {frozenset(each) for each in names}


def folder_node(journal: IoJournal, path: Path) -> int:
    node = journal.node(path)
    assert node is not None
    return node


def test_disk_model_may_lose_a_new_name_until_its_folder_is_synced() -> None:
    journal = IoJournal(TOP)
    node = journal.create(TOP / "a")
    journal.add(SyncFile(node))
    assert possible_names(journal) == sets([], ["a"])
    journal.add(SyncFolder(0))
    assert possible_names(journal) == sets(["a"])


def test_disk_model_keeps_content_after_a_sync_of_the_file_and_not_of_the_folder() -> None:
    journal = IoJournal(TOP)
    node = journal.create(TOP / "a")
    journal.add(Write(node, 0, b"hello"))
    journal.add(SyncFolder(0))
    assert shadow_of(journal).rebuild({}, {}) == {"a": b""}
    journal.add(SyncFile(node))
    assert shadow_of(journal).rebuild({}, {}) == {"a": b"hello"}


def test_disk_model_rename_leaves_the_old_name_the_new_name_or_both() -> None:
    journal = IoJournal(TOP, {"in": None, "out": None, "in/a": b"x"})
    journal.rename(TOP / "in" / "a", TOP / "out" / "a")
    folders = ["in", "out"]
    assert possible_names(journal) == sets([*folders, "in/a"], [*folders, "out/a"], [*folders, "in/a", "out/a"])


def test_disk_model_sync_of_the_old_folder_makes_the_new_name_certain() -> None:
    journal = IoJournal(TOP, {"in": None, "out": None, "in/a": b"x"})
    journal.rename(TOP / "in" / "a", TOP / "out" / "a")
    journal.add(SyncFolder(folder_node(journal, TOP / "in")))
    assert possible_names(journal) == sets(["in", "out", "out/a"])


def test_disk_model_sync_of_the_new_folder_alone_may_leave_both_names() -> None:
    journal = IoJournal(TOP, {"in": None, "out": None, "in/a": b"x"})
    journal.rename(TOP / "in" / "a", TOP / "out" / "a")
    journal.add(SyncFolder(folder_node(journal, TOP / "out")))
    assert possible_names(journal) == sets(["in", "out", "out/a"], ["in", "out", "in/a", "out/a"])


def test_disk_model_chain_of_renames_keeps_the_file_under_some_name() -> None:
    journal = IoJournal(TOP, {"a": b"x"})
    journal.rename(TOP / "a", TOP / "b")
    journal.rename(TOP / "b", TOP / "c")
    assert frozenset() not in possible_names(journal)
    assert sets(["a"], ["c"], ["b"]) <= possible_names(journal)


def test_disk_model_rename_onto_a_name_leaves_the_old_content_or_the_new() -> None:
    journal = IoJournal(TOP, {"a": b"old", "b": b"new"})
    journal.rename(TOP / "b", TOP / "a")
    shadow = shadow_of(journal)
    name = journal.name(TOP / "a")
    assert shadow.rebuild(shadow.closed({name: 0}), {}) == {"a": b"old", "b": b"new"}
    assert shadow.rebuild(shadow.closed({journal.name(TOP / "b"): 1}), {}) == {"a": b"new"}


def test_disk_model_folder_rename_moves_all_of_it_or_nothing() -> None:
    journal = IoJournal(TOP, {"a": None, "a/x": b"1"})
    journal.rename(TOP / "a", TOP / "b")
    assert possible_names(journal) == sets(["a", "a/x"], ["b", "b/x"])


def test_disk_model_lost_folder_loses_its_synced_files() -> None:
    journal = IoJournal(TOP)
    inner = journal.create(TOP / "new", is_folder=True)
    journal.add(SyncFile(journal.create(TOP / "new" / "a")))
    journal.add(SyncFolder(inner))
    assert possible_names(journal) == sets([], ["new", "new/a"])


def test_disk_model_unlinked_name_may_return_until_its_folder_is_synced() -> None:
    journal = IoJournal(TOP, {"a": b"x"})
    journal.remove(TOP / "a")
    assert possible_names(journal) == sets([], ["a"])
    journal.add(SyncFolder(0))
    assert possible_names(journal) == sets([])


def test_disk_model_hard_link_may_be_lost_without_the_first_name() -> None:
    journal = IoJournal(TOP, {"a": b"x"})
    journal.link(TOP / "a", TOP / "b")
    assert possible_names(journal) == sets(["a"], ["a", "b"])


def test_disk_model_sync_of_everything_leaves_a_single_possible_state() -> None:
    journal = IoJournal(TOP, {"in": None, "out": None})
    node = journal.create(TOP / "in" / "a")
    journal.add(Write(node, 0, b"x"))
    journal.rename(TOP / "in" / "a", TOP / "out" / "a")
    journal.add(SyncAll())
    shadow = shadow_of(journal)
    assert not shadow.has_unsynced()
    assert shadow.rebuild({}, {}) == {"in": None, "out": None, "out/a": b"x"}


CHANGES: list[Write | Truncate] = [Write(1, 2, b"BBBB"), Truncate(1, 3), Write(1, 3, b"CC")]


def test_disk_model_unsynced_writes_are_lost_kept_torn_or_hollow() -> None:
    assert AllLost().content_after(b"aaaa", CHANGES) == b"aaaa"
    assert AllKept().content_after(b"aaaa", CHANGES) == b"aaBCC"
    assert TornWrite(0, 3).content_after(b"aaaa", CHANGES) == b"aaBBB"
    assert TornWrite(2, 1).content_after(b"aaaa", CHANGES) == b"aaBC"
    assert ZeroFilled().content_after(b"aa", [Write(1, 2, b"BBBB")]) == b"aa\0\0\0\0"


def test_disk_model_keeps_sectors_in_any_combination() -> None:
    write: list[Write | Truncate] = [Write(1, 256, b"1" * 256 + b"2" * 512 + b"3" * 10)]
    safe = b"a" * 512
    seen = {ScatteredSectors(seed, 512, False).content_after(safe, write) for seed in range(100)}
    first, second, third = safe[:256] + b"1" * 256, b"2" * 512, b"3" * 10
    assert first in seen
    assert first + second + third in seen
    assert safe + bytes(512) + third in seen, "a later sector without the one before it"
    assert len(seen) == 8


def test_disk_model_junk_fills_only_newly_allocated_space() -> None:
    write: list[Write | Truncate] = [Write(1, 4, b"1" * 508), Write(1, 512, b"2" * 512)]
    for seed in range(50):
        content_after = ScatteredSectors(seed, 512, True).content_after(b"safe", write)
        assert content_after.startswith(b"safe")
