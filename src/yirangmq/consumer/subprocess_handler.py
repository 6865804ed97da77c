"""Subprocess handler: any program as a handler, and a single run of it with timeout and kill.

The message is on stdin, its properties are in the environment, and the exit code decides: 0 acks, ``EX_DATAERR``
rejects, ``EX_TEMPFAIL`` retries later. Any other code or signal is a failure. The codes are those of ``sysexits.h``.

The program's stdout and stderr are the consumer's; the end of stderr goes with a failed message. The program and its
children form a process group: stopping it stops them too, and Ctrl-C at a terminal reaches the consumer only. At its
timeout the program gets SIGTERM, and SIGKILL after a grace period."""

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

from yirangmq.consumer.delivery import DONE, HandlerDelivery, HandlerOutcome, timed_out
from yirangmq.core import validation
from yirangmq.core.message import MAX_FAILURE_TEXT, Reason

# -- run of a program --------------------------------------------------------------------------------------------------

CHUNK = 65_536
TAIL = 1_500
"""Upper bound of the stderr text stored with a failed message, in bytes."""
STDERR = 2
POLL_SECONDS = 0.5
FAST_POLL_SECONDS = 0.02
"""Polling interval in seconds if the system has no pidfd to report a process's end."""


class ProcessResult(NamedTuple):
    """Result of a process. ``code`` is negative for a signal. ``stopped``: the consumer stopped the process."""

    code: int
    tail: bytes
    stopped: bool


class HandlerProcess:
    """One running program; the constructor starts it. ``wait`` is for one thread, ``stop`` for any thread."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], stdin: bytes) -> None:
        self._stdin = memoryview(stdin)
        self._tail = b""
        self._stop_at = float("inf")
        self._is_stopped = False
        self._process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0, bufsize=0
        )

    def stop(self, *, kill: bool = False) -> None:
        """Send SIGTERM, or SIGKILL if ``kill``. If SIGTERM does not help, ``wait`` sends SIGKILL later."""
        self._is_stopped = True
        self._stop_at = time.monotonic()
        self._signal(signal.SIGKILL if kill else signal.SIGTERM)

    def wait(self, timeout: float | None, grace: float) -> ProcessResult:
        """Wait for the end of the process. After ``timeout`` seconds it gets SIGTERM, ``grace`` seconds later
        SIGKILL."""
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            timeout = self._watch(selector, stack)
            while self._process.poll() is None:
                self._step(selector, min(timeout, self._patience(deadline, grace)))
            self._read_stderr()
        return ProcessResult(self._process.returncode, self._tail, self._is_stopped)

    def _patience(self, deadline: float, grace: float) -> float:
        """Stop the process if its time is over. Return the seconds until the next action."""
        now = time.monotonic()
        if now >= deadline and not self._is_stopped:
            self.stop()
        if now >= self._stop_at + grace:
            self._signal(signal.SIGKILL)
            return FAST_POLL_SECONDS
        return max(0.0, (self._stop_at + grace if self._is_stopped else deadline) - now)

    def _watch(self, selector: selectors.BaseSelector, stack: ExitStack) -> float:
        """Register the streams and the process with the selector. Return the polling interval in seconds."""
        for stream, event in (
            (self._process.stdin, selectors.EVENT_WRITE),
            (self._process.stderr, selectors.EVENT_READ),
        ):
            assert stream is not None
            stack.enter_context(stream)
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, event)
        try:
            end = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):
            return FAST_POLL_SECONDS
        stack.callback(os.close, end)
        selector.register(end, selectors.EVENT_READ)
        return POLL_SECONDS

    def _step(self, selector: selectors.BaseSelector, seconds: float) -> None:
        for key, _ in selector.select(seconds):
            if key.fileobj is self._process.stdin and self._feed():
                selector.unregister(self._process.stdin)
                self._process.stdin.close()
            elif key.fileobj is self._process.stderr and self._read_stderr():
                selector.unregister(self._process.stderr)

    def _feed(self) -> bool:
        """Write more of stdin. Return True if everything is written, or the program has closed it."""
        assert self._process.stdin is not None
        try:
            if self._stdin:
                self._stdin = self._stdin[os.write(self._process.stdin.fileno(), self._stdin[:CHUNK]) :]
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not self._stdin

    def _read_stderr(self) -> bool:
        """Copy the program's stderr to ours and keep its tail. Return True at the end of the stream."""
        assert self._process.stderr is not None
        try:
            while data := os.read(self._process.stderr.fileno(), CHUNK):
                self._tail = (self._tail + data)[-TAIL:]
                with suppress(OSError):
                    os.write(STDERR, data)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


