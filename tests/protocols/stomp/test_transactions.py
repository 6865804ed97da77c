"""BEGIN, COMMIT, ABORT: sends and acks in one commit, or none of them."""

import pytest

from tests.support.stomp import StompServer, bodies, cards, error_of, set_policy
from yirangmq.core.states import State
from yirangmq.protocols.stomp.transactions import MAX_OPEN_TRANSACTIONS
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import FailingStore
from yirangmq.wire.stomp import V12


def test_stomp_transaction_has_no_effect_before_its_commit_and_full_effect_after(
    server: StompServer, version: str
) -> None:
    client = server.connected(version)
    client.send("/queue/in", b"work")
    [work] = client.subscribe("/queue/in", "client")
    assert client.do("BEGIN", transaction="t", receipt="b")[0].headers["receipt-id"] == "b"
    client.send("/queue/out", b"1", transaction="t")
    client.send("/queue/other", b"2", transaction="t")
    client.ack(work, transaction="t")
    assert server.client().call("queues") == ["in"]
    assert len(cards(server, State.LEASED, "in")) == 1
    assert client.do("COMMIT", transaction="t", receipt="c")[0].headers["receipt-id"] == "c"
    assert [len(cards(server, State.READY, queue)) for queue in ("out", "other")] == [1, 1]
    assert len(cards(server, State.DONE, "in")) == 1


def test_stomp_transaction_is_one_store_commit() -> None:
    store = FailingStore(MemoryStore())
    server = StompServer(store)
    client = server.connected()
    client.send("/queue/in", b"work")
    [work] = client.subscribe("/queue/in")
    client.do("BEGIN", transaction="t")
    client.send("/queue/out", b"1", transaction="t")
    client.ack(work, transaction="t")
    server.turn()
    before = store.commits
    client.do("COMMIT", transaction="t")
    assert store.commits == before + 1


def test_stomp_transaction_abort_discards_sends_and_keeps_acked_messages_leased(
    server: StompServer, version: str
) -> None:
    client = server.connected(version)
    client.send("/queue/in", b"1", b"2", b"3")
    messages = client.subscribe("/queue/in", "client")
    client.do("BEGIN", transaction="t")
    client.send("/queue/out", b"x", transaction="t")
    client.ack(messages[1], transaction="t")
    client.do("ABORT", transaction="t", receipt="a")
    assert server.client().call("queues") == ["in"]
    client.ack(messages[0])
    assert len(cards(server, State.DONE, "in")) == 1
    client.lose()
    assert bodies(server.connected(version).subscribe("/queue/in", "client")) == [b"2", b"3"]


def test_stomp_transaction_may_include_a_nack(server: StompServer) -> None:
    set_policy(server, "in", retry={"limit": 0})
    client = server.connected()
    client.send("/queue/in", b"1", b"2")
    first, second = client.subscribe("/queue/in")
    client.do("BEGIN", transaction="t")
    client.ack(first, transaction="t")
    client.nack(second, transaction="t")
    client.do("COMMIT", transaction="t")
    assert [len(cards(server, state, "in")) for state in (State.DONE, State.DEAD)] == [1, 1]


@pytest.mark.parametrize("policy", [{"maxBytes": 3}, {"quota": {"maxMessages": 1}}])
def test_stomp_transaction_with_a_rejected_message_is_not_committed_at_all(server: StompServer, policy: object) -> None:
    server.client().call("set_policy", queue="last", document=policy)
    client = server.connected()
    client.send("/queue/in", b"work")
    [work] = client.subscribe("/queue/in")
    client.do("BEGIN", transaction="t")
    client.send("/queue/out", b"1", transaction="t")
    client.send("/queue/last", b"fits", b"not", transaction="t")
    client.ack(work, transaction="t")
    said = client.do("COMMIT", transaction="t", receipt="c")
    assert [(frame.command, frame.headers["receipt-id"]) for frame in said] == [("ERROR", "c")]
    assert [len(cards(server, State.READY, queue)) for queue in ("in", "out", "last")] == [1, 0, 0]


def test_stomp_transaction_with_a_lost_lease_is_not_committed_at_all(server: StompServer) -> None:
    client = server.connected()
    client.send("/queue/in", b"work")
    [work] = client.subscribe("/queue/in")
    client.do("BEGIN", transaction="t")
    client.send("/queue/out", b"1", transaction="t")
    client.ack(work, transaction="t")
    server.client().call("drop", queue="in", ids=[work.headers["message-id"]])
    assert "lease_expired" in error_of(client.do("COMMIT", transaction="t"))
    assert cards(server, State.READY, "out") == []


def test_stomp_transaction_is_aborted_by_a_disconnect(server: StompServer) -> None:
    client = server.connected()
    client.send("/queue/in", b"work")
    [work] = client.subscribe("/queue/in")
    client.do("BEGIN", transaction="t")
    client.send("/queue/out", b"1", transaction="t")
    client.ack(work, transaction="t")
    client.lose()
    assert bodies(server.connected().subscribe("/queue/in")) == [b"work"]
    assert cards(server, State.READY, "out") == []


def test_stomp_transaction_acks_return_credit_before_the_commit(server: StompServer) -> None:
    client = server.connected()
    client.send("/queue/in", b"1", b"2", b"3")
    got = client.subscribe("/queue/in", activemq__prefetchSize="1")
    client.do("BEGIN", transaction="t")
    for _ in range(2):
        got += client.ack(got[-1], transaction="t")
    assert bodies(got) == [b"1", b"2", b"3"]
    client.do("COMMIT", transaction="t")
    assert len(cards(server, State.DONE, "in")) == 2


def test_stomp_transaction_is_of_topics_or_of_queues_and_not_of_both(server: StompServer) -> None:
    client, other = server.connected(), server.connected()
    other.subscribe("/topic/news", "auto")
    client.do("BEGIN", transaction="t")
    client.send("/topic/news", b"1", b"2", transaction="t")
    assert other.heard() == []
    [receipt] = client.do("COMMIT", transaction="t", receipt="c")
    assert receipt.headers["receipt-id"] == "c"
    assert bodies(other.heard()) == [b"1", b"2"]
    client.do("BEGIN", transaction="t")
    client.send("/topic/news", b"3", transaction="t")
    said = client.do("SEND", b"x", destination="/queue/mail", transaction="t")
    assert "is for queues or for topics, not for both" in error_of(said)


def test_stomp_transaction_that_is_empty_is_committed(server: StompServer) -> None:
    client = server.connected()
    client.do("BEGIN", transaction="t")
    assert client.do("COMMIT", transaction="t", receipt="c")[0].headers["receipt-id"] == "c"


def test_stomp_transaction_limits_on_number_names_and_bytes_are_enforced(server: StompServer) -> None:
    client = server.connected()
    for number in range(MAX_OPEN_TRANSACTIONS):
        client.do("BEGIN", transaction=str(number))
    assert "64 are open already" in error_of(client.do("BEGIN", transaction="more"))
    client = server.connected()
    client.do("BEGIN", transaction="t")
    assert "exists already" in error_of(client.do("BEGIN", transaction="t"))
    client = server.connected()
    client.do("BEGIN", transaction="t")
    body = b"x" * (server.house.identity.max_frame - 1000)
    for _ in range(4):
        client.send("/queue/mail", body, transaction="t")
    assert "commit earlier" in error_of(client.do("SEND", body, destination="/queue/mail", transaction="t"))
    assert client.version == V12
