"""Alert outbox of a sink: notices in order, with retries; the channel interface; the program sink.

Each notice is retried until its deadline, then it is dropped and counted as lost. Beyond ``MAX_PENDING`` the oldest
notices are dropped. A channel makes a single attempt and raises ``Undelivered``; the outbox enforces the timeout by
cancelling it. Event loop thread only.

The program sink runs a program that the operator configures, without a shell, with the notice as JSON on stdin.
``create_channel`` builds the channel of a sink in the settings; mail and webhooks are in ``alerts.remote_sinks``."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from yirangmq.core.alert_settings import CommandTarget, EmailTarget, Sink
from yirangmq.core.backoff import Backoff
from yirangmq.core.errors import QueueError
from yirangmq.core.webhook import OutgoingNetworks
from yirangmq.format.envelope import iso
from yirangmq.format.json_codec import dumps
from yirangmq.observe.logs import log, values

# -- channel interface -------------------------------------------------------------------------------------------------

Document = Mapping[str, Any]


class Undelivered(Exception):
    """The notice did not arrive; the text says why."""


class Channel(Protocol):
    """Transport of notices to one sink."""

    async def send(self, document: Document) -> None:
        """Make one attempt. Raises ``Undelivered`` if it fails. The caller cancels it after the timeout."""

    def close(self) -> None: ...


# -- outbox ------------------------------------------------------------------------------------------------------------

MAX_PENDING = 200
"""Upper bound of unsent notices of a sink. Above it the oldest is dropped."""
BACKOFF = Backoff(first=1.0, limit=300.0)
"""Seconds between two attempts to deliver a notice."""


class AttemptResult(NamedTuple):
    """Result of one attempt. ``trouble`` is the error, or "" if the notice arrived."""

    trouble: str
    seconds: float


class Outbox:
    """Queue of the notices for one sink, sent in order with retries. Loop thread only.

    ``give_up``: seconds for which a notice is retried. ``on_change`` is called when a notice is removed. ``now``
    returns the wall-clock time in ms."""

    def __init__(
        self, sink: Sink, channel: Channel, give_up: float, on_change: Callable[[], None], now: Callable[[], int]
    ) -> None:
        self.sink = sink
        self._channel = channel
        self._give_up = give_up
        self._on_change = on_change
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._pending: deque[tuple[float, Document]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.sent = self.failed = self.lost = 0
        """Notices that arrived; attempts that failed; notices that were dropped."""
        self.last_error = ""
        self.last_at: str | None = None

    @property
    def pending(self) -> list[Document]:
        return [document for _, document in self._pending]

    def put(self, document: Document) -> None:
        """Add a notice; it is sent after the next ``wake``."""
        if len(self._pending) >= MAX_PENDING:
            del self._pending[1 if self._task is not None else 0]  # the first one is in flight
            self.lost += 1
        self._pending.append((self._loop.time(), document))

    def wake(self) -> None:
        if self._pending and self._task is None and not self._is_closed:
            self._task = self._loop.create_task(self._work())

    async def attempt(self, document: Document) -> AttemptResult:
        """Make one attempt, bounded by the sink's timeout."""
        begun = self._loop.time()
        self.last_at = iso(self._now())
        try:
            async with asyncio.timeout(self.sink.timeout):
                await self._channel.send(document)
            trouble = ""
        except TimeoutError:
            trouble = f"no answer within {self.sink.timeout:g} seconds"
        except Undelivered as error:
            trouble = str(error)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        self.last_error = trouble
        if trouble:
            self.failed += 1
        else:
            self.sent += 1
        return AttemptResult(trouble, self._loop.time() - begun)

    async def _work(self) -> None:
        failures = 0
        while self._pending:
            since, document = self._pending[0]
            outcome = await self.attempt(document)
            is_late = self._loop.time() - since >= self._give_up
            if outcome.trouble and not is_late:
                log.warning("alert_notice_failed", extra=self._values(document, outcome))
                failures += 1
                await asyncio.sleep(BACKOFF.delay(failures))
                continue
            if outcome.trouble:
                self.lost += 1
                log.warning("alert_notice_dropped", extra=self._values(document, outcome))
            self._pending.popleft()
            failures = 0
            self._on_change()
        self._task = None

    def _values(self, document: Document, outcome: AttemptResult) -> dict[str, Any]:
        return values(sink=self.sink.name, alert=document["alert"]["id"], error=outcome.trouble)

    def describe(self) -> dict[str, Any]:
        return {
            "sink": self.sink.name,
            "kind": self.sink.kind,
            "level": self.sink.notice_filter.level.value,
            "rules": list(self.sink.notice_filter.rules),
            "pending": len(self._pending),
            "sent": self.sent,
            "failed": self.failed,
            "lost": self.lost,
            "lastError": self.last_error or None,
            "lastAt": self.last_at,
        }

    def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        self._channel.close()


# -- program sink ------------------------------------------------------------------------------------------------------

KEPT_STDERR_BYTES = 500
"""Maximum number of bytes of the program's stderr that are kept."""


class CommandChannel:
    """Channel that runs a program for each notice; implements ``alerts.outbox.Channel``."""

    def __init__(self, program: CommandTarget) -> None:
        self._words = program.words

    async def send(self, document: Document) -> None:
        alert = document["alert"]
        notice = {
            "YIRANGMQ_ALERT_LEVEL": alert["level"],
            "YIRANGMQ_ALERT_RULE": alert["rule"],
            "YIRANGMQ_ALERT_NOTICE": document["notice"],
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **notice},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise Undelivered(f"{self._words[0]} cannot be run: {error}") from None
        try:
            said = await _exchange(process, dumps(document) + b"\n")
            code = await process.wait()
        except BaseException:
            _kill(process.pid)
            await asyncio.shield(process.wait())
            raise
        if code:
            words = said.decode("utf-8", "replace").strip()
            raise Undelivered(f"{self._words[0]} ended with {code}" + (f": {words}" if words else ""))

    def close(self) -> None:
        """Do nothing: each notice has a separate process."""


async def _exchange(process: asyncio.subprocess.Process, text: bytes) -> bytes:
    """Write ``text`` to stdin, and return the first bytes of stderr.

    The rest of stderr is read and discarded. A program that does not read its stdin is no error."""
    assert process.stdin is not None
    assert process.stderr is not None
    with suppress(OSError, RuntimeError):  # the process has ended already
        process.stdin.write(text)
        process.stdin.close()
    said = b""
    while piece := await process.stderr.read(4096):
        said = (said + piece)[:KEPT_STDERR_BYTES]
    return said


def _kill(pid: int) -> None:
    """Kill the program and its child processes, by process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


# -- channels of the settings ------------------------------------------------------------------------------------------

Secret = Callable[[str], bytes]
"""Return the secret of a name. Raises ``QueueError`` if it cannot be read."""


def create_channel(sink: Sink, secret: Secret, networks: OutgoingNetworks) -> Channel:
    if isinstance(sink.to, EmailTarget):
        from yirangmq.alerts.remote_sinks import EmailChannel  # not loaded by a server without remote sinks

        return EmailChannel(sink.to, partial(_secret, secret, sink.to.secret), sink.timeout, networks)
    if isinstance(sink.to, CommandTarget):
        return CommandChannel(sink.to)
    from yirangmq.alerts.remote_sinks import WebhookChannel  # not loaded by a server without remote sinks

    return WebhookChannel(sink.to, partial(_secret, secret, sink.to.secret), networks)


def _secret(secret: Secret, name: str) -> bytes:
    try:
        return secret(name) if name else b""
    except QueueError as error:
        raise Undelivered(str(error)) from None