# -- handler -----------------------------------------------------------------------------------------------------------

EXIT_DONE = 0
EXIT_REJECT = os.EX_DATAERR
EXIT_RETRY = os.EX_TEMPFAIL
MEANING: dict[int, str] = {
    EXIT_DONE: "it worked: ack",
    EXIT_REJECT: "it will never work: rejected, to the dead letters at once",
    EXIT_RETRY: "not now: again after a while, and not counted as a fault of the message",
}
"""Any other exit code, and any signal, is a failure: it is retried as the queue's policy says."""
GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL, in seconds."""


class SubprocessHandler:
    """Handler that runs a program: for ``Route.handle``. ``raw``: stdin is the payload's bytes instead of the
    envelope as one line of JSON."""

    def __init__(
        self,
        argv: list[str],
        *,
        raw: bool = False,
        timeout: float | None = None,
        grace: float = GRACE_SECONDS,
        retry_after: float | None = None,
    ) -> None:
        """Times are in seconds. An instance serves one run of a consumer: after ``cancel`` it starts no program."""
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
        self._running: set[HandlerProcess] = set()
        self._cancelled = False

    def __call__(self, delivery: HandlerDelivery) -> HandlerOutcome:
        stdin = delivery.payload if self._raw else envelope_line(delivery)
        with self._guard:
            if self._cancelled:
                return timed_out("the consumer stopped before the program was started")
            child = HandlerProcess(self._argv, os.environ | variables(delivery), stdin)
            self._running.add(child)
        try:
            return self._judged(child.wait(self._timeout, self._grace))
        finally:
            with self._guard:
                self._running.discard(child)

    def cancel(self, now: bool) -> None:
        """Stop every running program, with SIGTERM or, if ``now``, SIGKILL. No program is started after that."""
        with self._guard:
            self._cancelled = True
            for child in self._running:
                child.stop(kill=now)

    def _judged(self, ended: ProcessResult) -> HandlerOutcome:
        tail = ended.tail.decode("utf-8", "replace").strip()
        if ended.stopped:
            after = "" if self._timeout is None else f" after {self._timeout:g} s"
            return timed_out(_joined(f"the program was ended{after}", tail))
        if ended.code == EXIT_DONE:
            return DONE
        if ended.code == EXIT_REJECT:
            return HandlerOutcome(Reason.REJECTED, tail[-MAX_FAILURE_TEXT:] or "the program rejected it")
        if ended.code == EXIT_RETRY:
            return HandlerOutcome(
                Reason.HANDLER_ERROR, tail[-MAX_FAILURE_TEXT:] or "the program requested a retry", self._retry_after
            )
        how = f"exit code {ended.code}" if ended.code > 0 else f"ended by {_signal_name(-ended.code)}"
        return HandlerOutcome(Reason.HANDLER_ERROR, _joined(how, tail), kind=how)


def envelope_line(delivery: HandlerDelivery) -> bytes:
    """Return the envelope as one line. In JSON text a line break occurs only between tokens, so a space can replace
    it."""
    return delivery.envelope_json().replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


def variables(delivery: HandlerDelivery) -> dict[str, str]:
    """Return environment variables that describe the message, for programs that do not parse JSON. NUL bytes are
    removed, because an environment cannot hold them."""
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
    return f"{how}: {tail}"[:MAX_FAILURE_TEXT] if tail else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
