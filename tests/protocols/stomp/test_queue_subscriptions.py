"""SEND, SUBSCRIBE, ACK and NACK with queues: in each version, in each ack mode, and what is refused."""

import pytest

from tests.support.stomp import Stomp, StompServer, bodies, cards, error_of, set_policy
from yirangmq.core.message import Envelope
from yirangmq.core.states import State
from yirangmq.format.json_codec import dumps
from yirangmq.protocols.stomp.queue_subscriptions import ACK_BATCH_SECONDS, EXTEND_SECONDS, LEASE_MS, PREFETCH
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import FailingStore
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind
from yirangmq.wire.stomp import V10, V11, V12


def envelope(server: StompServer, queue: str = "mail") -> Envelope:
    with server.store.transaction(write=False) as transaction:
        [found] = transaction.envelopes(transaction.scan(queue, State.READY, 1).messages)
    assert found is not None
    return found


# -- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "client", "client-individual"])
def test_stomp_message_round_trips_in_every_version_and_ack_mode(server: StompServer, version: str, mode: str) -> None:
    client = server.connected(version)
    body = bytes(range(256))
    client.send("/queue/mail", body, colour="re:d\\", correlation_id="c-1", reply_to="/queue/back", type="order")
    [message] = client.subscribe("/queue/mail", mode)
    assert message.command == "MESSAGE"
    assert message.body == body
    expected = {
        "destination": "/queue/mail", "subscription": "0", "colour": "re:d\\", "correlation-id": "c-1",
        "reply-to": "/queue/back", "type": "order", "priority": "4", "expires": "0", "content-length": "256",
        "timestamp": str(server.clock.now_ms()),
    }  # fmt: skip
    assert {name: message.headers.get(name) for name in expected} == expected
    assert ("ack" in message.headers) is (version == V12 and mode != "auto")
    assert "redelivered" not in message.headers
    if mode != "auto":
        [receipt] = client.ack(message, receipt="a")
        assert receipt.headers["receipt-id"] == "a"
    server.turns.advance(round(ACK_BATCH_SECONDS * 1000))
    assert len(cards(server, State.DONE)) == 1


def test_stomp_1_0_subscription_needs_no_id(server: StompServer) -> None:
    client = server.connected(V10)
    client.do("SUBSCRIBE", destination="/queue/mail", ack="client")
    client.send("/queue/mail", b"x")
    [message] = client.heard()
    assert "subscription" not in message.headers
    [receipt] = client.do("ACK", message_id=message.headers["message-id"], receipt="a")
    assert receipt.command == "RECEIPT"
    assert client.do("UNSUBSCRIBE", destination="/queue/mail", receipt="u")[0].command == "RECEIPT"


def test_stomp_unknown_headers_are_attributes_in_other_protocols(server: StompServer) -> None:
    client = server.connected()
    client.send("/queue/mail", b'{"a": 1}', content_type="application/json", x_mine="y", persistent="true")
    [message] = server.client().lease("mail")
    assert (message.payload, message.is_json) == (b'{"a": 1}', True)
    assert message.header == '{"attributes":{"x-mine":"y","persistent":"true"}}'


def test_stomp_headers_are_made_from_messages_of_other_protocols(server: StompServer) -> None:
    attributes = {"priority": 2, "n": 7, "yes": True, "no": None, "destination": "x", "a\nb": "c"}
    header = dumps({"type": "order", "contentType": "text/plain", "groupId": "g", "attributes": attributes}).decode()
    new = messages.OutgoingMessageBody(b"hi", False, header=header)
    server.client().ask(FrameKind.PUBLISH, messages.Publish("mail", [new]))
    [message] = server.connected().subscribe("/queue/mail")
    expected = {
        "type": "order", "content-type": "text/plain", "JMSXGroupID": "g", "priority": "7", "n": "7", "yes": "true",
        "a\nb": "c", "destination": "/queue/mail",
    }  # fmt: skip
    assert {name: message.headers.get(name) for name in expected} == expected
    assert "no" not in message.headers


