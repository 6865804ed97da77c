"""The listener of the public layout in a whole server: its timeouts run, and the programs of the settings apply."""

import json
import socket
from pathlib import Path

import pytest

from tests.support.server_process import Daemon, daemon, until
from tests.support.wait import PATIENCE
from yirangmq.wire.feed import FeedDecoder, FeedMessage, FeedSubscribeOk

pytestmark = pytest.mark.process


def heard(server: Daemon) -> list[FeedMessage]:
    """What a client hears that says nothing, until it is disconnected."""
    with socket.create_connection(("127.0.0.1", server.port_of("feed")), PATIENCE) as client:
        data = b""
        while part := client.recv(1000):
            data += part
    return list(FeedDecoder(0).feed(data))


def test_feed_listener_disconnects_a_client_that_does_not_subscribe(tmp_path: Path) -> None:
    with daemon(tmp_path, "--feed-tcp", "127.0.0.1:0", "--frame-seconds", "0.2") as server:
        assert heard(server) == []


def test_feed_listener_refuses_an_address_that_is_not_of_a_program(tmp_path: Path) -> None:
    programs = json.dumps([{"name": "desk", "addresses": ["10.9.9.9"], "queues": ["TOPIC1"]}])
    options = ("--feed-tcp", "127.0.0.1:0", "--http", f"unix:{tmp_path / 'http.sock'}")
    with daemon(tmp_path, *options, "--programs", programs) as server:
        assert heard(server) == [FeedSubscribeOk(1, 0, 0)]
        until(lambda: any(one["event"] == "client_refused" for one in server.events()))
        [event] = [one for one in server.events() if one["event"] == "client_refused"]
        assert (event["door"], event["address"], event["reason"]) == ("feed", "127.0.0.1", "unknown")
