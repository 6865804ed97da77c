"""Any program as a handler: the message on stdin, what it is in the environment, the exit code decides.

Codes are those of ``sysexits.h``, which mail programs have used for such answers for decades."""

import os
import signal
import threading

from yirangmq.consumer.child import Child, Ended
from yirangmq.consumer.delivery import Delivery
from yirangmq.consumer.outcomes import DONE, Outcome, too_slow
from yirangmq.core import validation
from yirangmq.core.message import MAX_MESSAGE, Reason

EXIT_DONE = 0
EXIT_REJECT = os.EX_DATAERR
EXIT_RETRY = os.EX_TEMPFAIL
MEANING: dict[int, str] = {
    EXIT_DONE: "it worked: ack",
    EXIT_REJECT: "it will never work: rejected, to the dead letters at once",
    EXIT_RETRY: "not now: again after a while, and not counted as a fault of the message",
}
"""Every other code, and every signal: it failed, again as the queue's policy says."""
GRACE_SECONDS = 5.0
"""Between asking a program to end and making it."""


class Program:
    """``Route.handle`` for a program. ``raw``: stdin is the payload's bytes, not the envelope as one line of JSON."""

    def __init__(
        self,
        argv: list[str],
        *,
        raw: bool = False,
        timeout: float | None = None,
        grace: float = GRACE_SECONDS,
        retry_after: float | None = None,
    ) -> None:
        """Times in seconds. One of these serves one run of a consumer: what was cancelled stays so."""
        if timeout is not None:
            validation.check_milliseconds(timeout, "timeout", least=0.001)
        if retry_after is not None:
            validation.check_milliseconds(retry_after, "retryAfter")
        validation.check_milliseconds(grace, "killAfter")
        self._argv = argv
        self._raw = raw
        self._timeout = timeout
        self._grace = grace
        self._retry_after = retry_after
        self._guard = threading.Lock()
        self._running: set[Child] = set()
        self._cancelled = False

    def __call__(self, delivery: Delivery) -> Outcome:
        stdin = delivery.payload if self._raw else envelope_line(delivery)
        with self._guard:
            if self._cancelled:
                return too_slow("the consumer stopped before the program was started")
            child = Child(self._argv, os.environ | variables(delivery), stdin)
            self._running.add(child)
        try:
            return self._judged(child.wait(self._timeout, self._grace))
        finally:
            with self._guard:
                self._running.discard(child)

    def cancel(self, now: bool) -> None:
        """End every program that runs: ask it, or make it end ``now``. None is started any more."""
        with self._guard:
            self._cancelled = True
            for child in self._running:
                child.stop(kill=now)

    def _judged(self, ended: Ended) -> Outcome:
        tail = ended.tail.decode("utf-8", "replace").strip()
        if ended.stopped:
            after = "" if self._timeout is None else f" after {self._timeout:g} s"
            return too_slow(_joined(f"the program was ended{after}", tail))
        if ended.code == EXIT_DONE:
            return DONE
        if ended.code == EXIT_REJECT:
            return Outcome(Reason.REJECTED, tail[-MAX_MESSAGE:] or "the program rejected it")
        if ended.code == EXIT_RETRY:
            return Outcome(
                Reason.HANDLER_ERROR, tail[-MAX_MESSAGE:] or "the program asks for another try", self._retry_after
            )
        how = f"exit code {ended.code}" if ended.code > 0 else f"ended by {_signal_name(-ended.code)}"
        return Outcome(Reason.HANDLER_ERROR, _joined(how, tail), kind=how)


def envelope_line(delivery: Delivery) -> bytes:
    """The envelope as one line. A line break in JSON text can only stand between its parts, so a space will do."""
    return delivery.envelope_json().replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


def variables(delivery: Delivery) -> dict[str, str]:
    """What the message is, for programs that do not read JSON. No NUL can stand in an environment."""
    header = delivery.header
    values = {
        "YIRANGMQ_QUEUE": delivery.queue,
        "YIRANGMQ_MESSAGE_ID": delivery.id,
        "YIRANGMQ_LEASE_ID": delivery.lease_id,
        "YIRANGMQ_ATTEMPT": str(delivery.attempt),
        "YIRANGMQ_TYPE": str(header.get("type") or ""),
        "YIRANGMQ_TRACE_ID": str(header.get("traceId") or ""),
    }
    return {name: value.replace("\0", "") for name, value in values.items()}


def _joined(how: str, tail: str) -> str:
    return f"{how}: {tail}"[:MAX_MESSAGE] if tail else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
