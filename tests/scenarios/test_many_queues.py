"""A whole server at its ``max_queues``: every protocol refuses a new queue and names the setting."""

import json
import socket
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.server_process import Daemon, daemon, run_command
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect
from yirangmq.core.errors import QuotaExceeded

pytestmark = pytest.mark.process


def http(server: Daemon, method: str, path: str, body: bytes | None = b"1") -> tuple[int, str]:
    address = server.address_of("http")
    try:
        with urlopen(Request(address + path, body, {"content-type": "application/json"}, method=method)) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def stomp(server: Daemon, queue: str) -> str:
    """The command and the headers of what a SEND is answered with."""
    address = server.address_of("stomp")
    host, _, port = address.rpartition("//")[2].rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as line:
        line.sendall(b"CONNECT\naccept-version:1.2\nhost:here\n\n\0")
        line.sendall(f"SEND\ndestination:/queue/{queue}\nreceipt:r\n\n1\0".encode())
        heard = b""
        while b"RECEIPT" not in heard and b"ERROR" not in heard:
            heard += line.recv(65536)
        return heard.partition(b"\0")[2].decode()


def test_max_queues_is_kept_by_every_protocol(tmp_path: Path) -> None:
    options = ("--http", "127.0.0.1:0", "--stomp", "127.0.0.1:0", "--max-queues", "2")
    with daemon(tmp_path, *options) as server, connect(server.address) as client:
        client.publish("a", 1)
        client.publish("b", 1)

        with pytest.raises(QuotaExceeded, match=r"allows 2; .*max_queues"):
            client.publish("new", 1)
        with pytest.raises(QuotaExceeded):
            client.set_policy("new", {"retry": {"limit": 2}})
        for method, path, body in (
            ("POST", "/v1/queues/new/messages", b"1"),
            ("PUT", "/v1/queues/new/policy", b"{}"),
            ("POST", "/mq/new/messages", b'{"priority": 1}'),
        ):
            status, text = http(server, method, path, body)
            assert status == 429, (path, text)
            assert "max_queues" in text
        assert stomp(server, "new").lstrip().startswith("ERROR")
        command = run_command(tmp_path, "publish", "--store", server.address, "-q", "new", "--json", "1")
        assert json.loads(command.stderr)["code"] == "quota_exceeded"

        assert client.queues() == ["a", "b"]
        assert http(server, "POST", "/v1/queues/a/messages")[0] in (200, 201)
        assert "RECEIPT" in stomp(server, "b")
        client.delete_queue("b")
        client.publish("new", 1)
        assert client.queues() == ["a", "new"]
