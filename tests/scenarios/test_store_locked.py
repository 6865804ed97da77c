"""Another process holds the lock of a running server's store: the server answers, and refuses by a deadline."""

import fcntl
import http.client
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.server_process import Daemon, daemon
from tests.support.wait import PATIENCE, until

pytestmark = pytest.mark.process


@contextmanager
def locked(kind: str, folder: Path) -> Iterator[None]:
    """By this process, which is not the server's."""
    if kind == "sqlite":
        with closing(sqlite3.connect(folder / "queue.db", isolation_level=None, timeout=PATIENCE)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield
        return
    fd = os.open(folder / "queues" / ".lock", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class Web:
    def __init__(self, server: Daemon) -> None:
        self._host = server.address_of("http").removeprefix("http://")

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any, Any]:
        """An answer within 10 s, or an error: the old server waited 30 s for the lock."""
        with closing(http.client.HTTPConnection(self._host, timeout=10)) as line:
            line.request(method, path, None if body is None else json.dumps(body), {"content-type": "application/json"})
            answer = line.getresponse()
            text = answer.read()
            is_json = "json" in answer.headers.get("content-type", "")
            return answer.status, json.loads(text) if is_json else text.decode(), answer.headers


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_store_busy_is_returned_by_a_deadline_and_health_answers_meanwhile(tmp_path: Path, kind: str) -> None:
    data = tmp_path / "d"
    place = "sqlite:" + str(data / "queue.db") if kind == "sqlite" else "files:" + str(data / "queues")
    with daemon(tmp_path, "--store", place, "--http", "127.0.0.1:0", "--busy-seconds", "1") as server:
        web = Web(server)
        messages = "/v1/queues/mail/messages"
        assert web.ask("POST", messages, "before")[0] in (200, 201)
        with locked(kind, data):
            status, found, headers = web.ask("POST", messages, "refused")
            assert (status, found["error"]["code"], found["error"]["retryAfterSec"]) == (503, "store_busy", 1)
            assert int(headers["retry-after"]) >= 1
            until(lambda: "store_commit_failed" in [event["event"] for event in server.events()])
            status, found, _ = web.ask("GET", "/v1/health")
            assert (status, found["status"]) == (503, "fail")
            assert [reason["code"] for reason in found["reasons"]] == ["store_busy"]
            assert "yirangmq_loop_stall_seconds_count" in web.ask("GET", "/metrics")[1]
            if kind == "sqlite":
                assert web.ask("GET", "/v1/queues/mail")[0] == 200
        until(lambda: web.ask("GET", "/v1/health")[1]["status"] == "ok")
        assert web.ask("POST", messages, "after")[0] in (200, 201)
        _, found, _ = web.ask("POST", "/v1/queues/mail/lease", {"max": 10})
        assert [one["message"]["payload"] for one in found["messages"]] == ["before", "after"]