def test_group_commit_takes_all_sends_of_one_read() -> None:
    store = FailingStore(MemoryStore())
    server = StompServer(store)
    client = server.connected()
    before = store.commits
    client.send("/queue/mail", *(b"%d" % n for n in range(100)))
    assert store.commits == before + 1


def test_stomp_receipt_is_not_sent_when_the_commit_fails() -> None:
    store = FailingStore(MemoryStore())
    server = StompServer(store)
    client = server.connected()
    store.fail_at(1)
    store.fail_at(2)
    said = client.do("SEND", b"x", destination="/queue/mail", receipt="r")
    assert "store_full: no space left" in error_of(said)
    assert [frame.command for frame in said] == ["ERROR"]
    assert cards(server, State.READY) == []


# -- order, time ------------------------------------------------------------------------------------------------------


def test_priority_larger_is_delivered_first_and_none_last(server: StompServer) -> None:
    client = server.connected()
    for priority in ("0", "9", "4"):
        client.send("/queue/mail", priority.encode(), priority=priority)
    client.send("/queue/mail", b"none")
    frames = client.subscribe("/queue/mail")
    assert bodies(frames) == [b"9", b"4", b"0", b"none"]
    assert [frame.headers["priority"] for frame in frames] == ["9", "4", "0", "4"]
    with server.store.transaction(write=False) as transaction:
        assert [message.rank for message in transaction.scan("mail", State.LEASED, 3).messages][:1] == [9]


def test_delayed_message_is_delivered_after_its_delay(server: StompServer) -> None:
    client = server.connected()
    client.do("SUBSCRIBE", id="0", destination="/queue/mail", ack="auto")
    raw = b"SEND\ndestination:/queue/mail\nAMQ_SCHEDULED_DELAY:5000\n\nlater\0"
    assert client.raw(raw) == []
    server.turns.advance(4999)
    assert client.heard() == []
    server.turns.advance(1)
    assert bodies(client.heard()) == [b"later"]


def test_expiry_of_a_message_prevents_its_delivery(server: StompServer) -> None:
    client = server.connected()
    soon = server.clock.now_ms() + 1000
    client.send("/queue/mail", b"late", expires=str(soon))
    client.send("/queue/mail", b"for ever", expires="0")
    server.turns.advance(1000)
    assert bodies(client.subscribe("/queue/mail")) == [b"for ever"]


@pytest.mark.parametrize("name", ["mail", "/queue/mail"])
def test_destination_without_a_prefix_is_a_queue(server: StompServer, name: str) -> None:
    client = server.connected()
    client.send(name, b"x")
    [message] = client.subscribe(name, "auto")
    assert message.headers["destination"] == "/queue/mail"


def test_group_messages_are_delivered_one_at_a_time(server: StompServer) -> None:
    client = server.connected()
    for body in (b"1", b"2"):
        client.raw(b"SEND\ndestination:/queue/mail\nJMSXGroupID:g\n\n" + body + b"\0")
    [first] = client.subscribe("/queue/mail")
    assert (first.body, first.headers["JMSXGroupID"]) == (b"1", "g")
    assert bodies(client.ack(first)) == [b"2"]


def test_dedup_stores_a_message_with_a_known_key_once(server: StompServer) -> None:
    client = server.connected()
    for _ in range(2):
        client.raw(b"SEND\ndestination:/queue/mail\n_AMQ_DUPL_ID:k\n\nx\0")
    assert bodies(client.subscribe("/queue/mail")) == [b"x"]


# -- ack modes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V11, V12])
def test_stomp_ack_in_client_mode_is_cumulative(server: StompServer, version: str) -> None:
    client = server.connected(version)
    client.send("/queue/mail", b"1", b"2", b"3")
    messages = client.subscribe("/queue/mail", "client")
    client.ack(messages[1])
    assert [card.id for card in cards(server, State.LEASED)] == [messages[2].headers["message-id"]]
    client.lose()
    assert bodies(server.connected(version).subscribe("/queue/mail")) == [b"3"]


