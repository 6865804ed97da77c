"""Notices to a program of the operator's: its arguments as they are, no shell, the notice as JSON at its stdin."""

import asyncio
import os
import signal
from contextlib import suppress

from yirangmq.core.alert_settings import Program
from yirangmq.doors.alerts.channel import Document, Undelivered
from yirangmq.format.json_codec import dumps

KEPT = 500
"""Bytes of what it says on stderr that are kept."""


class Running:
    """``doors.alerts.channel.Channel``."""

    def __init__(self, program: Program) -> None:
        self._words = program.words

    async def send(self, document: Document) -> None:
        alert = document["alert"]
        told = {
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
                env={**os.environ, **told},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise Undelivered(f"{self._words[0]} cannot be run: {error}") from None
        try:
            said = await _talk(process, dumps(document) + b"\n")
            code = await process.wait()
        except BaseException:
            _kill(process.pid)
            await asyncio.shield(process.wait())
            raise
        if code:
            words = said.decode("utf-8", "replace").strip()
            raise Undelivered(f"{self._words[0]} ended with {code}" + (f": {words}" if words else ""))

    def close(self) -> None:
        """Each notice has a process of its own."""


async def _talk(process: asyncio.subprocess.Process, text: bytes) -> bytes:
    """What it says on stderr, its beginning; the rest is read and forgotten. It need not read what it is given."""
    assert process.stdin is not None
    assert process.stderr is not None
    with suppress(OSError, RuntimeError):  # it has ended already
        process.stdin.write(text)
        process.stdin.close()
    said = b""
    while piece := await process.stderr.read(4096):
        said = (said + piece)[:KEPT]
    return said


def _kill(pid: int) -> None:
    """The program, and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
