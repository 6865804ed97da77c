"""Ids: of version 7, in order, and never the same twice, whoever draws them. And how many processors are ours."""

import os
import threading
from itertools import chain
from pathlib import Path
from uuid import UUID

import pytest

from yirangmq.clock import TimeOrderedIds, processors


def test_ids_are_of_version_7_and_in_order() -> None:
    ids = TimeOrderedIds()
    drawn = list(chain.from_iterable(ids.new(count) for count in (1, 3, 100, 1, 1)))
    assert {(UUID(id).version, str(UUID(id))) for id in drawn} == {(7, id) for id in drawn}
    assert [id[:13] for id in drawn] == sorted(id[:13] for id in drawn)
    assert len(set(drawn)) == len(drawn)


def test_ids_drawn_by_several_threads_are_different() -> None:
    ids = TimeOrderedIds()
    found: list[list[str]] = []
    begin = threading.Barrier(8)

    def draw() -> None:
        begin.wait()
        found.append([ids.new(1)[0] for _ in range(500)])

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(chain.from_iterable(found))) == 8 * 500


def test_ids_drawn_by_a_forked_process_are_different() -> None:
    """Even in the same millisecond: whoever forks has drawn just before."""
    ids = TimeOrderedIds()
    for _ in range(20):
        source, sink = os.pipe()
        ids.new(1)
        child = os.fork()
        drawn = ids.new(20)
        if not child:
            os.write(sink, " ".join(drawn).encode())
            os._exit(0)
        os.waitpid(child, 0)
        others = os.read(source, 4096).decode().split()
        os.close(source)
        os.close(sink)
        assert len({*drawn, *others}) == 40


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "no numbers\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
    ],
)
def test_processors_of_a_container_are_those_that_its_share_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], most: int
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(64))
    assert processors(str(tmp_path)) == most
