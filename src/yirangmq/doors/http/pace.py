"""Is a client too slow? Knows: when a head began, how fast a body comes, since when there is silence; the time it is
given. Does not know: clocks, sockets, what to do about it."""

from yirangmq.doors.http.head import Head, Refused
from yirangmq.doors.http.intake import Intake
from yirangmq.doors.http.limits import Limits


class Pace:
    """``heard`` after every piece of input, ``check`` about once a second."""

    __slots__ = ("_begun", "_body_at", "_body_size", "_head", "_head_at", "_idle_at", "_intake", "_limits")

    def __init__(self, intake: Intake, limits: Limits, now: float) -> None:
        self._intake = intake
        self._limits = limits
        self._begun = 0
        self._head: Head | None = None
        self._head_at = self._idle_at = self._body_at = now
        self._body_size = 0

    def heard(self, now: float) -> None:
        intake = self._intake
        if intake.begun != self._begun:
            self._begun = intake.begun
            self._head_at = self._idle_at = now
        if intake.head is not self._head:
            self._head = intake.head
            self._body_at, self._body_size = now, intake.body_size

    def excuse(self, now: float) -> None:
        """It is us who do not read, so it cannot be late."""
        self._head_at = self._body_at = now
        self._body_size = self._intake.body_size

    def check(self, now: float, is_busy: bool) -> bool:
        """True: nothing was asked for too long. ``Refused``: what was begun takes too long."""
        intake, limits = self._intake, self._limits
        if is_busy:
            self._idle_at = now
        if intake.head is not None:
            self._check_body(now)
        elif intake.in_head:
            if now - self._head_at > limits.head_seconds:
                raise Refused(408, f"the head of the request took longer than {limits.head_seconds:g} seconds")
        elif not is_busy:
            return now - self._idle_at > limits.idle_seconds
        return False

    def _check_body(self, now: float) -> None:
        spent = now - self._body_at
        if spent <= self._limits.body_seconds:
            return
        if self._intake.body_size - self._body_size < self._limits.body_rate * spent:
            raise Refused(408, f"the body comes at less than {self._limits.body_rate} bytes a second")
        self._body_at, self._body_size = now, self._intake.body_size
