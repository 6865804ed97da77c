"""Segment set of a log open for writing: roll, seal, retention, replacement, and the background executor.

``House`` has the chain of segments and the spare file. New segments come at the end, old ones go at the beginning,
damaged ones are replaced. The chain is an immutable tuple: readers keep the one they have. ``roll`` is called under
the appender's lock; changes of other segments take ``_upkeep``.

``Errands`` runs work that no caller waits for (sealing, preparing the next file) in order on one thread, or at once
where ``ahead`` is off."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from yirangmq.core.errors import Unavailable
from yirangmq.core.topics import Trimmed
from yirangmq.fsio.background import BackgroundExecutor
from yirangmq.stores.log.check import mended
from yirangmq.stores.log.reader import Segment
from yirangmq.stores.log.salvage import QUARANTINE
from yirangmq.stores.log.segment_files import End, Making, Spare, Workshop
from yirangmq.stores.log.segment_format import HEAD_SIZE, write_state

# -- background executor -----------------------------------------------------------------------------------------------

Work = Callable[[], None]
log = logging.getLogger(__name__)


class Errands:
    """Runs errands one after the other, in a thread of its own or, where ``ahead`` is not wanted, at once."""

    def __init__(self, *, ahead: bool) -> None:
        self._executor = BackgroundExecutor(partial(ThreadPoolExecutor, 1, "yirangmq-log")) if ahead else None

    def run(self, work: Work) -> None:
        if self._executor is None:
            work()
            return
        try:
            self._executor.submit(partial(_logged, work))
        except Unavailable:  # no thread can be started: the caller does the work
            _logged(work)

    def settle(self) -> None:
        """Wait until everything asked for so far is done."""
        if self._executor is not None:
            self._executor.drain()

    def close(self) -> None:
        """After the errand under way and those that wait."""
        if self._executor is not None:
            self._executor.stop(cancel=False)


def _logged(work: Work) -> None:
    try:
        work()
    except Exception:  # the caller has gone on, and the next errand must not wait for ever
        log.exception("log_upkeep_failed")


# -- segment set -------------------------------------------------------------------------------------------------------

SMALLEST_FIRST = 1 << 20
"""A new log begins small, and each segment may be as large as all that is kept before it."""


def segment_size(most: int, kept: int) -> int:
    return min(most, max(SMALLEST_FIRST, kept))


class House:
    """``most``: how large a segment may be. ``ahead``: do in the background what can be done there."""

    def __init__(
        self,
        workshop: Workshop,
        chain: Sequence[Segment],
        most: int,
        now_ns: Callable[[], int],
        *,
        ahead: bool,
    ) -> None:
        self.chain = tuple(chain)
        self.trouble: str | None = None
        """Why nothing may be appended any more, if so."""
        self._workshop = workshop
        self._most = most
        self._now_ns = now_ns
        self._ahead = ahead
        self._errands = Errands(ahead=ahead)
        self._spare: Spare | None = None
        self._upkeep = threading.RLock()
        """Whoever has it may change segments other than the last."""
        self._swap = threading.Lock()
        """For the moment in which one chain takes the place of another."""

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.chain)

    # -- coming ---------------------------------------------------------------------------------------------------

    def roll(self, old: End, need: int) -> End:
        """A new segment at the end, with room for so many bytes. For the appender, which has the turn."""
        state = old.segment.own_sums.state
        room = max(segment_size(self._most, self.size), HEAD_SIZE + len(write_state(state)) + need)
        is_empty = old.segment.tail.last < old.segment.first
        epoch = old.segment.head.epoch
        before = old.segment.head.before if is_empty else epoch
        making = Making(epoch, before, old.segment.tail.last + 1, self._now_ns())
        spare = self._take_spare() or self._workshop.new_spare(0 if self._ahead else room)
        try:
            # Nobody waits for zeros: where none were made ready, the file grows as it is written.
            spare = spare.with_room(room) if self._ahead else self._workshop.longer(spare, room)
            segment = self._workshop.write_opening(spare, making, state)
            self._workshop.disk.fdatasync(spare.fd)
        except BaseException:
            self._workshop.give_up(spare)
            raise
        try:
            self._workshop.place(spare, segment)
        except BaseException:
            self.trouble = "a new segment could not be put in its place"
            raise
        with self._swap:
            self.chain = (*self.chain[:-1], segment) if is_empty else (*self.chain, segment)
        if is_empty:  # it had too little room for its first records, and was replaced
            with suppress(OSError):
                self._workshop.disk.close(old.file.fd)
        else:
            self._errands.run(lambda: self._seal(old))
        return End(segment, spare._replace(path=segment.path))

    def prepare(self) -> None:
        """The last segment has its first records: the next file can be made ready."""
        if self._ahead:
            self._errands.run(self._prepare)

    def _prepare(self) -> None:
        room = segment_size(self._most, self.size)
        with self._upkeep:
            spare = self._take_spare()
            try:
                spare = self._workshop.longer(spare, room) if spare else self._workshop.new_spare(room)
            except OSError:
                pass  # whoever needs it will try again, and be told
            if spare is not None:
                self._put_spare(spare)

    def _take_spare(self) -> Spare | None:
        with self._swap:
            spare, self._spare = self._spare, None
        return spare

    def _put_spare(self, spare: Spare) -> None:
        with self._swap:
            other, self._spare = self._spare, spare
        if other is not None:
            self._workshop.give_up(other)

    def _seal(self, end: End) -> None:
        """Not being able to does no harm: the next opening will."""
        with self._upkeep:
            try:
                sealed = self._workshop.seal(end.segment, end.file.fd)
            except OSError:
                sealed = end.segment
            with suppress(OSError):
                self._workshop.disk.close(end.file.fd)
            self._replace(end.segment, [sealed])

    def _replace(self, old: Segment, new: Sequence[Segment]) -> None:
        with self._swap:
            self.chain = tuple(one for segment in self.chain for one in (new if segment is old else [segment]))

    # -- going ----------------------------------------------------------------------------------------------------

    def retire(self, before: int) -> Trimmed:
        """Whole segments before a sequence, from the oldest on, one after the other: no power cut leaves a hole."""
        count = size = 0
        with self._upkeep:
            while len(self.chain) > 1 and self.chain[0].tail.last < before:
                segment = self.chain[0]
                # A file that is still to be sealed would be written to after it was used again.
                recycle = self._spare is None and segment.seal is not None
                try:
                    spare = self._workshop.retire(segment, recycle=recycle)
                finally:
                    if not os.path.lexists(segment.path):
                        self._replace(segment, [])
                if spare is not None:
                    self._put_spare(spare)
                count += 1
                size += segment.size
            return Trimmed(count, size, self.chain[0].first)

    def mend(self) -> list[str]:
        """Every segment but the last; what was done, in words."""
        done: list[str] = []
        self._errands.settle()
        with self._upkeep:
            for segment in self.chain[:-1]:
                made = mended(self._workshop, segment, self._now_ns())
                if made is not None:
                    self._replace(segment, made)
                    done.append(f"{segment.path} was damaged; what was sound is kept, the file is in {QUARANTINE}")
        return done

    def close(self) -> None:
        self._errands.close()
        spare = self._take_spare()
        if spare is not None:
            self._workshop.give_up(spare)
