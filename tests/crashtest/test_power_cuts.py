"""Which disks are looked at: all of a few, the telling ones of many, the same ones for the same seed."""

from pathlib import Path
from random import Random

from yirangmq.crashtest.disk_model import DiskModel, IoJournal, SyncFile, Write, digest, read_tree, write_tree
from yirangmq.crashtest.power_cuts import possible_disks

TOP = Path("/disk")


def busy_shadow(files: int) -> DiskModel:
    journal = IoJournal(TOP)
    for number in range(files):
        node = journal.create(TOP / f"temp-{number}")
        journal.add(Write(node, 0, b"x" * 5000))
        journal.add(SyncFile(node))
        journal.rename(TOP / f"temp-{number}", TOP / f"final-{number}")
    shadow = DiskModel({})
    for event in journal.events:
        shadow.feed(event)
    return shadow


def test_power_cut_without_unsynced_writes_leaves_a_single_disk() -> None:
    assert [wreck.tree for wreck in possible_disks(DiskModel({"a": b"x"}), 10, Random(1))] == [{"a": b"x"}]


def test_power_cut_with_few_possible_disks_tries_all_of_them() -> None:
    found = {frozenset(wreck.tree) for wreck in possible_disks(busy_shadow(1), 50, Random(1))}
    assert found == {frozenset(names) for names in ([], ["temp-0"], ["final-0"], ["temp-0", "final-0"])}


def test_power_cut_with_many_possible_disks_tries_the_extremes_first_and_none_twice() -> None:
    found = list(possible_disks(busy_shadow(8), 30, Random(1)))
    assert found[0].tree == {}
    assert set(found[1].tree) == {f"final-{number}" for number in range(8)}
    assert len({wreck.digest for wreck in found}) == len(found) == 30


def test_power_cut_seed_reproduces_the_same_disks() -> None:
    first, second, other = (
        [wreck.digest for wreck in possible_disks(busy_shadow(8), 30, Random(seed))] for seed in (7, 7, 8)
    )
    assert first == second
    assert first != other


def test_power_cut_disk_tree_is_written_and_read_back_unchanged(tmp_path: Path) -> None:
    tree = {"a": None, "a/b": b"1", "a/c": None, "d": b""}
    write_tree(tree, tmp_path)
    assert read_tree(tmp_path) == tree
    assert digest(read_tree(tmp_path)) == digest(tree)
    assert digest({**tree, "d": b"2"}) != digest(tree)