@pytest.mark.parametrize("version", [V11, V12])
def test_stomp_ack_in_individual_mode_is_for_one_message(server: StompServer, version: str) -> None:
    client = server.connected(version)
    client.send("/queue/mail", b"1", b"2", b"3")
    messages = client.subscribe("/queue/mail")
    client.ack(messages[1])
    client.lose()
    assert bodies(server.connected(version).subscribe("/queue/mail")) == [b"1", b"3"]


def test_stomp_ack_in_auto_mode_is_an_error(server: StompServer, version: str) -> None:
    client = server.connected(version)
    client.send("/queue/mail", b"1")
    [message] = client.subscribe("/queue/mail", "auto")
    name = {"id": "1-1"} if version == V12 else {"message_id": message.headers["message-id"]}
    assert "is not leased by this connection" in error_of(client.do("ACK", **name))


def test_stomp_ack_auto_mode_settles_the_messages_of_all_clients_in_one_commit() -> None:
    store = FailingStore(MemoryStore())
    server = StompServer(store)
    for _ in range(5):
        server.connected().subscribe("/queue/mail", "auto")
    server.connected().send("/queue/mail", *(b"%d" % n for n in range(5)))
    before = store.commits
    server.turns.advance(round(ACK_BATCH_SECONDS * 1000))
    assert store.commits == before + 1
    assert len(cards(server, State.DONE)) == 5


def test_stomp_ack_auto_mode_settles_with_the_next_commit_if_there_is_one() -> None:
    store = FailingStore(MemoryStore())
    server = StompServer(store)
    server.connected().subscribe("/queue/mail", "auto")
    sender = server.connected()
    sender.send("/queue/mail", b"1")
    before = store.commits
    sender.send("/queue/mail", b"2")
    assert store.commits == before + 1
    assert len(cards(server, State.DONE)) == 1, "the first, with the commit of the second"
    server.turns.advance(round(ACK_BATCH_SECONDS * 1000))
    assert store.commits == before + 2
    assert len(cards(server, State.DONE)) == 2


@pytest.mark.parametrize("is_polite", [True, False])
def test_stomp_ack_auto_mode_does_not_redeliver_after_an_immediate_disconnect(
    server: StompServer, is_polite: bool
) -> None:
    client = server.connected()
    client.send("/queue/mail", b"x")
    assert bodies(client.subscribe("/queue/mail", "auto")) == [b"x"]
    client.do("DISCONNECT", receipt="d") if is_polite else client.lose()
    assert len(cards(server, State.DONE)) == 1


def test_stomp_ack_auto_mode_does_not_hold_up_a_group(server: StompServer) -> None:
    client = server.connected()
    for body in (b"1", b"2", b"3"):
        client.raw(b"SEND\ndestination:/queue/mail\nJMSXGroupID:g\n\n" + body + b"\0")
    assert bodies(client.subscribe("/queue/mail", "auto")) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("version", [V11, V12])
def test_nack_redelivers_after_the_delay_of_the_policy_and_then_dead_letters(server: StompServer, version: str) -> None:
    client = server.connected(version)
    set_policy(server, "mail", retry={"limit": 1, "initialDelaySec": 5})
    client.send("/queue/mail", b"x")
    [message] = client.subscribe("/queue/mail")
    [receipt] = client.nack(message, receipt="n")
    assert receipt.command == "RECEIPT"
    server.turns.advance(5000)
    [again] = client.heard()
    assert (again.body, again.headers["redelivered"], again.headers["JMSXDeliveryCount"]) == (b"x", "true", "2")
    assert again.headers["message-id"] == message.headers["message-id"]
    client.nack(again)
    [dead] = cards(server, State.DEAD)
    assert dead.reason == "HANDLER_ERROR"


def test_nack_in_stomp_1_0_is_rejected(server: StompServer) -> None:
    client = server.connected(V10)
    assert "NACK is not in STOMP 1.0" in error_of(client.do("NACK", message_id="m"))


def test_stomp_ack_of_a_message_not_held_is_an_error_and_closes_the_connection(
    server: StompServer, version: str
) -> None:
    client = server.connected(version)
    client.send("/queue/mail", b"x")
    [message] = client.subscribe("/queue/mail", "client")
    client.ack(message)
    assert "not_found" in error_of(client.ack(message))
    assert client.is_closed


