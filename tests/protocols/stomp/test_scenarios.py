"""What queues promise at every door, as far as STOMP can say it: pausing, quotas, schemas, targets, dead letters; and
clients that do their worst."""

import os
import random
import time
from pathlib import Path

from tests.support.stomp import Stomp, StompServer, bodies, cards, error_of, set_policy
from tests.support.stomp_examples import EXAMPLES
from yirangmq.admin.health import StoreDisk
from yirangmq.core.errors import every_error
from yirangmq.core.states import State
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind
from yirangmq.wire.stomp import VERSIONS

SECONDS = float(os.environ.get("YIRANGMQ_FUZZ_SECONDS", "60")) / 20


def test_pause_of_a_queue_stops_delivery_and_not_publishing(server: StompServer) -> None:
    client = server.connected()
    client.send("/queue/mail", b"0")
    assert bodies(client.subscribe("/queue/mail", "auto")) == [b"0"]
    server.client().call("queue_pause", queue="mail")
    client.send("/queue/mail", b"1")
    assert client.heard() == []
    server.client().call("queue_resume", queue="mail")
    assert bodies(client.heard()) == [b"1"]


def test_quota_exceeded_is_an_error_with_a_retry_time(server: StompServer) -> None:
    set_policy(server, "mail", quota={"maxMessages": 2})
    client = server.connected()
    said = client.raw(b"".join(client.write("SEND", b"x", destination="/queue/mail", receipt=str(n)) for n in range(3)))
    assert [(frame.command, frame.headers["receipt-id"]) for frame in said] == [
        ("RECEIPT", "0"), ("RECEIPT", "1"), ("ERROR", "2"),
    ]  # fmt: skip
    assert "quota_exceeded" in error_of(said)
    assert "try again in" in error_of(said)


def test_json_schema_mismatch_makes_a_dead_letter_without_an_error(server: StompServer) -> None:
    set_policy(server, "mail", schemas={"order": {"*": {"type": "object", "required": ["to"]}}})
    client = server.connected()
    client.send("/queue/mail", b"{}", content_type="application/json", type="order")
    client.send("/queue/mail", b'{"to": 1}', content_type="application/json", type="order")
    assert bodies(client.subscribe("/queue/mail", "auto")) == [b'{"to": 1}']
    assert [card.reason for card in cards(server, State.DEAD)] == ["VALIDATION_ERROR"]


def test_target_consumer_is_the_client_id(server: StompServer) -> None:
    new = messages.OutgoingMessageBody(b"yours", False, header='{"targetConsumerId":"stomp:billing"}')
    server.client().ask(FrameKind.PUBLISH, messages.Publish("mail", [new]))
    assert server.connected(client_id="other").subscribe("/queue/mail", "auto") == []
    assert bodies(server.connected(client_id="billing").subscribe("/queue/mail", "auto")) == [b"yours"]


def test_dead_letters_are_redriven_to_the_subscriber(server: StompServer) -> None:
    set_policy(server, "mail", retry={"limit": 0})
    client = server.connected()
    client.send("/queue/mail", b"x")
    [message] = client.subscribe("/queue/mail")
    client.nack(message)
    assert server.client().call("failed_renew", queue="mail") == 1
    server.turn()
    [again] = client.heard()
    assert (again.body, again.headers["JMSXDeliveryCount"]) == (b"x", "2")


def test_concurrency_limit_bounds_the_leased_messages_of_a_queue(server: StompServer) -> None:
    set_policy(server, "mail", concurrency=2)
    client = server.connected()
    client.send("/queue/mail", b"1", b"2", b"3")
    messages = client.subscribe("/queue/mail")
    assert bodies(messages) == [b"1", b"2"]
    assert bodies(client.ack(messages[0])) == [b"3"]


def test_full_disk_rejects_sending_while_consuming_continues(tmp_path: Path) -> None:
    disk = StoreDisk(tmp_path, 0)
    server = StompServer(disk=disk)
    client = server.connected()
    client.send("/queue/mail", b"1")
    disk.low_bytes = 2**62
    disk.inspect()
    assert "store_full" in error_of(server.connected().do("SEND", b"x", destination="/queue/mail"))
    assert bodies(client.subscribe("/queue/mail", "auto")) == [b"1"]


def test_queue_is_shared_by_stomp_and_native_consumers(server: StompServer) -> None:
    client = server.connected()
    client.send("/queue/mail", b"1", b"2", b"3")
    [mine] = server.client().lease("mail", 1)
    assert (mine.payload, bodies(client.subscribe("/queue/mail", "auto"))) == (b"1", [b"2", b"3"])


# -- whatever comes ---------------------------------------------------------------------------------------------------

CODES = {error.code for error in every_error()} - {"internal_error"}
WORDS = {
    "destination": ("/queue/a", "/queue/b", "/topic/t", "/topic/>", "/temp-queue/x", "x", "/", "/queue/"),
    "id": ("0", "1", "1-1", "2-1", "3-2"),
    "ack": ("auto", "client", "client-individual", "x"),
    "message-id": ("m-1", "m-2", "m-9"),
    "subscription": ("0", "1", ""),
    "transaction": ("t", "u", ""),
    "receipt": ("r",),
    "priority": ("0", "9", "-1"),
    "expires": ("0", "1", "x"),
    "AMQ_SCHEDULED_DELAY": ("0", "1000", "x"),
    "JMSXGroupID": ("g", ""),
    "activemq.prefetchSize": ("1", "0", "5"),
    "activemq.subscriptionName": ("n",),
    "heart-beat": ("0,0", "1,1", "x"),
    "accept-version": ("1.0", "1.2", "9"),
    "content-type": ("application/json", "text/plain"),
}


def nearly_right(chance: random.Random, client: Stomp) -> bytes:
    command = chance.choice(EXAMPLES).command
    names = chance.sample(list(WORDS), chance.randint(0, 7))
    if command in ("SEND", "SUBSCRIBE"):
        names.append("destination")
    headers = {name.replace(".", "__").replace("-", "_"): chance.choice(WORDS[name]) for name in names}
    body = chance.choice((b"", b"x", b"{}")) if command == "SEND" else b""
    raw = bytearray(client.write(command, body, **headers))
    if chance.random() < 0.1:
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    return bytes(raw)


def test_fuzz_damaged_frames_get_known_errors_and_leave_nothing_leased() -> None:
    chance = random.Random(11)
    end = time.monotonic() + SECONDS
    server = StompServer()
    while time.monotonic() < end:
        client = server.connected(chance.choice(VERSIONS))
        for _ in range(30):
            said = client.raw(nearly_right(chance, client))
            if chance.random() < 0.05:
                server.turns.advance(chance.choice((1, 1000, 60_000)))
            errors = [frame for frame in said if frame.command == "ERROR"]
            assert {frame.headers["message"].split(":")[0] for frame in errors} <= CODES
            assert len(errors) <= 1
            if client.is_closed:
                break
        client.lose()
        held = [card for queue in server.client().call("queues") for card in cards(server, State.LEASED, queue)]
        assert held == []
        assert client.session.pending == 0
