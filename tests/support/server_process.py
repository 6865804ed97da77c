"""A whole server as a process: started from nothing, stopped, killed, started again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.http_client import request_json
from tests.support.wait import PATIENCE, STALL_SECONDS
from tests.support.wait import until as until  # nearly everybody who starts a process waits for something


class Daemon:
    """``yirangmq serve`` in a folder. ``start`` returns when it is ready."""

    def __init__(self, folder: Path, *options: str, data: str = "d") -> None:
        self.folder = folder
        self.options = (*(("--data", str(folder / data)) if data else ()), *options)
        self.process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}
        self.log = folder / "serve.log"
        self.program = "yirangmq"

    @property
    def address(self) -> str:
        return f"unix:{self.folder / 'd' / 'yirangmq.sock'}"

    @property
    def url(self) -> str:
        return f"sqlite:{self.folder / 'd' / 'queue.db'}"

    def address_of(self, scheme: str) -> str:
        """Where it listens by this protocol: ``tcp``, ``http``, ``https``, ``stomp``, ``stomp+ssl`` …"""
        return next(str(one) for one in self.ready["addresses"] if one.startswith(f"{scheme}:"))

    def port_of(self, scheme: str) -> int:
        return int(self.address_of(scheme).rpartition(":")[2])

    def request(self, method: str, path: str, document: object = None, *, token: str = "") -> tuple[int, Any]:
        """(status, document) of one request over HTTP."""
        return request_json(self.address_of("http"), method, path, document, token=token)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, **env: str) -> "Daemon":
        self.launch(**env)
        return self.wait()

    def launch(self, **env: str) -> None:
        """Without waiting until it is ready."""
        command = [sys.executable, "-m", self.program, "serve", "--json", *self.options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, cwd=self.folder, env=os.environ | env
            )

    def wait(self) -> "Daemon":
        """Until it is ready."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"exited with {self.process.wait()}: {self.log.read_text()[-2000:]}")
        self.ready = json.loads(line)
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self._close()
        self.check_stalls()
        return code

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._close()

    def _close(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()

    def check_stalls(self, limit: float = STALL_SECONDS) -> None:
        """Its event loop was never blocked for longer: it waits for no lock that another process holds."""
        for line in self.log.read_bytes().splitlines() if self.log.exists() else ():
            if b'"loop_resumed"' in line or b'"loop_stalled"' in line:
                told = json.loads(line)
                blocked = told["blocked"] if "blocked" in told else told["seconds"] if told["stack"] else 0
                assert blocked < limit, f"the event loop was blocked: {self.log.read_text()[-5000:]}"

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line]

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def daemon(folder: Path, *options: str, data: str = "d") -> Iterator[Daemon]:
    made = Daemon(folder, *options, data=data)
    try:
        yield made.start()
    finally:
        made.kill()
    made.check_stalls()


def run_command(folder: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "yirangmq", *words],
        cwd=folder,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