def test_stomp_ack_after_the_lease_was_lost_is_an_error(server: StompServer) -> None:
    client = server.connected()
    client.send("/queue/mail", b"x")
    [message] = client.subscribe("/queue/mail")
    server.client().call("drop", queue="mail", ids=[message.headers["message-id"]])
    assert "lease_expired" in error_of(client.ack(message, receipt="r"))


# -- credit -----------------------------------------------------------------------------------------------------------


def test_credit_window_is_the_prefetch_of_the_subscription(server: StompServer) -> None:
    client = server.connected()
    client.send("/queue/mail", *(b"%d" % n for n in range(5)))
    frames = client.subscribe("/queue/mail", activemq__prefetchSize="2")
    assert bodies(frames) == [b"0", b"1"]
    assert bodies(client.ack(frames[0])) == [b"2"]


def test_credit_window_has_the_default_prefetch(server: StompServer) -> None:
    server.connected().subscribe("/queue/mail")
    [taker] = server.desk.waiting("mail")
    assert taker.wants() == PREFETCH


def test_backpressure_stops_pushing_to_a_client_that_does_not_read(server: StompServer) -> None:
    slow, quick = server.connected(), server.connected()
    slow.subscribe("/queue/mail", "auto")
    slow.session.is_write_paused = True
    quick.send("/queue/mail", b"1", b"2")
    assert slow.heard() == []
    assert bodies(quick.subscribe("/queue/mail", "auto")) == [b"1", b"2"]
    quick.send("/queue/mail", b"3")
    assert bodies(quick.heard()) == [b"3"]
    slow.session.on_writable()
    quick.lose()
    server.connected().send("/queue/mail", b"4")
    assert bodies(slow.heard()) == [b"4"]


def test_backpressure_delays_the_auto_ack_until_the_client_reads(server: StompServer) -> None:
    client = server.connected()
    client.send("/queue/mail", b"1")
    push = client.session.queue_leases.push

    def clogs(queue_subscription: object, deliveries: object) -> bool:
        client.session.is_write_paused = True
        return push(queue_subscription, deliveries)  # type: ignore[arg-type]

    client.session.queue_leases.push = clogs  # type: ignore[method-assign]
    client.subscribe("/queue/mail", "auto")
    assert len(cards(server, State.LEASED)) == 1
    client.lose()
    assert bodies(server.connected().subscribe("/queue/mail")) == [b"1"]


# -- losing, keeping --------------------------------------------------------------------------------------------------


def test_disconnect_returns_messages_at_once_in_their_old_order(server: StompServer, version: str) -> None:
    client = server.connected(version)
    client.send("/queue/mail", b"1", b"2", b"3", b"4")
    client.subscribe("/queue/mail", "client", activemq__prefetchSize="3")
    client.lose()
    frames = server.connected(version).subscribe("/queue/mail", "client")
    assert bodies(frames) == [b"1", b"2", b"3", b"4"]
    counts = [frame.headers.get("JMSXDeliveryCount") for frame in frames]
    assert counts == ["2", "2", "2", None]
    assert [card.attempt for card in cards(server, State.LEASED)] == [1, 1, 1, 1]


def test_unsubscribe_returns_the_messages_held(server: StompServer) -> None:
    client = server.connected()
    client.send("/queue/mail", b"1")
    client.subscribe("/queue/mail")
    assert client.do("UNSUBSCRIBE", id="0", receipt="u")[0].headers["receipt-id"] == "u"
    assert bodies(server.connected().subscribe("/queue/mail")) == [b"1"]


def test_lease_extension_keeps_messages_leased_while_the_client_is_connected(server: StompServer) -> None:
    client = server.connected()
    client.send("/queue/mail", b"1")
    [message] = client.subscribe("/queue/mail")
    for _ in range(20):
        server.turns.advance(round(EXTEND_SECONDS * 1000))
    assert server.clock.now_ms() > LEASE_MS
    assert [card.leases for card in cards(server, State.LEASED)] == [1]
    assert client.ack(message, receipt="a")[0].command == "RECEIPT"


