"""One client's recovery: history from the log to its outlet, a step at a time, always ending with a whole frame.

Knows: a reader, a filter, an outlet, a dialect. Does not know: threads, the loop, the live feed. A step never waits."""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from yirangmq.core.errors import QueueError, StoreDamaged
from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import Frames, LogReader, Piece
from yirangmq.topics.lines import Batch, Dialect, Outlet, Recovering

PIECE = 4 << 20
"""Bytes sent between two looks at what else is to be said."""
PROGRESS_SECONDS = 1.0


class Outcome(Enum):
    MORE = "it can go on at once"
    BLOCKED = "the client must read first"
    DONE = "nothing is left, or it was asked to stop"
    GONE = "the client is not there any more"
    STALLED = "the client has taken nothing for too long"
    FAILED = "the log cannot give what is needed"


class Task(NamedTuple):
    """What is to be sent: everything wanted after ``after`` up to ``target``, and then what came meanwhile.
    ``request``: whose answer it is. ``is_counted``: say beforehand how many."""

    filter: Filter
    dialect: Dialect
    after: int
    target: int
    request: int = 0
    is_counted: bool = True


class Run:
    """Made on the loop's thread, then used by one worker; ``cancel`` may be called from anywhere."""

    def __init__(
        self,
        task: Task,
        reader: LogReader,
        outlet: Outlet,
        *,
        owed: Callable[[], bytes],
        is_near: Callable[[int], bool],
        completed: Callable[["Run"], None],
        times: Callable[[], tuple[float, int]],
    ) -> None:
        """``is_near``: the loop can go on after this sequence. ``completed``: the target is reached. ``times``: seconds
        that only grow, and nanoseconds since 1970."""
        self.task = task
        self.outlet = outlet
        self.cursor = task.after
        self.sent = 0
        self.taken = 0
        """Bytes that the client took."""
        self.error: QueueError | None = None
        self._moved_at, _ = times()
        self.is_cancelled = False
        self.is_abandoned = False
        self._reader = reader
        self._wanted = None if task.filter.is_all else task.filter.wants
        self._owed = owed
        self._is_near = is_near
        self._completed = completed
        self._times = times
        self._told_at = self._moved_at
        self._rest = memoryview(b"")
        self._piece: Piece | None = None
        self._left = 0
        self._parts: Iterator[Piece | Frames] | None = None
        self._goal = task.target
        self._is_announced = False
        self._is_complete = False

    # -- from the loop's thread -----------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Stop where the next frame would begin."""
        self.is_cancelled = True

    def abandon(self) -> None:
        """Stop where you are: nobody is listening."""
        self.is_abandoned = True

    def close(self) -> None:
        """By whoever has it last."""
        self._drop_parts()
        self._reader.close()
        self.outlet.close()

    # -- on the worker --------------------------------------------------------------------------------------------

    def step(self, budget: int) -> Outcome:
        """Send up to about so many bytes."""
        try:
            while budget > 0:
                if self.is_abandoned:
                    return Outcome.GONE
                if self._left or self._rest:
                    budget -= self._push(budget)
                elif not self._prepare():
                    return Outcome.DONE
                else:
                    budget -= 1  # a look at the log is work too
        except BlockingIOError:
            return Outcome.BLOCKED
        except QueueError as error:
            self.error = error
            return Outcome.FAILED
        except OSError:
            return Outcome.GONE
        return Outcome.MORE

    def still_for(self) -> float:
        """Seconds since the client took anything."""
        return self._times()[0] - self._moved_at

    def _push(self, most: int) -> int:
        if self._rest:
            count = self.outlet.send(self._rest[:most])
            self._rest = self._rest[count:]
        else:
            count = self._push_file(most)
        self._moved_at, _ = self._times()
        self.taken += count
        return count

    def _push_file(self, most: int) -> int:
        piece = self._piece
        if piece is None:
            raise StoreDamaged("there is no piece to send")
        offset = piece.offset + piece.length - self._left
        count = self.outlet.send_file(piece.file, offset, min(self._left, most))
        if count == 0:
            raise StoreDamaged(f"the log ends in the middle of what follows sequence {self.cursor}")
        self._left -= count
        if not self._left:
            self._reach(piece.last, piece.last - piece.first + 1)
        return count

    def _reach(self, sequence: int, count: int) -> None:
        self.cursor = sequence
        self.sent += count

    # -- between two frames ---------------------------------------------------------------------------------------

    def _prepare(self) -> bool:
        """The next thing to send; False: there is none."""
        owed = self._owed()
        if owed:
            self._rest = memoryview(owed)
            return True
        if self.is_cancelled:
            return False
        if not self._is_announced:
            self._announce()
            return True
        if self._tell_progress():
            return True
        return self._next_part() or self._go_on()

    def _announce(self) -> None:
        """What follows, and how much of it."""
        task = self.task
        self._is_announced = True
        start, stop = task.after + 1, task.target + 1
        count = self._reader.count(start, stop, self._wanted) if task.is_counted or self._wanted is None else None
        gaps = [gap for gap in self._reader.gaps() if gap.last >= start and gap.first < stop]
        self._rest = memoryview(task.dialect.recovering(task.request, Recovering(start, task.target, count, gaps)))

    def _tell_progress(self) -> bool:
        now, at_ns = self._times()
        if now - self._told_at < PROGRESS_SECONDS:
            return False
        self._told_at = now
        words = self.task.dialect.progress(self.cursor, self.sent, self._reader.refresh(), at_ns)
        self._rest = memoryview(words)
        return bool(words)

    def _next_part(self) -> bool:
        """The next piece of the way to the goal; False: it is reached."""
        if self.cursor >= self._goal:
            self._drop_parts()
            return False
        if self._parts is None:
            self._parts = self._open_parts(self.cursor + 1, self._goal + 1)
        part = next(self._parts, None)
        if part is None:
            self._drop_parts()
            self.cursor = self._goal  # what remains of the way was not wanted, or is lost
            return False
        if isinstance(part, Piece):
            self._piece, self._left = part, part.length
        else:
            self._rest = memoryview(self.task.dialect.records(Batch(part.data, part.records)))
            self._reach(part.last, part.records)
        return True

    def _open_parts(self, start: int, stop: int) -> Iterator[Piece | Frames]:
        if self._wanted is None and self.task.dialect.sends_stored:
            return iter(self._reader.pieces(start, stop, size=PIECE))
        return iter(self._reader.frames(start, stop, self._wanted))

    def _drop_parts(self) -> None:
        """Lets go of the segment that is open."""
        parts, self._parts, self._piece = self._parts, None, None
        close = getattr(parts, "close", None)
        if close is not None:
            close()

    def _go_on(self) -> bool:
        """At the goal: say so once, then on to what came meanwhile, until the loop can take over."""
        if not self._is_complete:
            self._is_complete = True
            _, at_ns = self._times()
            task = self.task
            self._rest = memoryview(task.dialect.complete(task.request, task.target, self.sent, at_ns))
            self._completed(self)
            return True
        if self._is_near(self.cursor):
            return False
        self._goal = self._reader.refresh()
        return True
