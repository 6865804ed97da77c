"""A whole server with its HTTP door, as a process: where it listens, who may come in, how it ends."""

import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path

import pytest

from tests.support.credentials import certificate, client_context
from tests.support.server_process import daemon
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect

pytestmark = pytest.mark.process
HERE = ("--http", "127.0.0.1:0")


@pytest.fixture
def lines() -> Iterator[Callable[[HTTPConnection], HTTPConnection]]:
    """Connections that are closed after the test."""
    with ExitStack() as stack:
        yield lambda line: stack.enter_context(closing(line))


Lines = Callable[[HTTPConnection], HTTPConnection]


def get(line: HTTPConnection, path: str, headers: Mapping[str, str] | None = None) -> tuple[HTTPResponse, bytes]:
    line.request("GET", path, headers=dict(headers or {}))
    response = line.getresponse()
    return response, response.read()


def test_http_listener_serves_health_and_metrics(tmp_path: Path, lines: Lines) -> None:
    with daemon(tmp_path, *HERE) as server:
        with connect(server.address) as client:
            client.publish("mail", {"to": "ann"})
        line = lines(HTTPConnection("127.0.0.1", server.port_of("http"), timeout=PATIENCE))
        response, body = get(line, "/health")
        assert (response.status, body) == (200, b"OK")
        assert response.getheader("content-type") == "text/plain; charset=utf-8"
        response, body = get(line, "/metrics")
        assert response.getheader("content-type") == "text/plain; version=0.0.4; charset=utf-8"
        assert b'yirangmq_queue_ready{queue="mail"} 1' in body
        assert b"Disallow: /" in get(line, "/robots.txt")[1]
        assert get(line, "/nowhere")[0].status == 404
        line.request("HEAD", "/health")
        head = line.getresponse()
        assert (head.status, head.getheader("content-length"), head.read()) == (200, "2", b"")
        with connect(server.address) as client:
            assert "http" in {one["client"] for one in client.call("connections")}


def test_http_listener_takes_its_address_from_mq_host_and_mq_port_of_the_older_queue(
    tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("YIRANGMQ_HTTP")
    monkeypatch.setenv("MQ_HOST", "127.0.0.1")
    monkeypatch.setenv("MQ_PORT", "0")
    with daemon(tmp_path) as server:
        line = lines(HTTPConnection("127.0.0.1", server.port_of("http"), timeout=PATIENCE))
        assert get(line, "/health")[1] == b"OK"


def test_http_listener_on_a_port_in_use_stops_the_start_with_a_remedy_in_the_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "yirangmq", "serve", "--data", str(tmp_path / "d"), "--http", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 12
    assert f"http: {address} is in use by process {os.getpid()} (" in done.stderr
    assert "; stop it, or choose another with --http HOST:PORT, or --http off" in done.stderr
    assert not (tmp_path / "d" / "yirangmq.sock").exists()


def test_http_listener_reachable_from_other_machines_requires_a_token(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "yirangmq", "serve", "--data", str(tmp_path / "d"), "--http", "0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2
    assert "can be reached from other machines" in done.stderr


def test_token_and_rate_limit_of_the_http_listener_are_those_of_the_settings(tmp_path: Path, lines: Lines) -> None:
    (tmp_path / "looker").write_text("the-looker-token\n")
    settings = {
        "token": "the-chief-token-",
        "http_tokens": [{"tokenFile": str(tmp_path / "looker"), "scopes": ["look"]}],
        "http_rate": 0.001,
        "http_burst": 3,
    }
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    with daemon(tmp_path, *HERE, "--config", str(tmp_path / "settings.json")) as server:
        line = lines(HTTPConnection("127.0.0.1", server.port_of("http"), timeout=PATIENCE))
        assert get(line, "/health")[0].status == 200
        refused, _ = get(line, "/metrics")
        assert (refused.status, refused.getheader("www-authenticate")) == (401, 'Bearer realm="yirangmq"')
        assert get(line, "/metrics", {"Authorization": "Bearer guess"})[0].status == 401
        often, _ = get(line, "/health")
        assert often.status == 429
        assert int(often.getheader("retry-after") or 0) > 1
        for token in ("the-chief-token-", "the-looker-token"):
            assert get(line, "/metrics", {"Authorization": f"Bearer {token}"})[0].status == 200


def test_sse_requires_a_bearer_token_and_refuses_a_token_in_the_address(tmp_path: Path, lines: Lines) -> None:
    (tmp_path / "token").write_text("the-chief-token-")
    with daemon(tmp_path, *HERE, "--token-file", str(tmp_path / "token"), "--log-level", "debug") as server:
        line = lines(HTTPConnection("127.0.0.1", server.port_of("http"), timeout=PATIENCE))
        for address in ("/v1/events", "/v1/events?token=the-chief-token-", "/v1/events?access_token=the-chief-token-"):
            assert get(line, address)[0].status == 401
        line.request("GET", "/v1/events", headers={"Authorization": "Bearer the-chief-token-"})
        stream = line.getresponse()
        assert (stream.status, stream.getheader("content-type")) == (200, "text/event-stream")
        with connect(server.address) as client:
            client.publish("mail", {"to": "ann"})
        while b'"mail"' not in (told := stream.readline()):
            assert told
        stream.close()
    assert "the-chief-token-" not in server.log.read_text()


def test_cors_origins_and_hosts_are_those_of_the_settings_and_other_ports_do_not_speak_http(
    tmp_path: Path, lines: Lines
) -> None:
    settings = ("--cors-origins", "https://app.example", "--http-hosts", "mq.example")
    others = ("--tcp", "127.0.0.1:0", "--stomp", "127.0.0.1:0", "--store", "memory:")
    with daemon(tmp_path, *HERE, *settings, *others) as server:
        line = lines(HTTPConnection("127.0.0.1", server.port_of("http"), timeout=PATIENCE))
        for headers, status in (
            ({"Origin": "https://app.example"}, 200),
            ({"Host": "mq.example", "Origin": "http://mq.example"}, 200),
            ({"Origin": "https://evil.example"}, 403),
            ({"Host": "evil.example", "Origin": "http://evil.example"}, 421),
        ):
            assert get(line, "/v1/queues", headers)[0].status == status
        assert json.loads(get(line, "/v1/queues")[1])["queues"] == []
        frames = b"CONNECT\naccept-version:1.2\n\n\0SEND\ndestination:/queue/mail\n\nx\0"
        posted = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(frames)
        for address in [one for one in server.ready["addresses"] if one.startswith(("tcp:", "stomp:"))]:
            with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), PATIENCE) as page:
                page.sendall(posted + frames)  # as a form of a page may
                while page.recv(4096):
                    pass
        assert json.loads(get(line, "/v1/queues")[1])["queues"] == []