# -- what is refused --------------------------------------------------------------------------------------------------

TOO_LONG = "g" * 300
REFUSALS = {
    "send-without-destination": (b"SEND\n\nx\0", "destination: is missing"),
    "send-to-nowhere": (b"SEND\ndestination:/mail/x\n\nx\0", "must begin with /queue/, /topic/ or /temp-queue/"),
    "send-to-a-bad-name": (b"SEND\ndestination:/queue/a b\n\nx\0", "destination: 'a b' is not allowed"),
    "send-to-several": (b"SEND\ndestination:/queue/a,/queue/b\n\nx\0", "has several destinations"),
    "send-to-a-pattern": (b"SEND\ndestination:/topic/a.>\n\nx\0", "destination: 'a.>' is not allowed"),
    "send-priority": (b"SEND\ndestination:/queue/a\npriority:10\n\nx\0", "priority: must be from 0 to 9"),
    "send-expires": (b"SEND\ndestination:/queue/a\nexpires:soon\n\nx\0", "expires: must be milliseconds"),
    "send-delay": (b"SEND\ndestination:/queue/a\nAMQ_SCHEDULED_DELAY:-1\n\nx\0", "AMQ_SCHEDULED_DELAY: must be"),
    "send-cron": (b"SEND\ndestination:/queue/a\nAMQ_SCHEDULED_CRON:* * * * *\n\nx\0", "set a schedule in the policy"),
    "send-group": (f"SEND\ndestination:/queue/a\nJMSXGroupID:{TOO_LONG}\n\nx\0".encode(), "JMSXGroupID: has more"),
    "send-transaction": (b"SEND\ndestination:/queue/a\ntransaction:t\n\nx\0", "'t' was not begun"),
    "send-record-delay": (b"SEND\ndestination:/topic/a\nAMQ_SCHEDULED_DELAY:1\n\nx\0", "applies to queues only"),
    "subscribe-mode": (b"SUBSCRIBE\nid:1\ndestination:/queue/a\nack:never\n\n\0", "'never' is not one of auto"),
    "subscribe-prefetch": (
        b"SUBSCRIBE\nid:1\ndestination:/queue/a\nactivemq.prefetchSize:0\n\n\0", "must be a whole number from 1"),
    "subscribe-selector": (
        b"SUBSCRIBE\nid:1\ndestination:/queue/a\nselector:a=1\n\n\0", "selector: is not supported"),
    "subscribe-exclusive": (
        b"SUBSCRIBE\nid:1\ndestination:/queue/a\nactivemq.exclusive:true\n\n\0", "activemq.exclusive: is not known"),
    "subscribe-pattern": (b"SUBSCRIBE\nid:1\ndestination:/queue/a.*\n\n\0", "destination: 'a.*' is not allowed"),
    "subscribe-levels": (b"SUBSCRIBE\nid:1\ndestination:/topic/a.>.b\n\n\0", "'>' is allowed only at the end"),
    "subscribe-durable": (
        b"SUBSCRIBE\nid:1\ndestination:/topic/a\nactivemq.subscriptionName:n\n\n\0", "client-id: is missing"),
    "unsubscribe-unknown": (b"UNSUBSCRIBE\nid:1\n\n\0", "there is no subscription '1'"),
    "begin-without-name": (b"BEGIN\n\n\0", "transaction: is missing"),
    "commit-unknown": (b"COMMIT\ntransaction:t\n\n\0", "'t' was not begun"),
    "abort-unknown": (b"ABORT\ntransaction:t\n\n\0", "'t' was not begun"),
    "ack-in-unknown": (b"ACK\nid:1-1\nmessage-id:m\nsubscription:0\ntransaction:t\n\n\0", "'t' was not begun"),
    "broken": (b"SEND\nno colon\n\n\0", "is not a header"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_stomp_error_of_an_invalid_frame_names_the_problem_and_closes_the_connection(
    server: StompServer, version: str, case: str
) -> None:
    raw, words = REFUSALS[case]
    client = server.connected(version)
    said = client.raw(raw)
    assert [frame.command for frame in said] == ["ERROR"]
    assert words in error_of(said)
    assert client.is_closed
    assert server.client().call("queues") == []


def test_stomp_id_headers_are_required_from_1_1_on(server: StompServer) -> None:
    for version in (V11, V12):
        assert "id: is missing" in error_of(server.connected(version).do("SUBSCRIBE", destination="/queue/a"))
        assert "id: is missing" in error_of(server.connected(version).do("UNSUBSCRIBE", destination="/queue/a"))
    assert "id: is missing" in error_of(server.connected(V12).do("ACK", message_id="m"))
    assert "message-id: is missing" in error_of(server.connected(V11).do("ACK", id="1-1"))


def test_stomp_subscription_id_in_use_is_rejected(server: StompServer) -> None:
    client = server.connected()
    client.subscribe("/queue/a")
    assert "'0' is subscribed already" in error_of(client.subscribe("/queue/b"))


def test_stomp_error_of_a_message_too_large_stops_the_frames_behind_it(server: StompServer) -> None:
    set_policy(server, "mail", maxBytes=3)
    client = server.connected()
    frames = [
        client.write("SEND", body, destination="/queue/mail", receipt=body.decode())
        for body in (b"1", b"toolong", b"3")
    ]
    said = client.raw(b"".join(frames))
    assert [(frame.command, frame.headers["receipt-id"]) for frame in said] == [("RECEIPT", "1"), ("ERROR", "toolong")]
    assert bodies(server.connected().subscribe("/queue/mail")) == [b"1"]


def test_stomp_frames_received_before_the_error_of_an_earlier_frame_are_not_executed(server: StompServer) -> None:
    set_policy(server, "mail", maxBytes=3)
    client = server.connected()
    client.session.receive(client.write("SEND", b"toolong", destination="/queue/mail", receipt="1"))
    client.session.receive(client.write("SEND", b"2", destination="/queue/mail", receipt="2"))
    assert [frame.command for frame in client.heard()] == ["ERROR"]
    assert server.client().call("counts", queue="mail")["ready"] == 0


# -- temporary queues -------------------------------------------------------------------------------------------------


def test_temporary_queue_carries_a_reply_and_is_deleted_with_its_connection(server: StompServer) -> None:
    asking, answering = server.connected(), server.connected()
    asking.subscribe("/temp-queue/back", "auto")
    asking.send("/queue/mail", b"ask", reply_to="/temp-queue/back")
    [question] = answering.subscribe("/queue/mail", "auto")
    answering.send(question.headers["reply-to"], b"answer")
    [answer] = asking.heard()
    assert (answer.body, answer.headers["destination"]) == (b"answer", "/temp-queue/back")
    asking.lose()
    assert server.client().call("queues") == ["mail"]


def held_by(client: Stomp) -> int:
    return client.session.queue_leases.unsettled


def test_consumer_list_shows_a_subscribed_client_that_can_be_paused_and_resumed(server: StompServer) -> None:
    client = server.connected(client_id="billing 7")
    client.send("/queue/mail", b"1", b"2")
    [first, _] = client.subscribe("/queue/mail")
    client.ack(first)
    server.turns.advance(2000)
    [card] = server.client().call("consumer_list")
    assert card["consumerId"].startswith("stomp:billing-7:")
    assert (card["queues"], card["inWork"], card["done"]) == (["mail"], 1, 1)
    server.client().call("consumer_wish", id=card["consumerId"], wish="pause")
    server.turns.advance(2000)
    server.turns.advance(2000)
    [card] = server.client().call("consumer_list")
    assert card["state"] == "paused"
    client.send("/queue/mail", b"3")
    assert client.heard() == []
    server.client().call("consumer_wish", id=card["consumerId"], wish="resume")
    server.turns.advance(2000)
    assert bodies(client.heard()) == [b"3"]
    client.lose()
    assert server.client().call("consumer_list") == []
    assert held_by(client) == 0
