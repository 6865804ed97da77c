"""Topics over STOMP: everybody hears everything; who is away and durable hears it later."""

from pathlib import Path

import pytest

from tests.support.stomp import StompServer, bodies, error_of
from yirangmq.protocols.stomp.topic_subscriptions import PAGE_RECORDS
from yirangmq.wire.stomp import V11, V12


def test_topic_record_reaches_every_live_subscriber(server: StompServer, version: str) -> None:
    one, two = server.connected(version), server.connected()
    one.send("/topic/news", b"before")
    one.subscribe("/topic/news", "auto")
    two.subscribe("/topic/news", "auto")
    body = bytes(range(256))
    one.send("/topic/news", body, colour="re:d", persistent="true")
    [mine] = one.heard()
    assert (mine.body, mine.headers["colour"], mine.headers["destination"]) == (body, "re:d", "/topic/news")
    assert mine.headers["message-id"].endswith("-2")
    assert bodies(two.heard()) == [body]


@pytest.mark.parametrize(
    ("pattern", "heard"),
    [("a.b", [b"a.b"]), ("a.*", [b"a.b"]), ("a.>", [b"a", b"a.b", b"a.b.c"]), (">", [b"a", b"a.b", b"a.b.c", b"x"])],
)
def test_topic_patterns_are_those_of_activemq(server: StompServer, pattern: str, heard: list[bytes]) -> None:
    client = server.connected()
    client.subscribe(f"/topic/{pattern}", "auto")
    other = server.connected()
    for topic in ("a", "a.b", "a.b.c", "x"):
        other.send(f"/topic/{topic}", topic.encode())
    assert bodies(client.heard()) == heard


@pytest.mark.parametrize("mode", ["client", "client-individual"])
@pytest.mark.parametrize("version", [V11, V12])
def test_credit_window_of_a_topic_subscription_is_its_prefetch(server: StompServer, version: str, mode: str) -> None:
    client = server.connected(version)
    client.subscribe("/topic/news", mode, activemq__prefetchSize="2")
    server.connected().send("/topic/news", b"1", b"2", b"3", b"4")
    first, second = client.heard()
    if mode == "client":
        assert bodies(client.ack(second)) == [b"3", b"4"]
    else:
        assert bodies(client.ack(second)) == [b"3"]
        assert bodies(client.nack(first)) == [b"4"]


def test_backpressure_delays_topic_records_until_the_client_reads(server: StompServer) -> None:
    slow, quick = server.connected(), server.connected()
    slow.subscribe("/topic/news", "auto")
    quick.subscribe("/topic/news", "auto")
    slow.session.is_write_paused = True
    sender = server.connected()
    sent = [b"%d" % n for n in range(3 * PAGE_RECORDS)]
    for first in range(0, len(sent), 100):
        sender.send("/topic/news", *sent[first : first + 100])
    assert bodies(quick.heard()) == sent
    assert slow.heard() == []
    slow.session.on_writable()
    assert bodies(slow.heard()) == sent


def test_unsubscribe_stops_topic_records(server: StompServer) -> None:
    client = server.connected()
    client.subscribe("/topic/news", "auto")
    client.do("UNSUBSCRIBE", id="0", receipt="u")
    server.connected().send("/topic/news", b"1")
    assert client.heard() == []


def test_durable_subscription_resumes_with_missed_and_unacked_records_after_a_restart(tmp_path: Path) -> None:
    server = StompServer(topics=tmp_path / "topics")
    client = server.connected(client_id="billing")
    name = {"activemq__subscriptionName": "main"}
    client.subscribe("/topic/news", **name)
    server.connected().send("/topic/news", b"1", b"2")
    first, _ = client.heard()
    assert client.ack(first, receipt="a")[0].command == "RECEIPT"
    client.lose()
    server.connected().send("/topic/news", b"3")
    server.close()
    again = StompServer(topics=tmp_path / "topics")
    client = again.connected(client_id="billing")
    assert bodies(client.subscribe("/topic/news", **name)) == [b"2", b"3"]
    assert bodies(again.connected(client_id="other").subscribe("/topic/news", **name)) == []
    again.close()


def test_durable_subscription_opened_again_replaces_the_older_connection(server: StompServer) -> None:
    name = {"activemq__subscriptionName": "main"}
    old, new = server.connected(client_id="billing"), server.connected(client_id="billing")
    old.subscribe("/topic/news", "auto", **name)
    new.subscribe("/topic/news", "auto", **name)
    assert "replaced" in error_of(old.heard())
    server.connected().send("/topic/news", b"1")
    assert bodies(new.heard()) == [b"1"]


def test_durable_subscription_is_deleted_by_unsubscribe_with_its_name(server: StompServer) -> None:
    name = {"activemq__subscriptionName": "main"}
    client = server.connected(client_id="billing")
    client.subscribe("/topic/news", "auto", **name)
    [receipt] = client.do("UNSUBSCRIBE", id="0", receipt="u", **name)
    assert receipt.headers["receipt-id"] == "u"
    server.connected().send("/topic/news", b"1")
    assert client.subscribe("/topic/news", "auto", **name) == []


def test_topic_frames_are_rejected_on_a_server_without_topics() -> None:
    server = StompServer()
    assert "this server has no topics" in error_of(server.connected().subscribe("/topic/news"))
    assert "this server has no topics" in error_of(server.connected().do("SEND", b"x", destination="/topic/news"))


def test_stomp_ack_of_a_record_not_held_is_an_error(server: StompServer) -> None:
    client = server.connected()
    client.subscribe("/topic/news")
    client.send("/topic/news", b"1")
    [message] = client.heard()
    client.ack(message)
    assert "is not leased by this connection" in error_of(client.ack(message))
