"""``Cache-Control`` is in every answer of the HTTP server, whichever part of it answers."""

from pathlib import Path

import pytest

from tests.support.http import dial
from tests.support.loops import run_loop
from tests.support.server_process import daemon

ASKED = [
    ("GET", "/", {}, 200),
    ("GET", "/health", {}, 200),
    ("GET", "/robots.txt", {}, 200),
    ("GET", "/metrics", {}, 200),
    ("GET", "/nowhere", {}, 404),
    ("POST", "/health", {}, 405),
    ("OPTIONS", "/health", {}, 204),
    ("OPTIONS", "*", {}, 204),
    ("GET", "/v1/queues", {}, 200),
    ("GET", "/v1/queues/none/messages/none", {}, 404),
    ("GET", "/v1/nowhere", {}, 404),
    ("POST", "/v1/queues", {}, 405),
    ("GET", "/v1/openapi.json", {}, 200),
    ("GET", "/mq", {}, 200),
    ("GET", "/mq/q/messages/none", {}, 404),
    ("GET", "/mq/nowhere/at/all", {}, 404),
    ("GET", "/admin/mq/q/config", {}, 401),
    ("GET", "/mq", {"origin": "https://elsewhere.example"}, 403),
    ("GET", "/mq", {"accept-version": "^9"}, 400),
    ("POST", "/mq/q/messages", {"content-encoding": "gzip"}, 415),
    ("GET", "/mq", {"transfer-encoding": "nonsense"}, 501),
]


@pytest.mark.process
def test_cache_control_is_in_every_answer(tmp_path: Path) -> None:
    with daemon(tmp_path, "--http", "127.0.0.1:0") as server:

        async def scene() -> None:
            for method, path, headers, status in ASKED:
                peer = await dial(server.port_of("http"))
                answer = await peer.ask(method, path, b"x" if method == "POST" else None, headers)
                assert (path, answer.status) == (path, status), answer
                assert "cache-control" in answer.headers, (method, path, headers)

        run_loop(scene())
