"""Work aside that gives way: threads change places sooner while it is under way, and as usual when it is over."""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.loops import ManualLoop
from yirangmq.core.errors import QueueError, Unavailable
from yirangmq.fsio.background import SWITCH_SECONDS, LoopExecutor

USUAL = 0.004


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    yield
    sys.setswitchinterval(before)


def now() -> float:
    return round(sys.getswitchinterval(), 6)


def ignore(value: object, error: QueueError | None) -> None:
    pass


def closed() -> ThreadPoolExecutor:
    thread = ThreadPoolExecutor(1)
    thread.shutdown()
    return thread


def fail() -> None:
    raise OSError("no")


def test_switch_interval_is_short_from_the_first_job_until_the_last_result() -> None:
    loop = ManualLoop()
    aside = LoopExecutor(loop.call, shorten_switch=True)
    go_on = threading.Event()
    told: list[tuple[object, QueueError | None, float]] = []
    assert now() == USUAL
    aside.run(lambda: go_on.wait(10), lambda value, error: told.append((value, error, now())))
    aside.run(fail, lambda value, error: told.append((value, error, now())))
    assert now() == SWITCH_SECONDS
    go_on.set()
    loop.turn()
    assert now() == SWITCH_SECONDS
    loop.turn()
    assert now() == USUAL
    assert [(value, at) for value, _, at in told] == [(True, SWITCH_SECONDS), (None, USUAL)]
    aside.stop()


def test_switch_interval_is_restored_when_the_server_stops() -> None:
    loop = ManualLoop()
    aside = LoopExecutor(loop.call, shorten_switch=True)
    begun = threading.Event()
    aside.run(begun.set, ignore)
    aside.run(lambda: None, ignore)
    assert begun.wait(10)
    aside.stop()
    assert now() == USUAL
    loop.turn()
    assert now() == USUAL


def test_switch_interval_is_restored_by_the_last_of_two_executors_in_a_process() -> None:
    loop = ManualLoop()
    first, second = LoopExecutor(loop.call, shorten_switch=True), LoopExecutor(loop.call, shorten_switch=True)
    go_on = threading.Event()
    first.run(lambda: go_on.wait(10), ignore)
    second.run(lambda: None, ignore)
    loop.turn()
    assert now() == SWITCH_SECONDS
    go_on.set()
    loop.turn()
    assert now() == USUAL
    first.stop()
    second.stop()
    told: list[QueueError | None] = []
    LoopExecutor(loop.call, closed, shorten_switch=True).run(lambda: None, lambda value, error: told.append(error))
    assert [type(error) for error in told] == [Unavailable], "refused, not raised: whoever asked waits for an answer"
    assert now() == USUAL


def test_switch_interval_is_unchanged_by_work_that_does_not_give_way() -> None:
    loop = ManualLoop()
    aside = LoopExecutor(loop.call)
    aside.run(now, ignore)
    assert now() == USUAL
    loop.turn()
    aside.stop()
    assert now() == USUAL
