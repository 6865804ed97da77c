"""The client ``stomp.py``, as programs use it, against a whole server."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import stomp

from tests.support.credentials import certificate, client_context, server_context
from tests.support.stomp_server import LiveServer, live
from tests.support.wait import PATIENCE, until
from yirangmq.client.connect import connect
from yirangmq.core.access import AccessGrant

MODES = ("auto", "client", "client-individual")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One for all: each test has a queue of its own."""
    with live(tmp_path_factory.mktemp("stomp") / "d") as made:
        yield made


@pytest.mark.parametrize("mode", MODES)
def test_stomp_client_message_round_trips_in_every_version_and_ack_mode(
    server: LiveServer, version: str, mode: str
) -> None:
    client = server.connected(version)
    destination = f"/queue/back-{version}-{mode}"
    body = bytes(range(256))
    client.confirm(client.line.subscribe, destination, id="7", ack=mode)
    client.send(destination, body, persistent="true", priority="6", **{"correlation-id": "c", "x-mine": "a:b\\"})
    [message] = client.messages(1)
    assert message.body == body
    told = {"destination": destination, "subscription": "7", "persistent": "true", "priority": "6", "x-mine": "a:b\\"}
    assert {name: message.headers.get(name) for name in told} == told
    if mode != "auto":
        client.ack(message)
    with connect(server.unix) as queues:
        until(lambda: queues.counts(destination.removeprefix("/queue/")).done == 1)


def test_stomp_client_nack_is_redelivered_and_then_a_dead_letter(server: LiveServer) -> None:
    with connect(server.unix) as queues:
        queues.set_policy("again", {"retry": {"limit": 1, "initialDelaySec": 0, "maxDelaySec": 0}})
        client = server.connected("1.1")
        client.confirm(client.line.subscribe, "/queue/again", id="1", ack="client-individual")
        client.send("/queue/again", b"x")
        client.nack(client.messages(1)[0])
        [message] = client.messages(1)
        assert message.headers["redelivered"] == "true"
        client.nack(message)
        assert queues.counts("again").dead == 1


@pytest.mark.parametrize("is_committed", [True, False])
def test_stomp_client_transaction_is_committed_or_aborted_as_a_whole(
    server: LiveServer, version: str, is_committed: bool
) -> None:
    client, queue = server.connected(version), f"transaction-{version}-{is_committed}"
    client.send(f"/queue/{queue}-in", b"work")
    client.confirm(client.line.subscribe, f"/queue/{queue}-in", id="1", ack="client")
    [work] = client.messages(1)
    transaction = client.line.begin()
    client.send(f"/queue/{queue}-out", b"result", transaction=transaction)
    client.ack(work, transaction=transaction)
    with connect(server.unix) as queues:
        assert queues.counts(f"{queue}-out").ready == 0
        client.confirm(client.line.commit if is_committed else client.line.abort, transaction)
        assert queues.counts(f"{queue}-out").ready == is_committed
        assert queues.counts(f"{queue}-in").done == is_committed


def test_stomp_client_durable_topic_subscription_gets_records_sent_while_disconnected(server: LiveServer) -> None:
    name = {"activemq.subscriptionName": "main"}
    client = server.client()
    client.connect(headers={"client-id": "billing"})
    client.confirm(client.line.subscribe, "/topic/news.*", id="1", headers=name)
    sender = server.connected()
    sender.send("/topic/news.a", b"1")
    assert [message.body for message in client.messages(1)] == [b"1"]
    client.close()
    client.heard.is_over.wait(PATIENCE)
    sender.send("/topic/news.a", b"2")
    again = server.client()
    again.connect(headers={"client-id": "billing"})
    again.confirm(again.line.subscribe, "/topic/news.*", id="1", headers=name)
    [message] = again.messages(1)
    assert (message.body, message.headers["destination"]) == (b"2", "/topic/news.a")


def test_stomp_heartbeat_runs_in_both_directions(server: LiveServer) -> None:
    client = server.client(heartbeats=(2000, 2000))
    client.connect()
    until(lambda: client.heard.beats >= 2)
    assert client.line.is_connected()


def test_stomp_error_for_an_unknown_destination_names_the_valid_prefixes(server: LiveServer) -> None:
    client = server.connected()
    client.line.send("/nowhere/x", b"x")
    until(lambda: client.heard.errors)
    [error] = client.heard.errors
    assert "must begin with /queue/, /topic/" in error.headers["message"]
    assert client.heard.is_over.wait(PATIENCE)


def test_stomp_disconnect_returns_leased_messages_at_once(server: LiveServer) -> None:
    first, second = server.connected(), server.connected()
    first.send("/queue/lost", b"1")
    first.confirm(first.line.subscribe, "/queue/lost", id="1", ack="client")
    first.messages(1)
    first.line.transport.disconnect_socket()
    second.line.subscribe("/queue/lost", id="1", ack="client")
    [message] = second.messages(1)
    assert message.headers["JMSXDeliveryCount"] == "2"


