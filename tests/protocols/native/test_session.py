"""One client of the socket door, byte for byte but without a socket."""

from pathlib import Path

import pytest

from tests.support.session import MAX_FRAME, Server
from yirangmq.core.errors import StoreFull
from yirangmq.protocols.native.consumers import MAX_SUBSCRIPTIONS, MAX_WAITING_LEASES
from yirangmq.stores.memory import MemoryStore
from yirangmq.stores.sqlite.server_store import open_served_store
from yirangmq.testing import FailingStore
from yirangmq.wire import messages
from yirangmq.wire.frames import HEAD, VERSION, FrameKind, encode

# -- greeting -------------------------------------------------------------------------------------------------------


def test_hello_is_answered_with_the_durability_and_the_frame_limit_of_the_server(server: Server) -> None:
    answer = server.client().ask(FrameKind.HELLO, messages.Hello("billing"))
    assert answer.kind is FrameKind.WELCOME
    assert answer.value.durability == "full"
    assert answer.value.max_frame == MAX_FRAME


def test_token_that_is_right_admits_an_untrusted_client() -> None:
    client = Server(token="s3cret").client(trusted=False)
    assert client.ask(FrameKind.HELLO, messages.Hello("billing", "s3cret")).kind is FrameKind.WELCOME
    assert client.publish("mail", b"hi") == ["m-1"]


@pytest.mark.parametrize("token", ["", "s3cre", "s3cret ", "\u00fc"])
def test_token_that_is_wrong_is_answered_and_the_connection_closed(token: str) -> None:
    client = Server(token="s3cret").client(trusted=False)
    answer = client.ask(FrameKind.HELLO, messages.Hello("billing", token))
    assert (answer.kind, answer.value.code, answer.value.field) == (FrameKind.ERROR, "not_allowed", "token")
    assert client.is_closed
    assert client.send(FrameKind.PING, messages.Empty())
    assert client.answers == []


def test_hello_missing_from_an_untrusted_client_is_rejected_and_the_connection_closed() -> None:
    client = Server(token="s3cret").client(trusted=False)
    client.send(FrameKind.CALL, messages.Call("queues"))
    [answer] = client.answers
    assert (answer.kind, answer.request, answer.value.code) == (FrameKind.ERROR, 0, "not_allowed")
    assert client.is_closed


def test_frame_limit_is_lower_before_an_untrusted_client_has_sent_its_token() -> None:
    client = Server(token="s3cret").client(trusted=False)
    client.session.receive(HEAD.pack(10_000, VERSION, FrameKind.HELLO, 0, 1))
    [answer] = client.answers
    assert (answer.kind, answer.value.code) == (FrameKind.ERROR, "too_large")
    assert client.is_closed


# -- producing and consuming ----------------------------------------------------------------------------------------


def test_publish_lease_and_ack_work_over_a_session(server: Server) -> None:
    client = server.client()
    assert client.publish("mail", b"one", b"two") == ["m-1", "m-2"]
    first, second = client.lease("mail", 10)
    assert (first.payload, second.payload) == (b"one", b"two")
    assert client.ask(FrameKind.ACK, messages.Settle([first.lease, second.lease])).value.errors == {}
    assert client.call("counts", queue="mail")["done"] == 2


def test_ack_of_an_expired_lease_among_others_is_an_error_of_its_own(server: Server) -> None:
    client = server.client()
    client.publish("mail", b"one", b"two")
    first, second = client.lease("mail", 2)
    client.ask(FrameKind.NACK, messages.Nack([first.lease], "HANDLER_ERROR"))
    settled = client.ask(FrameKind.ACK, messages.Settle([first.lease, second.lease])).value
    assert {place: code for place, (code, _) in settled.errors.items()} == {0: "lease_expired"}


def test_lease_that_waits_gets_the_next_published_message(server: Server) -> None:
    consumer, producer = server.client(), server.client()
    waiting = consumer.send(FrameKind.LEASE, messages.Lease("mail", 5, wait_ms=1000))
    server.turn()
    assert consumer.answers == []
    producer.publish("mail", b"hi")
    [answer] = consumer.heard(waiting)
    assert [message.payload for message in answer.value.messages] == [b"hi"]
    assert server.turns.timers[0].is_cancelled


def test_lease_that_waits_is_answered_empty_after_its_wait(server: Server) -> None:
    client = server.client()
    waiting = client.send(FrameKind.LEASE, messages.Lease("mail", 5, wait_ms=1000))
    server.turn()
    server.turns.advance(1000)
    [answer] = client.heard(waiting)
    assert answer.value.messages == []
    assert client.publish("mail", b"later")
    assert client.answers == []


