"""Consumers and servers as whole processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.wait import PATIENCE

HANDLER = '''
import os, pathlib, time

def note(name, text):
    """Whole at once, as other processes see it."""
    pathlib.Path(f"{name}.new").write_text(text)
    os.replace(f"{name}.new", name)

def wait(delivery):
    """Begins, and ends when there is a file named go."""
    note(f"begun-{delivery.id}-{delivery.attempt}", str(os.getpid()))
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
'''


class Process:
    """A command of ours, as a process."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._folder = folder
        (folder / "shop.py").write_text(HANDLER)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("YIRANGMQ_")}
        environment["YIRANGMQ_HTTP"] = "off"
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "yirangmq", *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def ended(self) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        out, err = self.popen.communicate(timeout=PATIENCE)
        return self.popen.returncode, out, err

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()


@contextmanager
def process(folder: Path, *words: str) -> Iterator[Process]:
    made = Process(folder, *words)
    try:
        yield made
    finally:
        if made.popen.poll() is None:
            made.popen.kill()
        with suppress(subprocess.TimeoutExpired):  # what it started may live on, with its end of the pipe
            made.popen.communicate(timeout=10)


@contextmanager
def server(folder: Path) -> Iterator[Process]:
    """A server that is ready, at ``unix:FOLDER/mq.sock``."""
    with process(folder, "serve", "--data", "data", "--socket", "mq.sock", "--json") as made:
        said = made.line()
        assert '"ready":true' in said, (said, made.popen.poll(), made.popen.stderr and made.popen.stderr.read())
        yield made
