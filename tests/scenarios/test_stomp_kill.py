"""kill -9 of a server that speaks STOMP, and of its consumers: what was receipted is there, and nothing that a client
held is stuck."""

import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.support.queues import unsettled
from tests.support.server_process import daemon
from tests.support.stomp_server import LiveClient
from tests.support.wait import until
from yirangmq.client.connect import connect
from yirangmq.core.dispatch import Strategy

pytestmark = [pytest.mark.process]
KILLS = 3


def has_heard(client: LiveClient, receipts: int) -> bool:
    return len(client.heard.receipts) >= receipts


def test_stomp_receipted_messages_survive_server_kills_and_none_is_delivered_twice(tmp_path: Path) -> None:
    confirmed: list[bytes] = []
    with daemon(tmp_path, "--stomp", "127.0.0.1:0") as server:
        for kill in range(KILLS):
            client = LiveClient(server.port_of("stomp")).connect()
            for number in range(300):
                headers = {"receipt": f"{kill}.{number}", "persistent": "true"}
                client.line.send("/queue/mail", f"{kill}.{number}", headers=headers)
            until(partial(has_heard, client, 50 * kill))
            server.kill()
            confirmed += [receipt.encode() for receipt in client.heard.receipts]
            client.close()
            server.start()
        client = LiveClient(server.port_of("stomp")).connect()
        client.send("/queue/mail", b"last")
        client.line.subscribe("/queue/mail", id="1", ack="auto")
        until(lambda: client.heard.messages and client.heard.messages[-1].body == b"last")
        bodies = [message.body for message in client.heard.messages]
        client.close()
    assert len(confirmed) >= 50
    assert set(confirmed) <= set(bodies)
    assert len(set(bodies)) == len(bodies)


def test_stomp_messages_of_a_client_are_redelivered_at_once_after_a_server_kill(tmp_path: Path) -> None:
    with daemon(tmp_path, "--stomp", "127.0.0.1:0") as server:
        client = LiveClient(server.port_of("stomp")).connect()
        for number in range(3):
            client.send("/queue/mail", str(number))
        client.confirm(client.line.subscribe, "/queue/mail", id="1", ack="client")
        client.messages(3)
        client.confirm(client.line.subscribe, "/temp-queue/back", id="2")
        client.send("/temp-queue/back", b"x")
        server.kill()
        client.close()
        server.start()
        client = LiveClient(server.port_of("stomp")).connect()
        client.confirm(client.line.subscribe, "/queue/mail", id="1", ack="client")
        messages = client.messages(3)
        client.close()
    assert [(one.body, one.headers["JMSXDeliveryCount"]) for one in messages] == [(b"0", "2"), (b"1", "2"), (b"2", "2")]


# -- a consumer is killed ------------------------------------------------------------------------------------------

DOOMED = """
import socket, sys
lines = []
for queue in sys.argv[2:]:
    line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    line.sendall(f"CONNECT\\naccept-version:1.2\\nhost:x\\nclient-id:doomed-{queue}\\n\\n\\0".encode())
    headers = f"id:1\\nack:client\\nactivemq.prefetchSize:3\\nreceipt:s\\ndestination:/queue/{queue}"
    line.sendall(f"SUBSCRIBE\\n{headers}\\n\\n\\0".encode())
    heard = b""
    while b"RECEIPT" not in heard:
        heard += line.recv(65536)
    lines.append((line, heard))
print("there", flush=True)
for line, heard in lines:
    while b"MESSAGE" not in heard:
        heard += line.recv(65536)
print("has some of each", flush=True)
sys.stdin.read()
"""
"""Takes from each queue and never acknowledges."""


def test_stomp_consumer_killed_under_each_dispatch_strategy_loses_nothing_and_keeps_the_order(tmp_path: Path) -> None:
    queues = [one.value for one in Strategy]
    with daemon(tmp_path, "--stomp", "127.0.0.1:0") as server, connect(server.address) as looker:
        for queue in queues:
            looker.set_policy(
                queue,
                {"visibilityTimeoutSec": 600, "dispatch": {"strategy": queue, "graceSec": 1}},
            )
        command = [sys.executable, "-c", DOOMED, str(server.port_of("stomp")), *queues]
        doomed = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        survivor = LiveClient(server.port_of("stomp")).connect()
        try:
            assert doomed.stdout is not None
            assert doomed.stdout.readline() == "there\n"
            for queue in queues:
                looker.publish(queue, b"first")
            assert doomed.stdout.readline() == "has some of each\n"
            for number, queue in enumerate(queues):
                survivor.confirm(survivor.line.subscribe, f"/queue/{queue}", id=str(number), ack="auto")
                looker.publish_many(queue, [b"%d" % n for n in range(20)])
            doomed.kill()
            doomed.communicate()
            until(lambda: all(unsettled(looker, queue) == 0 for queue in queues))
            until(lambda: len(survivor.heard.messages) == 21 * len(queues) - 1)  # of the first one it has no copy
        finally:
            doomed.kill()
            doomed.communicate()
            survivor.close()
        wanted = [b"first", *(b"%d" % n for n in range(20))]
        for number, queue in enumerate(queues):
            got = [one for one in survivor.heard.messages if one.headers["subscription"] == str(number)]
            bodies = [one.body for one in got]
            there = wanted[1:] if queue == "broadcast" else wanted
            assert Counter(bodies) == Counter(there), queue
            again = {one.body for one in got if one.headers.get("redelivered") == "true"}
            assert (b"first" in again) == (queue != "broadcast"), queue
            if queue == "ordered":
                assert bodies == wanted
