"""The background executor: order, outcomes, refusals, an orderly end."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.support.loops import ManualLoop
from yirangmq.core.errors import BadInput, Unavailable
from yirangmq.fsio.background import BackgroundExecutor


def executor(threads: int = 1) -> BackgroundExecutor:
    return BackgroundExecutor(partial(ThreadPoolExecutor, threads, "test"))


def no_threads(patch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", start)


def hold(begun: threading.Event, go_on: threading.Event) -> None:
    begun.set()
    go_on.wait(10)


def raises(error: Exception) -> None:
    raise error


def test_executor_brings_values_and_errors_to_the_loop_in_order() -> None:
    loop, made = ManualLoop(), executor()
    for work in (lambda: 1, lambda: raises(BadInput("no")), lambda: raises(OSError("broken")), lambda: 4):
        made.run(work, loop.call, loop.done)
    for _ in range(4):
        loop.turn()
    assert loop.told == [(1, ""), (None, "bad_input: no"), (None, "internal_error: OSError: broken"), (4, "")]
    made.stop()


def test_executor_makes_no_pool_before_the_first_work() -> None:
    made = BackgroundExecutor(lambda: pytest.fail("nothing was submitted"))
    made.drain()
    made.stop()


def test_executor_refuses_work_after_its_stop() -> None:
    loop, made = ManualLoop(), executor()
    made.stop()
    made.run(lambda: 1, loop.call, loop.done)
    assert loop.told == [(None, "unavailable: the server is stopping")]
    with pytest.raises(Unavailable):
        made.submit(lambda: 1)


def test_executor_never_runs_work_that_it_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, made = ManualLoop(), executor()
    ran: list[int] = []
    with monkeypatch.context() as patch:
        no_threads(patch)
        made.run(lambda: ran.append(1), loop.call, loop.done)
    assert loop.told == [(None, "unavailable: no thread for this work: can't start new thread; try again")]
    made.run(lambda: ran.append(2), loop.call, loop.done)
    loop.turn()
    made.stop()
    assert ran == [2]


def test_executor_reports_queued_work_discarded_with_a_pool_that_got_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pool of two has one thread, which is given work and has not begun it when the second cannot be started."""
    loop = ManualLoop()
    pool = ThreadPoolExecutor(2)
    made = BackgroundExecutor(lambda: pool)
    begun, go_on = threading.Event(), threading.Event()
    made.run(partial(hold, begun, go_on), loop.call, loop.done)
    assert begun.wait(10)
    pool._idle_semaphore.release()  # as a thread does just before it takes the next work
    made.run(lambda: "queued", loop.call, loop.done)
    with monkeypatch.context() as patch:
        no_threads(patch)
        made.run(lambda: "refused", loop.call, loop.done)
    loop.turn()
    go_on.set()
    loop.turn()
    assert [text.partition(":")[0] for _, text in loop.told] == ["unavailable", "unavailable", ""]
    made.stop()


def test_executor_drain_waits_for_submitted_work() -> None:
    made = executor()
    go_on = threading.Event()
    ran: list[int] = []
    made.submit(lambda: go_on.wait(10))
    made.submit(lambda: ran.append(1))
    go_on.set()
    made.drain()
    assert ran == [1]
    made.stop()


@pytest.mark.parametrize(("cancel", "expected"), [(True, []), (False, [1, 2])])
def test_executor_stop_cancels_or_runs_pending_work(cancel: bool, expected: list[int]) -> None:
    made = executor()
    begun, go_on = threading.Event(), threading.Event()
    ran: list[int] = []
    made.submit(partial(hold, begun, go_on))
    made.submit(lambda: ran.append(1))
    made.submit(lambda: ran.append(2))
    assert begun.wait(10)
    made.stop(wait=False, cancel=cancel)
    go_on.set()
    made.stop(cancel=cancel)
    assert ran == expected


def test_executor_survives_a_loop_that_is_closed() -> None:
    loop, made = ManualLoop(), executor()
    loop.is_closed = True
    made.run(lambda: 1, loop.call, loop.done)
    made.drain()
    made.stop()
    assert loop.told == []
