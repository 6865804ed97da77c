"""Every named method, its values and its results; and the page that lists them."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.session import Client, Server
from yirangmq.core.errors import BadInput, BadPolicy, NotFound, QueueError, WrongState
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind
from yirangmq.wire.messages import unpack

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()


def bury(client: Client, queue: str, *payloads: bytes) -> list[str]:
    ids = client.publish(queue, *payloads)
    leases = [message.lease for message in client.lease(queue, len(payloads))]
    client.ask(FrameKind.NACK, messages.Nack(leases, "REJECTED", "never again"))
    return ids


def ids_of(page: Any) -> list[str]:
    return [parts[0].id for parts in unpack(page)[0]]


def test_named_methods_are_all_listed_on_the_page(server: Server) -> None:
    section = PAGE.partition("## Methods")[2].partition("## A session")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == server.calls.names


@pytest.mark.parametrize("method", [name for name in Server().calls.names if name != "consumer_beat"])
def test_named_method_refuses_an_unknown_value_by_name(client: Client, method: str) -> None:
    given = {
        "queue": "mail",
        "id": "a",
        "ids": ["a"],
        "wish": "pause",
        "name": "x",
        "before": 1,
        "consumer": "c",
        "nonsense": 1,
    }
    section = PAGE.partition("## Methods")[2]
    [row] = re.findall(rf"^\| `{method}` \| (.*?) \|", section, re.MULTILINE)
    known = re.findall(r"`(\w+)`", row)
    with pytest.raises(BadInput, match="nonsense") as caught:
        client.call(method, **{name: value for name, value in given.items() if name in known or name == "nonsense"})
    assert caught.value.field == "nonsense"


@pytest.mark.parametrize(
    ("method", "values", "field"),
    [
        ("counts", {}, "queue"),
        ("counts", {"queue": 7}, "queue"),
        ("peek", {"queue": "mail", "limit": 0}, "limit"),
        ("peek", {"queue": "mail", "limit": "ten"}, "limit"),
        ("peek", {"queue": "mail", "state": "lost"}, "state"),
        ("peek", {"queue": "mail", "cursor": 5}, "cursor"),
        ("show", {"queue": "mail"}, "id"),
        ("by_id", {"queue": "mail", "ids": "a"}, "ids"),
        ("by_id", {"queue": "mail", "ids": ["a", 5]}, "ids"),
        ("drop", {"queue": "mail", "ids": []}, "ids"),
        ("search", {"queue": "mail", "state": []}, "state"),
        ("dlq_find", {"queue": "mail", "state": "ready"}, "state"),
        ("dlq_find", {"queue": "mail", "cursor": "zzz"}, "cursor"),
        ("dlq_requeue", {"queue": "mail", "dry_run": "yes"}, "dry_run"),
        ("dlq_requeue", {"queue": "mail", "ids": [7]}, "ids"),
        ("consumer_wish", {"id": "w", "wish": "fly"}, "wish"),
        ("consumer_beat", {"pid": "x", "consumerId": "w"}, "pid"),
    ],
)
def test_named_method_refuses_a_value_of_the_wrong_type_by_name(
    client: Client, method: str, values: dict[str, Any], field: str
) -> None:
    bury(client, "mail", b"x")
    with pytest.raises(BadInput) as caught:
        client.call(method, **values)
    assert caught.value.field == field


def test_filter_with_a_mistake_is_refused_by_search_and_dead_letter_methods(client: Client) -> None:
    for method in ("search", "dlq_find", "dlq_requeue", "dlq_quarantine", "dlq_purge"):
        with pytest.raises(QueueError) as caught:
            client.call(method, queue="mail", filter="attempt >")
        assert caught.value.code == "bad_filter"


def test_queue_list_and_counts_are_returned(client: Client) -> None:
    client.publish("mail", b"1", b"2")
    assert client.call("queues") == ["mail"]
    assert client.call("counts", queue="mail")["ready"] == 2
    assert client.call("counts", queue="other")["ready"] == 0


def test_status_describes_the_server_and_each_queue(client: Client) -> None:
    client.publish("mail", b"1")
    client.publish("work", b"1")
    status = client.call("status")
    assert status["node"] == "here"
    assert [(row["queue"], row["ready"], row["headAgeSec"]) for row in status["queues"]] == [
        ("mail", 1, 0.0),
        ("work", 1, 0.0),
    ]
    assert [row["queue"] for row in client.call("status", queue="work")["queues"]] == ["work"]


def test_peek_comes_in_pages_of_at_most_a_mebibyte(client: Client) -> None:
    for _ in range(40):
        client.publish("mail", b"x" * 60_000)
    seen: list[str] = []
    cursor, pages = "", 0
    while pages == 0 or cursor:
        page = client.call("peek", queue="mail", limit=1000, cursor=cursor)
        seen += ids_of(page)
        cursor, pages = page["cursor"], pages + 1
    assert len(seen) == len(set(seen)) == 40
    assert pages == 3


def test_show_has_the_message_its_envelope_and_its_failure(client: Client) -> None:
    [id] = bury(client, "mail", b"hello")
    [(message, envelope, failure, policy)], _ = unpack(client.call("show", queue="mail", id=id))
    assert message.state == "dead"
    assert envelope is not None
    assert envelope.payload == b"hello"
    assert failure is not None
    assert failure.reason_message == "never again"
    assert policy.dlq.queue == "mail-dlq"
    with pytest.raises(NotFound):
        client.call("show", queue="mail", id="nobody")


def test_by_id_returns_the_known_messages_in_the_order_of_the_ids(client: Client) -> None:
    first, second = client.publish("mail", b"1", b"2")
    assert ids_of(client.call("by_id", queue="mail", ids=[second, "nobody", first])) == [second, first]


def test_next_due_is_the_end_of_the_lease_and_due_lists_it_until_the_sweep(server: Server, client: Client) -> None:
    assert client.call("next_due") is None
    client.publish("mail", b"1")
    client.ask(FrameKind.LEASE, messages.Lease("mail", 1, 0, 5000))
    assert client.call("next_due") == server.clock.now_ms() + 5000
    server.clock.advance(5000)
    assert len(ids_of(client.call("due"))) == 1
    assert client.call("sweep") == 1
    assert client.call("due")["looks"] == []


def test_policy_is_checked_set_shown_and_removed(client: Client) -> None:
    document = {"retry": {"limit": 2}}
    assert client.call("check_policy", queue="mail", document=document)["retry"]["limit"] == 2
    assert client.call("policy", queue="mail")["retry"]["limit"] == 5
    assert client.call("set_policy", queue="mail", document=document)["retry"]["limit"] == 2
    assert client.call("policy", queue="mail")["retry"]["limit"] == 2
    assert client.call("policy_text", queue="mail") == '{"retry":{"limit":2}}'
    client.call("set_policy", queue="mail", document=None)
    assert client.call("policy_text", queue="mail") is None
    with pytest.raises(BadPolicy) as caught:
        client.call("set_policy", queue="mail", document={"retry": {"limmit": 2}})
    assert caught.value.field == "retry.limmit"


def test_drop_reports_the_result_for_each_message(client: Client) -> None:
    [id] = client.publish("mail", b"1")
    assert client.call("drop", queue="mail", ids=[id, "nobody"]) == [
        None,
        ["not_found", "queue 'mail' has no message 'nobody'"],
    ]


def test_delete_queue_removes_more_messages_than_one_page_holds(client: Client) -> None:
    client.publish("mail", *[b"x"] * 1200)
    bury(client, "mail", b"y")
    assert client.call("delete_queue", queue="mail") == 1201
    assert client.call("queues") == []


def test_search_finds_by_filter_and_goes_on_by_cursor(client: Client) -> None:
    client.ask(
        FrameKind.PUBLISH,
        messages.Publish("mail", [messages.OutgoingMessageBody(b'{"n":%d}' % n, True, id=f"n{n}") for n in range(200)]),
    )
    page = client.call("search", queue="mail", filter="payload.n>=150", limit=30)
    assert ids_of(page) == [f"n{n}" for n in range(150, 180)]
    page = client.call("search", queue="mail", filter="payload.n>=150", limit=30, cursor=page["cursor"])
    assert ids_of(page) == [f"n{n}" for n in range(180, 200)]
    assert page["cursor"] == ""


def test_dead_letters_of_several_queues_come_page_by_page(client: Client) -> None:
    wanted: set[str] = set()
    for queue in ("mail", "post"):
        client.call("set_policy", queue=queue, document={"dlq": {"queue": "all-dlq"}})
        wanted |= set(bury(client, queue, *[b"x"] * 70))
    found: list[str] = []
    cursor = ""
    for _ in range(20):
        page = client.call("dlq_find", queue="all-dlq", limit=20, cursor=cursor)
        found += ids_of(page)
        cursor = page["cursor"]
        if not cursor:
            break
    assert sorted(found) == sorted(wanted)
    assert client.call("dlq_find", queue="nothing")["looks"] == []


def test_dead_letters_are_shown_counted_and_moved(client: Client) -> None:
    first, second, third = bury(client, "mail", b"1", b"2", b"3")
    assert ids_of(client.call("dlq_show", queue="mail-dlq", id=first)) == [first]
    assert client.call("dlq_stats", queue="mail")["byReason"] == {"REJECTED": 3}
    assert client.call("dlq_requeue", queue="mail", filter="reasonCode=REJECTED", dry_run=True)["count"] == 3
    assert client.call("dlq_requeue", queue="mail", ids=[first]) == {"count": 1, "ids": [first]}
    assert client.call("dlq_quarantine", queue="mail", ids=[second]) == {"count": 1, "ids": [second]}
    assert ids_of(client.call("dlq_find", queue="mail", state="parked")) == [second]
    assert client.call("dlq_purge", queue="mail", state="all", all=True) == {"count": 2, "ids": [second, third]}
    with pytest.raises(WrongState):
        client.call("dlq_requeue", queue="mail", ids=[third])


def test_redrive_wakes_a_waiting_consumer(server: Server, client: Client) -> None:
    bury(client, "mail", b"1")
    subscription = client.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 10))
    client.call("dlq_requeue", queue="mail", all=True)
    assert [answer.value.messages[0].payload for answer in client.heard(subscription)] == [b"1"]


def test_redrive_of_many_messages_lets_other_requests_in_between_its_pages(server: Server) -> None:
    """Between two pages of a requeue of 3000 messages somebody else's publish is answered."""
    mover, other = server.client(), server.client()
    bury(mover, "mail", *[b"x"] * 3000)
    between: list[int] = []
    threads = threading.active_count()

    def look() -> None:
        ready = server.desk.read(lambda transaction: transaction.counts("mail")).ready
        if 0 < ready < 3000:
            between.append(other.send(FrameKind.PING, messages.Empty()))

    server.desk.after_commit.append(look)
    number = mover.send(FrameKind.CALL, messages.Call("dlq_requeue", {"queue": "mail", "all": True}))
    while not mover.answers:
        server.turns.turn()
    assert mover.heard(number)[0].value.value["count"] == 3000
    assert between
    assert all(other.heard(asked) for asked in between)
    assert threading.active_count() < threads + 10


def test_redrive_ends_with_unavailable_when_the_server_stops(server: Server, client: Client) -> None:
    bury(client, "mail", *[b"x"] * 10)
    server.pages.stop()
    number = client.send(FrameKind.CALL, messages.Call("dlq_requeue", {"queue": "mail", "all": True}))
    server.turn()
    [answer] = client.heard(number)
    assert (answer.kind, answer.value.code) == (FrameKind.ERROR, "unavailable")


# -- consumers ------------------------------------------------------------------------------------------------------


def test_consumer_registry_lists_reports_and_returns_requests_to_the_consumer(client: Client) -> None:
    assert client.call("consumer_beat", consumerId="w-1", queues=["mail"]) == ""
    assert [card["consumerId"] for card in client.call("consumer_list")] == ["w-1"]
    assert client.call("consumer_wish", id="w-1", wish="pause")["wish"] == "pause"
    assert client.call("consumer_beat", consumerId="w-1", queues=["mail"]) == "pause"
    with pytest.raises(NotFound):
        client.call("consumer_wish", id="nobody", wish="pause")


def test_connections_list_is_empty_without_connections(client: Client) -> None:
    assert client.call("connections") == []
