"""kill -9 of a server that speaks STOMP: what was receipted is there, and nothing that a client held is stuck."""

from functools import partial
from pathlib import Path

import pytest

from tests.doors.stomp.live import LiveClient, until
from tests.scenarios.daemons import Daemon, daemon

pytestmark = [pytest.mark.process]
KILLS = 3


def port_of(server: Daemon) -> int:
    [address] = [one for one in server.ready["addresses"] if one.startswith("stomp")]
    return int(address.rpartition(":")[2])


def has_heard(client: LiveClient, receipts: int) -> bool:
    return len(client.heard.receipts) >= receipts


def test_what_was_receipted_survives(tmp_path: Path) -> None:
    confirmed: list[bytes] = []
    with daemon(tmp_path, "--stomp", "127.0.0.1:0") as server:
        for kill in range(KILLS):
            client = LiveClient(port_of(server)).connect()
            for number in range(300):
                headers = {"receipt": f"{kill}.{number}", "persistent": "true"}
                client.line.send("/queue/mail", f"{kill}.{number}", headers=headers)
            until(partial(has_heard, client, 50 * kill))
            server.kill()
            confirmed += [receipt.encode() for receipt in client.heard.receipts]
            client.close()
            server.start()
        client = LiveClient(port_of(server)).connect()
        client.send("/queue/mail", b"last")
        client.line.subscribe("/queue/mail", id="1", ack="auto")
        until(lambda: client.heard.messages and client.heard.messages[-1].body == b"last")
        bodies = [message.body for message in client.heard.messages]
        client.close()
    assert len(confirmed) >= 50
    assert set(confirmed) <= set(bodies)
    assert len(set(bodies)) == len(bodies)


def test_what_a_client_held_comes_at_once_when_the_server_is_back(tmp_path: Path) -> None:
    with daemon(tmp_path, "--stomp", "127.0.0.1:0") as server:
        client = LiveClient(port_of(server)).connect()
        for number in range(3):
            client.send("/queue/mail", str(number))
        client.confirm(client.line.subscribe, "/queue/mail", id="1", ack="client")
        client.messages(3)
        client.confirm(client.line.subscribe, "/temp-queue/back", id="2")
        client.send("/temp-queue/back", b"x")
        server.kill()
        client.close()
        server.start()
        client = LiveClient(port_of(server)).connect()
        client.confirm(client.line.subscribe, "/queue/mail", id="1", ack="client")
        messages = client.messages(3)
        client.close()
    assert [(one.body, one.headers["JMSXDeliveryCount"]) for one in messages] == [(b"0", "2"), (b"1", "2"), (b"2", "2")]
