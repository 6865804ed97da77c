"""A server with HTTP for tests of the pipeline, and short ways to put something in and to look."""

import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.server_process import Daemon
from yirangmq.core.topics import NewRecord
from yirangmq.pipeline.source.http_client import HttpBroker
from yirangmq.wire.records import RecordReader, encode_batch

FRAMES = "application/vnd.yirangmq.records"


class Served:
    """``yirangmq serve`` as a process, its data in ``folder``."""

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        address = () if "--http" in options else ("--http", "127.0.0.1:0")
        self.daemon = Daemon(folder, "--durability", "os", *address, *options)
        self.data = str(folder / "d")
        self.start()

    @property
    def http(self) -> HttpBroker:
        """Of this thread alone."""
        found: HttpBroker | None = getattr(self._local, "http", None)
        if found is None:
            found = self._local.http = HttpBroker(self.url, None, 60)
        return found

    def start(self) -> None:
        self._local = threading.local()
        self.daemon.start()
        self.url = self.daemon.address_of("http")

    def stop(self) -> None:
        self.http.close()
        self.daemon.kill()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return self.http.document(method, path, body)

    # -- topics --------------------------------------------------------------------------------------------------------

    def append(self, topic: str, *values: object, key: str | None = None, headers: dict[str, str] | None = None) -> int:
        """The sequence of the last one."""
        last = 0
        for begin in range(0, len(values), 2000):
            records = [NewRecord(topic, _bytes(value), key, headers or {}) for value in values[begin : begin + 2000]]
            data = encode_batch(records, 1, 1, {}, synced=False).data
            last = json.loads(self.http.request("POST", f"/v1/topics/{topic}/records", data, FRAMES))["last"]
        return last

    def last(self) -> int:
        found: int = self.ask("GET", "/v1/log")["last"]
        return found

    def values(self, topic: str) -> list[bytes]:
        """Every payload of a topic, in order."""
        end = self.last()
        data = self.http.request("GET", f"/v1/log/frames?after={self.ask('GET', '/v1/log')['first'] - 1}&last={end}")
        return [record.payload for record in RecordReader().feed(data) if record.topic == topic]

    # -- queues --------------------------------------------------------------------------------------------------------

    def publish(self, queue: str, *values: object) -> None:
        for begin in range(0, len(values), 500):
            body = [{"payload": value, "type": "made"} for value in values[begin : begin + 500]]
            self.ask("POST", f"/v1/queues/{queue}/messages?as=envelope", body)

    def payloads(self, queue: str, state: str = "ready") -> list[bytes]:
        """In the order of the line."""
        found: list[bytes] = []
        cursor = ""
        while True:
            path = f"/v1/queues/{queue}/records?state={state}&limit=1000&cursor={quote(cursor)}"
            data, cursor = self.http.request_page("GET", path)
            found += [record.payload for record in RecordReader().feed(data)]
            if not cursor:
                return found

    def batches(self, query: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", f"/v1/batches?query={query}" if query else "/v1/batches")[
            "batches"
        ]
        return found


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