def test_stomp_clients_share_a_queue(server: LiveServer) -> None:
    consumers = [server.connected() for _ in range(4)]
    for one in consumers:
        one.confirm(one.line.subscribe, "/queue/shared", id="1", ack="auto", headers={"activemq.prefetchSize": "10"})
    sender = server.connected()
    for number in range(200):
        sender.line.send("/queue/shared", str(number))
    until(lambda: sum(len(one.heard.messages) for one in consumers) >= 200)
    bodies = [int(message.body) for one in consumers for message in one.heard.messages]
    assert sorted(bodies) == list(range(200))


def test_stomp_connections_are_shown_in_status_consumer_list_and_metrics(server: LiveServer) -> None:
    client = server.connected(headers={"client-id": "seen"})
    client.confirm(client.line.subscribe, "/queue/seen", id="1", ack="client")
    with connect(server.unix) as queues:
        until(lambda: any("stomp:seen" in card["consumerId"] for card in queues.consumer_list()))
        status = queues.call("status")
        assert status["stomp"]["connections"] >= 1
        assert status["stomp"]["frames"]["SUBSCRIBE"] >= 1
        assert any(one.startswith("stomp://127.0.0.1:") for one in status["addresses"])
        [row] = [one for one in queues.call("connections") if one["client"] == "seen"]
        assert (row["protocol"], row["subscriptions"][0]["queue"]) == ("stomp 1.2", "seen")
        assert 'yirangmq_stomp_frames_total{command="SUBSCRIBE"}' in queues.call("metrics")


def test_stomp_tls_connection_requires_a_token(tmp_path: Path) -> None:
    grants = (AccessGrant("a-good-token"),)
    with live(tmp_path / "d", grants, server_context(tmp_path)) as server:
        client = server.client()
        client.line.set_ssl([("127.0.0.1", server.port)], ca_certs=str(certificate(tmp_path)[0]))
        client.connect(username="anybody", passcode="a-good-token")
        client.send("/queue/mail", b"x")
        refused = server.client()
        refused.line.set_ssl([("127.0.0.1", server.port)], ca_certs=str(certificate(tmp_path)[0]))
        with pytest.raises(stomp.exception.ConnectFailedException):
            refused.connect(username="anybody", passcode="wrong")
        [error] = refused.heard.errors
        assert "CONNECT with a token" in error.headers["message"]


def test_stomp_backpressure_of_a_sender_without_receipts_ends_when_its_messages_are_stored(tmp_path: Path) -> None:
    """With so few allowed to be under way it is not read from again and again; nothing is sent to it meanwhile."""
    with live(tmp_path / "d", max_pending=1) as small:
        sender = small.connected()
        for _ in range(300):
            sender.line.send("/queue/many", b"x" * 20_000)
        sender.send("/queue/many", b"last")
        with connect(small.unix) as queues:
            assert queues.counts("many").ready == 301


def test_stomp_backpressure_bounds_memory_of_a_slow_client_and_does_not_affect_others(server: LiveServer) -> None:
    """Forty megabytes wait; it is sent a few, and the others go on."""
    body = b"x" * 200_000
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(b"CONNECT\n\n\0SUBSCRIBE\ndestination:/queue/slow\nack:auto\n\n\0")
        assert line.recv(9) == b"CONNECTED"
        sender = server.connected()
        for _ in range(200):
            sender.line.send("/queue/slow", body)
        sender.send("/queue/slow", b"last")
        with connect(server.unix) as queues:
            until(lambda: any(one["clogged"] for one in queues.call("connections")))
            [row] = [one for one in queues.call("connections") if one["clogged"]]
            assert row["bytesHeld"] < 4 << 20
            assert queues.counts("slow").ready > 100
        quick = server.connected()
        quick.line.subscribe("/queue/slow", id="1", ack="auto")
        until(lambda: quick.heard.messages and quick.heard.messages[-1].body == b"last")
    with connect(server.unix) as queues:
        until(lambda: queues.counts("slow").leased == 0)


# -- an ERROR is read before the connection ends -----------------------------------------------------------------------

OVER_LIMIT = 17 * 1024 * 1024


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("is_length_given", [True, False])
def test_stomp_error_for_a_body_over_the_limit_is_readable_after_the_whole_body_was_sent(
    tmp_path: Path, is_tls: bool, is_length_given: bool
) -> None:
    """The client writes all of a frame before it reads: what the server does not want must not reset the connection."""
    certificate(tmp_path)
    with live(tmp_path / "d", tls=server_context(tmp_path) if is_tls else None) as server:
        line = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        if is_tls:
            line = client_context(tmp_path).wrap_socket(line, server_hostname="localhost")
        with line:
            line.sendall(b"CONNECT\naccept-version:1.2\n\n\0")
            assert b"CONNECTED" in line.recv(4096)
            length = f"content-length:{OVER_LIMIT}\n" if is_length_given else ""
            head = f"SEND\ndestination:/queue/large\nreceipt:1\n{length}\n".encode()
            line.sendall(head + b"x" * OVER_LIMIT + b"\0")
            told = b""
            while chunk := line.recv(65536):
                told += chunk
    assert told.startswith(b"ERROR\n")
    assert str(16 * 1024 * 1024).encode() in told
    assert told.endswith(b"\0")
