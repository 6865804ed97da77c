"""What tests that kill parts of a Spark program share: a producer that goes on, a driver to kill, a judge."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.pipeline_server import Served
from tests.support.server_process import until

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0
END_SECONDS = 1200.0


class Producer:
    """Appends numbers to the topic ``k.in`` until it is stopped; ``count`` of them were confirmed."""

    def __init__(self, served: Served, per_call: int = 20, pause: float = 0.05) -> None:
        self._served = served
        self._per_call, self._pause = per_call, pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            self._served.append("k.in", *range(self.count, self.count + self._per_call))
            self.count += self._per_call
        self._served.http.close()

    def __enter__(self) -> "Producer":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


class Driver:
    """``tests.pipeline.driver`` and everything it starts, killed as one."""

    def __init__(self, folder: Path, **told: Any) -> None:
        self._folder = folder
        self._told = {"master": "local[2]", "checkpoint": str(folder / "checkpoint"), "until": 0, **told}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **told: Any) -> str:
        """The query's id, as soon as it runs."""
        command = [sys.executable, "-m", "tests.pipeline.driver", json.dumps({**self._told, **told})]
        with (self._folder / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, start_new_session=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode().strip()
        assert line, self.log()
        return line

    def log(self) -> str:
        return (self._folder / "driver.log").read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """The driver, its Java and every worker, all at once."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None

    def finish(self) -> None:
        """Everything there is; then it ends by itself."""
        self.start(until=1, perTrigger=100_000)
        assert self.process is not None
        try:
            assert self.process.wait(END_SECONDS) == 0, self.log()
        finally:
            self.kill()


def wait_for_batches(served: Served, query: str, more: int, driver: Driver) -> None:
    """So many more batches than there are; asked often, to be there right after a commit."""
    wanted = len(served.batches(query)) + more

    def is_there() -> bool:
        assert driver.process is not None
        assert driver.process.poll() is None, driver.log()
        return len(served.batches(query)) >= wanted

    until(is_there, START_SECONDS)


def judge(served: Served, count: int) -> None:
    """Everything that is in the one topic is there once, in order, and nothing else."""
    came = [int(value) for value in served.values("k.in")]
    assert len(came) >= count
    assert set(came) >= set(range(count))
    topic = [int(value) for value in served.values("k.out")]
    queue = [int(value) for value in served.payloads("k-out")]
    for found, wanted in ((topic, [n for n in came if n % 10]), (queue, [n for n in came if n % 10 == 0])):
        assert found == wanted, differing(found, wanted)


def differing(found: list[int], wanted: list[int]) -> str:
    more, less = Counter(found) - Counter(wanted), Counter(wanted) - Counter(found)
    where = next((at for at, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), -1)
    told = f"{len(wanted)} in, {len(found)} out, differing from row {where} on"
    return f"{told}; too many: {sorted(more)[:20]}, lost: {sorted(less)[:20]}"


def tell(name: str, began: float, served: Served, query: str, count: int, kills: int) -> None:
    refused = sum(one["refused"] for one in served.batches(query))
    print(
        f"\n{name}: {kills} kills, {count} records in, {count} out, 0 lost, 0 duplicated, "
        f"{len(served.batches(query))} batches, {refused} refused, {time.monotonic() - began:.0f} s"
    )
