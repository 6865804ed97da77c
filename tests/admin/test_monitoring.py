"""What a server tells of itself: metrics, rates, and what happens while somebody watches."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.session import Answer, Client, Server
from yirangmq.admin.health import StoreDisk
from yirangmq.core.errors import BadInput, StoreError
from yirangmq.stores.files.store import FilesStore
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.testing import open_for_test
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind


def watch(server: Server, client: Client, **values: Any) -> int:
    """Asked, not yet answered; the number of the request."""
    number = client.send(FrameKind.CALL, messages.Call("watch", values))
    server.turn()
    return number


def events(answers: list[Answer]) -> list[tuple[str, str]]:
    [answer] = answers
    return [(event["event"], event["queue"]) for event in answer.value.value["events"]]


def test_metrics_are_a_page_of_text(client: Client) -> None:
    client.publish("mail", b"12345", b"1")
    client.lease("mail")
    lines = client.call("metrics").splitlines()
    assert 'yirangmq_queue_ready{queue="mail"} 1' in lines
    assert 'yirangmq_published_bytes_total{queue="mail"} 6' in lines
    assert 'yirangmq_leased_total{queue="mail"} 1' in lines
    assert "yirangmq_commit_requests_count 2" in lines


def test_metrics_rates_are_returned_by_queue_and_with_the_status(server: Server, client: Client) -> None:
    client.publish("mail", *[b"1"] * 20)
    server.turns.advance(10_000)
    assert client.call("rates")["mail"]["publishedPerSec"] == 2.0
    [row] = client.call("status")["queues"]
    assert row["rates"]["publishedPerSec"] == 2.0
    assert row["paused"] is False


def test_metrics_rates_are_none_for_a_queue_without_activity(client: Client) -> None:
    client.call("set_policy", queue="mail", document={})
    [row] = client.call("status")["queues"]
    assert row["rates"] is None


# -- a store that may not grow ----------------------------------------------------------------------------------------


def test_quota_of_the_store_refuses_publishing_and_nothing_else(tmp_path: Path) -> None:
    size = 0
    disk = StoreDisk(tmp_path, 0, 1024, lambda: size)
    client = Server(disk=disk).client()
    client.publish("mail", b"1")
    size = 1024
    health = client.call("health")
    assert (health["status"], [reason["code"] for reason in health["reasons"]]) == ("degraded", ["quota_exceeded"])
    answer = client.ask(FrameKind.PUBLISH, messages.Publish("mail", [messages.OutgoingMessageBody(b"2", False)]))
    assert (answer.kind, answer.value.code) == (FrameKind.ERROR, "quota_exceeded")
    [message] = client.lease("mail")
    assert client.ask(FrameKind.ACK, messages.Settle([message.lease])).value.errors == {}
    size = 1023
    assert client.call("health")["status"] == "ok"
    assert client.publish("mail", b"2")


def test_quota_of_a_store_with_unknown_size_is_not_enforced(tmp_path: Path) -> None:
    def measure() -> int:
        raise StoreError("in trouble")

    disk = StoreDisk(tmp_path, 0, 1, measure)
    disk.inspect()
    assert (disk.used, disk.full) == (None, None)


def test_used_bytes_of_an_sqlite_store_grow_and_shrink_with_its_messages(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "queue.db", durability="os")
    queues = open_for_test(store=store)
    empty = store.used_bytes()
    queues.publish_many("mail", [b"x" * 10_000] * 100)
    full = store.used_bytes()
    assert empty + 1_000_000 < full < empty + 2_000_000
    queues.delete_queue("mail")
    assert store.used_bytes() < empty + 100_000
    queues.close()


def test_used_bytes_of_a_files_store_are_those_of_its_waiting_messages(tmp_path: Path) -> None:
    store = FilesStore(tmp_path / "queue", durability="os")
    queues = open_for_test(store=store)
    assert store.used_bytes() == 0
    queues.publish_many("mail", [b"x" * 10_000] * 5)
    queues.publish("post", b"y" * 1000)
    assert 51_000 <= store.used_bytes() < 53_000
    queues.delete_queue("mail")
    assert 1_000 <= store.used_bytes() < 2_000
    queues.close()


# -- watching ---------------------------------------------------------------------------------------------------------


def test_event_stream_watch_is_answered_when_an_event_happens(server: Server, client: Client) -> None:
    other = server.client()
    number = watch(server, client, wait=10)
    assert client.heard(number) == []
    other.publish("mail", b"1")
    [answer] = answers = client.heard(number)
    assert events(answers) == [("published", "mail")]
    again = client.call("watch", after=answer.value.value["last"])
    assert again == {"last": answer.value.value["last"], "missed": 0, "events": []}


def test_event_stream_watch_returns_earlier_events_at_once(server: Server, client: Client) -> None:
    last = client.call("watch")["last"]
    client.publish("mail", b"1")
    client.lease("mail")
    number = watch(server, client, after=last, wait=10)
    assert events(client.heard(number)) == [("published", "mail"), ("leased", "mail")]


def test_event_stream_watch_can_be_limited_to_one_queue(server: Server, client: Client) -> None:
    number = watch(server, client, queue="post", wait=10)
    client.publish("mail", b"1")
    assert client.heard(number) == []
    client.publish("post", b"1")
    assert events(client.heard(number)) == [("published", "post")]


def test_event_stream_watch_ends_after_its_wait_time(server: Server, client: Client) -> None:
    number = watch(server, client, wait=10)
    server.turns.advance(9_999)
    assert client.heard(number) == []
    server.turns.advance(1)
    assert events(client.heard(number)) == []
    assert not server.observing.feed.is_followed
    client.publish("mail", b"1")
    assert client.heard(number) == []


def test_event_stream_watch_of_a_closed_connection_harms_no_other_client(server: Server, client: Client) -> None:
    watch(server, client, wait=10)
    client.session.close()
    other = server.client()
    assert other.publish("mail", b"1")
    server.turns.advance(10_000)


@pytest.mark.parametrize(
    ("values", "field"),
    [({"wait": 31}, "wait"), ({"wait": "long"}, "wait"), ({"after": -1}, "after"), ({"queue": "a/b"}, "queue")],
)
def test_event_stream_watch_with_an_invalid_value_is_refused_with_its_field(
    client: Client, values: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadInput) as caught:
        client.call("watch", **values)
    assert caught.value.field == field