def test_disconnect_ends_a_waiting_lease_and_a_subscription(server: Server) -> None:
    gone, other = server.client(), server.client()
    gone.send(FrameKind.LEASE, messages.Lease("mail", 5, wait_ms=1000))
    gone.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 10))
    server.turn()
    gone.session.close()
    other.publish("mail", b"hi")
    assert [message.attempt for message in other.lease("mail")] == [1]


def test_credit_window_limits_the_unsettled_messages_of_a_subscription(server: Server) -> None:
    client = server.client()
    subscription = client.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 2))
    client.publish("mail", b"1", b"2", b"3")
    [pushed] = client.heard(subscription)
    assert [message.payload for message in pushed.value.messages] == [b"1", b"2"]
    client.ask(FrameKind.ACK, messages.Settle([pushed.value.messages[0].lease]))
    [pushed] = client.heard(subscription)
    assert [message.payload for message in pushed.value.messages] == [b"3"]


def test_group_commit_holds_an_ack_and_the_push_that_follows() -> None:
    store = FailingStore(MemoryStore())
    client = Server(store).client()
    subscription = client.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 1))
    client.publish("mail", b"1", b"2")
    [first] = client.heard(subscription)
    before = store.commits
    client.ask(FrameKind.ACK, messages.Settle([first.value.messages[0].lease]))
    [second] = client.heard(subscription)
    assert second.value.messages[0].payload == b"2"
    assert store.commits == before + 1


def test_credit_window_frees_an_expired_lease_and_keeps_an_extended_one(server: Server) -> None:
    client = server.client()
    subscription = client.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 1))
    client.publish("mail", b"1", b"2")
    [first] = client.heard(subscription)
    client.ask(FrameKind.EXTEND, messages.Extend([first.value.messages[0].lease], 100_000))
    server.turns.advance(50_000)
    assert client.heard(subscription) == []
    server.turns.advance(50_000)
    [second] = client.heard(subscription)
    assert second.value.messages[0].payload == b"2"


def test_credit_window_counts_leases_held_from_an_earlier_connection(server: Server) -> None:
    client = server.client()
    client.publish("mail", b"1", b"2")
    [message] = client.lease("mail")
    client.session.close()
    again = server.client()
    subscription = again.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 1, held={message.lease: message.until}))
    server.turn()
    assert again.heard(subscription) == []
    again.ask(FrameKind.ACK, messages.Settle([message.lease]))
    assert [message.payload for message in again.heard(subscription)[0].value.messages] == [b"2"]


def test_cancel_of_a_subscription_stops_its_messages(server: Server) -> None:
    client = server.client()
    subscription = client.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 2))
    assert client.ask(FrameKind.CANCEL, messages.Cancel(subscription)).value.value is True
    assert client.ask(FrameKind.CANCEL, messages.Cancel(subscription)).value.value is False
    client.publish("mail", b"1")
    assert client.heard(subscription) == []


def test_policy_is_sent_with_the_first_push_and_after_a_change(server: Server) -> None:
    client = server.client()
    subscription = client.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 10))
    client.publish("mail", b"1")
    client.publish("mail", b"2")
    client.call("set_policy", queue="mail", document={"visibilityTimeoutSec": 7})
    client.publish("mail", b"3")
    texts = [answer.value.policy for answer in client.heard(subscription)]
    assert [bool(text) for text in texts] == [True, False, True]
    assert '"visibilityTimeoutSec":7' in texts[2]


def test_lease_of_large_messages_is_limited_by_bytes() -> None:
    server = Server()
    client = server.client()
    for _ in range(80):
        client.publish("mail", b"x" * 60_000)
    assert len(client.lease("mail", 80)) == 34
    assert len(client.lease("mail", 80)) == 34
    assert len(client.lease("mail", 80)) == 12


def test_lease_byte_limit_includes_the_headers() -> None:
    server = Server()
    client = server.client()
    header = '{"attributes":{"a":"' + "x" * 60_000 + '"}}'
    for _ in range(40):
        client.ask(FrameKind.PUBLISH, messages.Publish("mail", [messages.OutgoingMessageBody(b"1", True, header)]))
    assert len(client.lease("mail", 80)) == 34


def test_subscription_gets_all_large_messages(server: Server) -> None:
    client = server.client()
    for _ in range(20):
        client.publish("mail", b"x" * 60_000)
    subscription = client.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 100))
    server.turn()
    assert sum(len(answer.value.messages) for answer in client.heard(subscription)) == 20


# -- bounds ---------------------------------------------------------------------------------------------------------


def test_pipelining_holds_frames_past_the_pending_limit_until_others_are_answered(server: Server) -> None:
    client = server.client()
    client.session.max_pending = 8
    frame = messages.frame(FrameKind.PUBLISH, 1, messages.Publish("mail", [messages.OutgoingMessageBody(b"x", False)]))
    client.session.receive(frame * 20)
    assert client.session.pending == 8
    assert client.session.held == 12 * len(frame)
    server.turn()
    client.session.receive(b"")
    assert client.session.pending == 8
    server.turn()
    client.session.receive(b"")
    server.turn()
    assert len(client.answers) == 20
    assert client.session.held == 0


