"""Hook process supervision, and the checker that runs a chain's checks and hooks for a message.

The process (``broker.admission.hook_worker``) is started at the first call. When a hook exceeds its timeout, the
process and its children are killed; the next call starts another. Starting Python and importing the hook's module have
a separate limit, ``START_SECONDS``.

The checker runs outside transactions: checks first, then hooks, each within its timeout. A failing message does not
affect the others. After ``MAX_LOST`` lost processes the remaining messages of a request fail untried.

Both classes are for one thread at a time; ``close`` may be called from any thread."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from yirangmq.broker.admission.admission import AdmissionControl, AdmissionVerdict, NeedsCheck, Verdicts, key_of, unfit
from yirangmq.broker.admission.hook_worker import FAILED, UNFIT, frame, unframe, unpacked
from yirangmq.core.errors import HookFailed, QueueError
from yirangmq.core.message import Envelope
from yirangmq.core.processor import Chain, Hook
from yirangmq.format.envelope import NewMessage

# -- the process -------------------------------------------------------------------------------------------------------

START_SECONDS = 60.0
"""Timeout for the start of Python and the import of the hook's module, in seconds; not part of the hook's timeout."""


class HookProcessLost(HookFailed):
    """The hook process was killed or ended; the next call starts another."""


class HookProcess:
    """Supervisor of one hook process. ``call`` is serialized by a lock; ``close`` may be called from any thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._loaded: set[str] = set()
        self._call_lock = threading.Lock()
        self._guard = threading.Lock()
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def call(self, hook: str, about: dict[str, Any], payload: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """Return the hook's answer and its payloads; ``HookProcessLost`` if the hook exceeds ``seconds`` or its process
        ends."""
        with self._call_lock:
            return self._called(hook, about, payload, seconds)

    def _called(self, hook: str, about: dict[str, Any], payload: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        connection = self._started()
        if hook not in self._loaded:
            loaded, _ = self._ask(connection, hook, {"hook": hook}, b"", START_SECONDS)
            if loaded["outcome"] == FAILED:
                raise HookFailed(f"hook {hook} cannot be loaded: {loaded['text']}", field="processor.hooks")
            self._loaded.add(hook)
        return self._ask(connection, hook, {"hook": hook, **about}, payload, seconds)

    def _started(self) -> socket.socket:
        with self._guard:
            self._check_open()
            if self._connection is not None and self._process is not None and self._process.poll() is None:
                return self._connection
        self._end()
        ours, theirs = socket.socketpair()
        module = "yirangmq.broker.admission.hook_worker"
        command = [sys.executable, "-m", module, str(theirs.fileno()), json.dumps(sys.path)]
        with self._guard, theirs:
            try:
                self._check_open()  # ``close`` may have run meanwhile, and would wait for this hook
            except HookProcessLost:
                ours.close()
                raise
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()], start_new_session=True
            )
            self._connection = ours
        return ours

    def _check_open(self) -> None:
        if self._is_closed:
            raise HookProcessLost("the server is stopping", field="processor.hooks")

    def _ask(
        self, connection: socket.socket, hook: str, about: dict[str, Any], payload: bytes, seconds: float
    ) -> tuple[dict[str, Any], bytes]:
        until = time.monotonic() + seconds
        try:
            connection.settimeout(seconds)
            connection.sendall(frame(about, payload))
            size = int.from_bytes(_received(connection, 4, until))
            return unframe(_received(connection, size, until))
        except TimeoutError:
            self._end()
            raise HookProcessLost(f"hook {hook} was stopped after {seconds:g} s", field="processor.hooks") from None
        except OSError:
            code = self._end()
            how = f"by {_signal_name(-code)}" if code < 0 else f"with exit code {code}"
            raise HookProcessLost(f"the process of hook {hook} ended {how}", field="processor.hooks") from None

    def _end(self) -> int:
        """Kill the process group, with the processes that a hook started. Return the exit code."""
        with self._guard:
            process, connection = self._process, self._connection
            self._process = self._connection = None
            self._loaded.clear()
        if connection is not None:
            connection.close()
        if process is None:
            return 0
        code = process.poll()
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        ended = process.wait()
        return ended if code is None else code

    def close(self) -> None:
        """Kill a running hook, and start no other."""
        with self._guard:
            self._is_closed = True
            process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        with self._call_lock:  # a call in progress has got its error and left
            self._end()


def _received(connection: socket.socket, size: int, until: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        piece = connection.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise ConnectionError
        data += piece
    return bytes(data)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# -- the checker -------------------------------------------------------------------------------------------------------

MAX_LOST = 3
"""Number of processes lost during one request after which its remaining messages are not tried."""


class Checker:
    """Checker: runs the checks and hooks of a chain, with one hook process. One thread at a time."""

    def __init__(self, admission: AdmissionControl) -> None:
        self._admission = admission
        self.process = HookProcess()

    def verdicts(self, needed: NeedsCheck) -> Verdicts:
        """Return a verdict per message. A failure does not affect the other messages.

        After ``MAX_LOST`` lost processes the remaining messages fail untried."""
        lost = 0
        found: Verdicts = {}
        for envelope in needed.envelopes:
            if lost >= MAX_LOST:
                error = HookFailed(f"not tried: hooks of queue {needed.queue!r} failed before it", field=HOOKS)
                found[key_of(envelope)] = AdmissionVerdict(needed.chain, error)
                continue
            verdict, was_lost = self._verdict(needed.chain, envelope)
            lost += was_lost
            found[key_of(envelope)] = verdict
        return found

    def _verdict(self, chain: Chain, envelope: Envelope) -> tuple[AdmissionVerdict, bool]:
        error: QueueError | None = self._admission.check_message(chain, envelope)
        made: list[tuple[Hook, NewMessage]] = []
        try:
            for hook in chain.hooks if error is None else ():
                made += [(hook, new) for new in self._run(hook, envelope)]
        except HookProcessLost as problem:
            return AdmissionVerdict(chain, HookFailed(_named(problem, envelope), field=HOOKS)), True
        except HookFailed as problem:
            error = HookFailed(_named(problem, envelope), field=HOOKS)
        except QueueError as problem:
            error = problem
        return AdmissionVerdict(chain, error, () if error is not None else tuple(made)), False

    def _run(self, hook: Hook, envelope: Envelope) -> list[NewMessage]:
        forbidden = self._admission.may_run(hook)
        if forbidden is not None:
            raise forbidden
        about: dict[str, Any] = {
            "queue": envelope.queue,
            "id": envelope.id,
            "at": envelope.published_at,
            "header": envelope.header,
            "isJson": envelope.is_json,
            "produces": bool(hook.produces),
        }
        answer, body = self.process.call(hook.name, about, envelope.payload, hook.timeout_ms / 1000)
        if answer["outcome"] == UNFIT:
            raise unfit(envelope, hook.name, answer.get("field", "payload"), answer["text"])
        if answer["outcome"] == FAILED:
            raise HookFailed(f"hook {hook.name} failed: {answer['text']}")
        return unpacked(answer, body)

    def close(self) -> None:
        self.process.close()


HOOKS = "processor.hooks"


def _named(error: HookFailed, envelope: Envelope) -> str:
    return f"{str(error).removeprefix(f'{HOOKS}: ')} (message {envelope.id}, queue {envelope.queue!r})"
