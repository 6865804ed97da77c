"""The document's API on a whole server: killed in every state, asked by ten thousand at once."""

import http.client
import json
import select
import socket
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.limits import file_limit
from tests.support.server_process import Daemon, daemon, until
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect
from yirangmq.client.sync_client import Client

pytestmark = pytest.mark.process
HTTP = ("--http", "127.0.0.1:0")
STATES = ("drafting", "waiting", "ordered", "active", "failed")


class Answer(NamedTuple):
    status: int
    body: bytes


class Web:
    """One connection, one request at a time."""

    def __init__(self, server: Daemon) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", server.port_of("http"), timeout=PATIENCE)

    def close(self) -> None:
        self._line.close()

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> Answer:
        self._line.request(method, path, body, {} if body is None else {"Content-Type": kind})
        answer = self._line.getresponse()
        return Answer(answer.status, answer.read())

    def good(self, method: str, path: str, body: bytes | None = None) -> str:
        answer = self.ask(method, path, body)
        assert answer.status in (200, 204), answer
        return answer.body.decode()

    # -- steps -------------------------------------------------------------------------------------------------------

    def reach(self, state: str, queue: str = "q") -> str:
        """A message in this state."""
        base = f"/mq/{queue}/messages"
        id = self.good("POST", base, b'{"priority":null}')
        if state != "drafting":
            self.good("PUT", f"{base}/{id}", f"content of {state}".encode())
        if state in ("ordered", "active", "failed"):
            assert self.good("GET", base) == id
        if state in ("active", "failed"):
            self.good("GET", f"{base}/{id}")
        if state == "failed":
            self.good("PATCH", f"{base}/{id}/fail")
        return id

    def stats(self, queue: str = "q") -> dict[str, int]:
        """Those that are not 0."""
        counted = json.loads(self.good("GET", f"/mq/{queue}/stats"))
        return {name: value for name, value in counted.items() if isinstance(value, int) and value}


def test_http_mq_keeps_every_message_state_through_a_server_kill(tmp_path: Path) -> None:
    with daemon(tmp_path, *HTTP) as server:
        with closing(Web(server)) as web:
            completed = web.reach("active")
            web.good("PATCH", f"/mq/q/messages/{completed}/complete")
            ids = {state: web.reach(state) for state in reversed(STATES)}
        server.kill()
        server.start()
        with closing(Web(server)) as web:
            assert web.stats() == {**dict.fromkeys(STATES, 1), "completed": 1}
            assert web.ask("PATCH", f"/mq/q/messages/{completed}/complete").status == 204
            assert json.loads(web.good("GET", "/mq/q/failed-messages")) == [ids["failed"]]
            for state in ("waiting", "ordered", "active", "failed"):
                assert web.good("GET", f"/mq/q/messages/{ids[state]}") == f"content of {state}"
            assert web.ask("GET", f"/mq/q/messages/{ids['drafting']}").status == 409
            web.good("PUT", f"/mq/q/messages/{ids['drafting']}", b"set after the kill")
            web.good("PATCH", f"/mq/q/messages/{ids['failed']}/renew")
            assert [web.good("GET", "/mq/q/messages") for _ in range(3)] == [
                ids["waiting"], ids["drafting"], ids["failed"],
            ]  # fmt: skip


def test_http_mq_messages_answered_before_a_server_kill_are_there_after_it(tmp_path: Path) -> None:
    """Set by many at once, killed in the middle."""
    told: list[list[str]] = [[] for _ in range(8)]

    def produce(server: Daemon, mine: list[str]) -> None:
        with closing(Web(server)) as web:
            try:
                while True:
                    mine.append(web.reach("waiting", "busy"))
            except (OSError, http.client.HTTPException):
                return

    with daemon(tmp_path, *HTTP) as server:
        threads = [threading.Thread(target=produce, args=(server, mine)) for mine in told]
        for thread in threads:
            thread.start()
        until(lambda: sum(map(len, told)) >= 200)
        server.kill()
        for thread in threads:
            thread.join()
        server.start()
        ids = [id for mine in told for id in mine]
        with closing(Web(server)) as web:
            waiting = web.stats("busy")["waiting"]
            assert len(ids) <= waiting <= len(ids) + len(told)
            assert set(ids) <= {web.good("GET", "/mq/busy/messages") for _ in range(waiting)}


# -- ten thousand that wait -------------------------------------------------------------------------------------------


def hear(line: socket.socket) -> Answer:
    answer = http.client.HTTPResponse(line)
    answer.begin()
    return Answer(answer.status, answer.read())


def pending(queues: Client) -> int:
    """HTTP requests that wait."""
    return sum(one["pending"] for one in queues.call("connections") if one["client"] == "http")


@pytest.mark.parametrize("crowd", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_http_mq_waiting_requests_by_the_thousand_are_served_in_order_of_arrival(crowd: int, tmp_path: Path) -> None:
    """Some get a message, one has left and takes nothing, the rest are told when the queue is cleared."""
    with file_limit(crowd + 200) as allowed, daemon(tmp_path, *HTTP) as server, ExitStack() as stack:
        count = min(crowd, allowed - 200)
        before = server.resident_bytes()
        lines = []
        for _ in range(count):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", server.port_of("http")), PATIENCE))
            line.sendall(b"GET /mq/q/messages HTTP/1.1\r\nHost: localhost\r\n\r\n")
            lines.append(line)
        queues = stack.enter_context(connect(server.address))
        until(lambda: pending(queues) == count)
        assert (server.resident_bytes() - before) / count < 32 * 1024
        lines[1].close()
        until(lambda: pending(queues) == count - 1)
        for body in (b"one", b"two", b"three"):
            queues.publish("q", body)
        first = [hear(lines[number]) for number in (0, 2, 3)]
        assert [answer.status for answer in first] == [200] * 3
        assert not select.select(lines[4:5], [], [], 0)[0], "the next one still waits"
        lines[0].sendall(f"GET /mq/q/messages/{first[0].body.decode()} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert hear(lines[0]).body == b"one"
        lines[0].sendall(b"DELETE /mq/q HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert hear(lines[0]).status == 204
        assert {hear(line) for line in lines[4:]} == {Answer(404, b"")}
