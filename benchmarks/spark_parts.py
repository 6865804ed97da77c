"""What ``spark.py`` needs beside Spark: a server, those who publish to it, and patience."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

from yirangmq.pipeline.source.http_client import HttpBroker

PER_SECOND = 50


class Server:
    """``yirangmq serve`` on the folder's data, durability full."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "yirangmq", "serve", "--json", "--data", str(folder / "data")]
        self._process = subprocess.Popen(
            [*command, "--http", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        addresses = json.loads(self._process.stdout.readline())["addresses"]
        self.url: str = next(one for one in addresses if one.startswith("http:"))

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()


class Others:
    """Publishes from a thread of its own, one message after the other, until it is left; ``took`` in seconds."""

    def __init__(self, url: str) -> None:
        self._broker = HttpBroker(url, None, 60)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self.took: list[float] = []

    def __enter__(self) -> "Others":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _publish(self) -> None:
        while not self._is_over.wait(0.005):
            begin = time.perf_counter()
            self._broker.document("POST", "/v1/queues/others/messages", {"n": len(self.took)})
            self.took.append(time.perf_counter() - begin)
        self._broker.close()


class Trickle:
    """So many records at an even pace, from a thread of their own."""

    def __init__(self, url: str, count: int) -> None:
        self._broker = HttpBroker(url, None, 60)
        self._count = count

    def run(self) -> None:
        thread = threading.Thread(target=self._publish)
        thread.start()
        thread.join()

    def _publish(self) -> None:
        begin = time.monotonic()
        for number in range(self._count):
            time.sleep(max(0.0, begin + number / PER_SECOND - time.monotonic()))
            self._broker.document("POST", "/v1/topics/ticks/records", {"n": number})
        self._broker.close()


class Patience:
    """How often something is measured, by the time there is: once when most of it is gone."""

    def __init__(self, minutes: float, most: int) -> None:
        self._until = time.monotonic() + 0.6 * 60 * minutes
        self._most = most

    def runs(self) -> int:
        return self._most if time.monotonic() < self._until else 1