def test_backpressure_stops_pushing_to_a_client_that_does_not_read(server: Server) -> None:
    slow, other = server.client(), server.client()
    slow.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 100))
    slow.session.is_write_paused = True
    other.publish("mail", b"1", b"2")
    assert slow.answers == []
    assert len(other.lease("mail", 1)) == 1
    slow.session.on_writable()
    server.turn()
    assert [message.payload for message in slow.answers[0].value.messages] == [b"2"]


def test_lease_beyond_the_waiting_limit_is_rejected(server: Server) -> None:
    client = server.client()
    for _ in range(MAX_WAITING_LEASES):
        client.send(FrameKind.LEASE, messages.Lease("mail", 1, wait_ms=1000))
    answer = client.ask(FrameKind.LEASE, messages.Lease("mail", 1, wait_ms=1000))
    assert (answer.kind, answer.value.field) == (FrameKind.ERROR, "request")


def test_subscription_beyond_the_limit_is_rejected(server: Server) -> None:
    client = server.client()
    for _ in range(MAX_SUBSCRIPTIONS):
        client.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 1))
    assert client.ask(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 1)).value.field == "request"


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (FrameKind.PUBLISH, messages.Publish("a/b", [messages.OutgoingMessageBody(b"", False)]), "queue"),
        (FrameKind.PUBLISH, messages.Publish("mail", []), "messages"),
        (FrameKind.PUBLISH, messages.Publish("mail", [messages.OutgoingMessageBody(b"", False, delay_ms=-1)]), "delay"),
        (FrameKind.PUBLISH, messages.Publish("mail", [messages.OutgoingMessageBody(b"", False, ttl_ms=2**62)]), "ttl"),
        (
            FrameKind.PUBLISH,
            messages.Publish("mail", [messages.OutgoingMessageBody(b"", False, id="../x")]),
            "messageId",
        ),
        (FrameKind.PUBLISH, messages.Publish("mail", [messages.OutgoingMessageBody(b"{", True)]), None),
        (
            FrameKind.PUBLISH,
            messages.Publish("mail", [messages.OutgoingMessageBody(b"", False, header='{"version":-1}')]),
            "version",
        ),
        (
            FrameKind.PUBLISH,
            messages.Publish("mail", [messages.OutgoingMessageBody(b"", False, header='{"messageId":"x"}')]),
            "header",
        ),
        (
            FrameKind.PUBLISH,
            messages.Publish("mail", [messages.OutgoingMessageBody(b"", False, header="[]")]),
            "header",
        ),
        (FrameKind.LEASE, messages.Lease("mail", 0), "limit"),
        (FrameKind.LEASE, messages.Lease("mail", 1, -5), "wait"),
        (FrameKind.LEASE, messages.Lease("mail", 1, 0, 0), "leaseSeconds"),
        (FrameKind.LEASE, messages.Lease("mail", 1, consumer="a b"), "consumerId"),
        (FrameKind.SUBSCRIBE, messages.Subscribe("mail", 0), "credit"),
        (FrameKind.SUBSCRIBE, messages.Subscribe("mail", 1, -1), "leaseSeconds"),
        (FrameKind.ACK, messages.Settle(["x"]), "leaseId"),
        (FrameKind.ACK, messages.Settle(["9" * 30 + "-1"]), "leaseId"),
        (FrameKind.ACK, messages.Settle(["1-1", "1-1"]), "leases"),
        (FrameKind.NACK, messages.Nack(["1-1"], "NO_SUCH"), "reasonCode"),
        (FrameKind.NACK, messages.Nack(["1-1"], "TIMEOUT", delay_ms=-1), "delay"),
        (FrameKind.EXTEND, messages.Extend(["1-1"], 0), "seconds"),
        (FrameKind.CALL, messages.Call("qeues"), "method"),
        (FrameKind.WELCOME, messages.Welcome("a", "b", "c", 1), "kind"),
    ],
)
def test_request_with_an_invalid_field_is_rejected_by_name_and_the_connection_continues(
    server: Server, kind: FrameKind, body: messages.Hello, field: str | None
) -> None:
    client = server.client()
    answer = client.ask(kind, body)
    assert answer.kind is FrameKind.ERROR
    assert answer.value.field == field
    assert client.ask(FrameKind.PING, messages.Empty()).kind is FrameKind.PONG
    assert client.call("queues") == []


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (FrameKind.PUBLISH, b"", "body"),
        (FrameKind.PUBLISH, b"\xc1", "body"),
        (FrameKind.PUBLISH, b"\x93\x01\x02\x03", "body"),
        (FrameKind.CALL, b"\x92\xa1x" + b"\x81\xa1a" * 5000, "body"),
        (200, b"\x90", "kind"),
        (0, b"\x90", "kind"),
    ],
)
def test_frame_body_that_cannot_be_decoded_is_answered_with_its_request_number(
    server: Server, kind: int, body: bytes, field: str
) -> None:
    client = server.client()
    client.session.receive(encode(kind, 77, body))
    [answer] = client.heard(77)
    assert (answer.kind, answer.value.code, answer.value.field) == (FrameKind.ERROR, "bad_input", field)
    assert not client.is_closed


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (HEAD.pack(1, VERSION + 1, 16, 0, 1), "bad_input"),
        (HEAD.pack(1, VERSION, 16, 9, 1), "bad_input"),
        (HEAD.pack(MAX_FRAME + 1, VERSION, 3, 0, 1), "too_large"),
    ],
)
def test_frame_head_that_is_invalid_is_answered_once_and_closes_the_connection(
    server: Server, head: bytes, code: str
) -> None:
    client = server.client()
    client.session.receive(head + b"\x90" * 10)
    [answer] = client.answers
    assert (answer.kind, answer.request, answer.value.code) == (FrameKind.ERROR, 0, code)
    assert client.is_closed


