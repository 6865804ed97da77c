"""Servers and client processes of a comparison: started on private folders and free ports, and all stopped at the end,
whatever happens. Knows: processes. Does not know: what they measure."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from peers_fetch import NO_PACKAGES, Packages
from peers_worker import SLOT, Progress

HERE = Path(__file__).resolve().parent
PATIENCE = 120.0
"""Seconds any one thing may take."""


_libc = ctypes.CDLL(None)
_SET_DEATH_SIGNAL = 1


def _end_with_parent() -> None:
    """Also when this program is killed and cannot clean up."""
    _libc.prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL))


class Server:
    """A broker that runs until ``stop``. Each kind says how it starts."""

    name = ""

    def __init__(self, folder: Path, packages: Packages = NO_PACKAGES) -> None:
        self.folder = folder
        self.packages = packages
        self.log = folder.with_suffix(".log")
        self.address: dict[str, Any] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    def open(self) -> None:
        """Launch it, and know its address."""
        raise NotImplementedError

    def first_message(self) -> bool:
        """Publish one and see it confirmed; an ``OSError`` means not yet."""
        raise NotImplementedError

    def start(self) -> float:
        """Seconds until the first message was taken."""
        return self.start_until(self.first_message)

    def start_until(self, is_so: Callable[[], bool]) -> float:
        begin = time.monotonic()
        self.folder.mkdir(exist_ok=True)
        self.open()
        self.wait_until(is_so)
        return time.monotonic() - begin

    def launch(self, command: list[str], environment: Mapping[str, str]) -> None:
        """Its children belong to its process group and end with it; nothing of it outlives this program."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Ask again and again; an error of the connection means not yet."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and all(process.poll() is None for process in self._processes):
            with contextlib.suppress(OSError):
                if is_so():
                    return
            time.sleep(0.002)
        tail = self.log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{self.name} does not answer; the end of its log:\n{tail}")

    def stop(self, kind: signal.Signals = signal.SIGTERM) -> None:
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, kind)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._processes.clear()


class Worker:
    """One client process; see ``peers_worker``."""

    def __init__(self, program: str, python: Path, orders: dict[str, Any]) -> None:
        self.orders = orders
        self._process = subprocess.Popen(
            [str(python), str(HERE / program), json.dumps(orders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=_end_with_parent,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def expect_ready(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"a client process could not begin: {self.orders}")

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a client process ended early: {self.orders}")
        return json.loads(line)

    def failed(self) -> bool:
        return self._process.poll() not in (None, 0)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class Board:
    """The shared file with everybody's progress."""

    def __init__(self, path: Path, slots: int) -> None:
        path.write_bytes(bytes(SLOT.size * slots))
        self.path = path
        self._slots = [Progress(path, slot) for slot in range(slots)]

    def read(self, slots: list[int]) -> tuple[int, float, float]:
        """How many together, the first beginning, the last confirm."""
        found = [self._slots[slot].read() for slot in slots]
        began = [begin for _, begin, _ in found if begin]
        return sum(count for count, _, _ in found), min(began, default=0.0), max(last for _, _, last in found)


def free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        port: int = line.getsockname()[1]
        return port
