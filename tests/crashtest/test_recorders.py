"""The recorders miss nothing: the disk rebuilt from the journal is the disk that is there."""

from pathlib import Path

import pytest

from yirangmq.crashtest.backends import BACKENDS
from yirangmq.crashtest.disk_model import DiskModel, IoJournal, Tree, apply_all, read_tree
from yirangmq.crashtest.runner import crash_test_of


def all_kept(journal: IoJournal) -> Tree:
    shadow = DiskModel(journal.start)
    for event in journal.events:
        shadow.feed(event)
    newest = {name: len(versions) - 1 for name, versions in shadow.versions.items()}
    contents = {node: apply_all(shadow.contents[node] or b"", changes) for node, changes in shadow.changes.items()}
    return shadow.rebuild(newest, contents)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("seed", range(3))
def test_recorder_journal_rebuilds_the_actual_disk_when_every_write_is_kept(
    backend: str, seed: int, tmp_path: Path
) -> None:
    game = crash_test_of(BACKENDS[backend]())
    story = game.record_workload(tmp_path, seed, 40)
    assert story.complaints == []
    there = {path: content for path, content in read_tree(tmp_path).items() if game.is_recorded(path)}
    assert all_kept(story.journal) == there


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_recorder_seed_reproduces_the_same_calls_and_events(backend: str, tmp_path: Path) -> None:
    stories = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        stories.append(crash_test_of(BACKENDS[backend]()).record_workload(tmp_path / name, 5, 20))
    first, second = stories
    assert [call.text for call in first.calls] == [call.text for call in second.calls]
    assert [call.after for call in first.calls] == [call.after for call in second.calls]
    assert [type(event) for event in first.journal.events] == [type(event) for event in second.journal.events]