def test_store_error_is_returned_and_the_next_request_works() -> None:
    store = FailingStore(MemoryStore())
    server = Server(store)
    client = server.client()
    store.fail_at(1, StoreFull("no space left"))
    answer = client.ask(FrameKind.PUBLISH, messages.Publish("mail", [messages.OutgoingMessageBody(b"x", False)]))
    assert (answer.kind, answer.value.code) == (FrameKind.ERROR, "store_full")
    assert client.publish("mail", b"x") == ["m-2"]
    assert client.call("counts", queue="mail")["ready"] == 1


def test_wait_list_is_served_after_the_store_recovers() -> None:
    store = FailingStore(MemoryStore())
    server = Server(store)
    client, producer = server.client(), server.client()
    subscription = client.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 10))
    server.turn()
    number = producer.send(FrameKind.PUBLISH, messages.Publish("mail", [messages.OutgoingMessageBody(b"x", False)]))
    other = producer.send(FrameKind.PUBLISH, messages.Publish("mail", [messages.OutgoingMessageBody(b"y", False)]))
    store.fail_at(1)  # the commit of both; each alone then works, but nobody was served
    server.turn()
    assert {answer.kind for answer in producer.heard(number) + producer.heard(other)} == {FrameKind.STORED}
    assert client.heard(subscription) == []
    server.turns.advance(1000)
    assert [m.payload for answer in client.heard(subscription) for m in answer.value.messages] == [b"x", b"y"]


# -- the end --------------------------------------------------------------------------------------------------------


def test_stop_answers_waiting_leases_and_open_requests_and_sends_bye(server: Server) -> None:
    client = server.client()
    waiting = client.send(FrameKind.LEASE, messages.Lease("mail", 1, wait_ms=60_000))
    client.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 1))
    pending = client.send(FrameKind.PUBLISH, messages.Publish("work", [messages.OutgoingMessageBody(b"x", False)]))
    client.session.stop()
    server.turn()
    client.session.send_goodbye()
    assert client.heard(waiting)[0].value.messages == []
    assert client.heard(pending)[0].kind is FrameKind.STORED
    assert [answer.kind for answer in client.answers] == [FrameKind.BYE]


def test_bye_of_a_client_closes_the_connection(server: Server) -> None:
    client = server.client()
    client.send(FrameKind.BYE, messages.Empty())
    assert client.is_closed


# -- at rest ----------------------------------------------------------------------------------------------------------


def test_idle_server_with_waiting_consumers_writes_nothing_to_disk(tmp_path: Path) -> None:
    store = open_served_store(tmp_path / "queue.db", durability="os", seconds=None)
    server = Server(store)
    client = server.client()
    client.publish("mail", b"1")
    pushed = client.send(FrameKind.SUBSCRIBE, messages.Subscribe("other", 2, None, "s"))
    for _ in range(3):
        server.turns.advance(2_000)
        server.desk.notify_external_change()
        server.turn()

    def files() -> list[bytes]:
        return [path.read_bytes() for path in sorted(tmp_path.iterdir()) if path.suffix != ".db-shm"]

    before = files()
    for _ in range(5):
        server.turns.advance(2_000)
        server.desk.notify_external_change()
        server.turn()
    assert files() == before
    client.publish("other", b"2")
    assert [len(answer.value.messages) for answer in client.heard(pushed)] == [1]
    store.close()
