"""Ids: of version 7, in order, and never the same twice, whoever draws them."""

import os
import threading
from itertools import chain
from uuid import UUID

from yirangmq.clock import TimeOrderedIds


def test_ids_are_of_version_7_and_in_order() -> None:
    ids = TimeOrderedIds()
    drawn = list(chain.from_iterable(ids.new(count) for count in (1, 3, 100, 1, 1)))
    assert {(UUID(id).version, str(UUID(id))) for id in drawn} == {(7, id) for id in drawn}
    assert [id[:13] for id in drawn] == sorted(id[:13] for id in drawn)
    assert len(set(drawn)) == len(drawn)


def test_threads_draw_different_ones() -> None:
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


def test_a_process_that_was_forked_off_draws_others() -> None:
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