def test_tls_http_listener_answers_https_and_not_plain_http(tmp_path: Path, lines: Lines) -> None:
    made, key = certificate(tmp_path)
    with daemon(tmp_path, *HERE, "--tls-cert", str(made), "--tls-key", str(key)) as server:
        line = lines(
            HTTPSConnection("localhost", server.port_of("https"), timeout=PATIENCE, context=client_context(tmp_path))
        )
        assert get(line, "/health")[1] == b"OK"
        with pytest.raises((ssl.SSLError, ConnectionError, OSError)):
            get(lines(HTTPConnection("127.0.0.1", server.port_of("https"), timeout=PATIENCE)), "/health")


def test_http_listener_on_a_unix_socket_answers_and_removes_the_socket_on_stop(tmp_path: Path) -> None:
    with daemon(tmp_path, "--http", f"unix:{tmp_path}/web/http.sock") as server:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(f"{tmp_path}/web/http.sock")
            line.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            with line.makefile("rb") as answer:
                assert answer.read().endswith(b"\r\n\r\nOK")
        assert server.stop() == 0
    assert not (tmp_path / "web" / "http.sock").exists()


def test_http_listener_stops_cleanly_though_clients_stay_connected(tmp_path: Path, lines: Lines) -> None:
    with daemon(tmp_path, *HERE) as server:
        staying = [lines(HTTPConnection("127.0.0.1", server.port_of("http"), timeout=PATIENCE)) for _ in range(5)]
        for line in staying:
            get(line, "/health")
        with socket.create_connection(("127.0.0.1", server.port_of("http")), PATIENCE) as half:
            half.sendall(b"GET /health HT")
            assert server.stop() == 0
        for line in staying:
            assert line.sock.recv(1) == b""
        [stopping] = [event for event in server.events() if event["event"] == "server_stopping"]
        assert stopping["clients"] == 6


def test_http_modules_are_not_loaded_without_an_http_listener(tmp_path: Path) -> None:
    program = (
        "import sys, yirangmq.cli.commands.serve, yirangmq.server.listeners\n"
        "assert not [name for name in sys.modules if name.startswith('yirangmq.protocols.http.')]\n"
        "assert not {'httptools', 'email', 'tempfile', 'shutil', 'logging.handlers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)
