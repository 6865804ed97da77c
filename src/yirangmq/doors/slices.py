"""Long answers made in slices: each slice is a piece of work in the next commit, and requests of other clients are
served between two slices. No request waits for more than one slice, however long the answer.

Knows: the desk. Does not know: what the answer is."""

from collections.abc import Callable, Generator
from typing import Any

from yirangmq.broker.group_commit import Desk
from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Transaction
from yirangmq.doors.paged import Done

Slice = Callable[[Transaction], Any]
Slices = Generator[Slice | None, Any, Any]
"""Yields the work of each slice and is sent its result; None lets others go first. What it returns is the answer."""


def in_slices(desk: Desk, steps: Slices, done: Done) -> None:
    """``done(answer, error)`` once, on the desk's thread."""

    def go_on(value: Any, error: QueueError | None) -> None:
        if error is not None:
            steps.close()
            done(None, error)
            return
        try:
            work = steps.send(value)
        except StopIteration as end:
            done(end.value, None)
        except QueueError as problem:
            done(None, problem)
        else:
            if work is None:
                desk.later(0, lambda: go_on(None, None))
            else:
                desk.submit(work, go_on)

    go_on(None, None)
