"""A command of the pipeline as a process that is under way while the test looks, asks and stops it."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support import wait
from tests.support.pipeline_server import Served
from tests.support.server_process import until

PATIENCE = 2 * wait.PATIENCE
"""Seconds that a loaded machine may take to start Spark or to end it."""
PAGE = re.compile(r"Spark's own page: (http://\S+)")


def environment(served: Served) -> dict[str, str]:
    """Without ``YIRANGMQ_SPARK_MASTER``: a master is what ``--master`` says."""
    kept = {name: value for name, value in os.environ.items() if name != "YIRANGMQ_SPARK_MASTER"}
    return kept | {"YIRANGMQ_BROKER": served.url}


class UnderWay:
    """``yirangmq WORDS`` in ``folder``, with everything it starts; nothing of it is left behind."""

    def __init__(self, served: Served, folder: Path, *words: str) -> None:
        self._paths = [folder / f"{words[1]}.{name}" for name in ("out", "err")]
        command = [sys.executable, "-m", "yirangmq", *words]
        with self._paths[0].open("w") as out, self._paths[1].open("w") as err:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=err, cwd=folder, env=environment(served), start_new_session=True
            )

    @property
    def out(self) -> str:
        return self._paths[0].read_text()

    @property
    def err(self) -> str:
        return self._paths[1].read_text()

    def wait_for(self, is_so: Any) -> None:
        """It must not end before."""

        def is_there() -> bool:
            assert self.process.poll() is None, self.out + self.err
            return bool(is_so())

        until(is_there, PATIENCE)

    def page(self) -> str:
        """Spark's own page, as it says where it is."""
        self.wait_for(lambda: PAGE.search(self.err))
        found = PAGE.search(self.err)
        assert found is not None
        with urllib.request.urlopen(found[1], timeout=PATIENCE) as answer:
            return str(answer.read(), "utf-8")

    def told_to_go(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        return self.process.wait(PATIENCE)

    def __enter__(self) -> "UnderWay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def call(served: Served, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command that ends by itself."""
    command = [sys.executable, "-m", "yirangmq", *words]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(served),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )


def status_of(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "yirang-pipelines" / name / "status.json").read_text())
    return found
