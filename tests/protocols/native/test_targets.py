"""Consumers that wait behind a server: what is for one of them alone reaches that one, whoever else waits before it."""

import pytest

from tests.support.session import Answer, Client, Server
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind


def waits(client: Client, server: Server, consumer: str, queue: str = "mail") -> int:
    """A lease with patience; the number of its request."""
    number = client.send(FrameKind.LEASE, messages.Lease(queue, 5, 30_000, None, consumer))
    server.turn()
    return number


def payloads(answers: list[Answer]) -> list[bytes]:
    return [message.payload for answer in answers for message in answer.value.messages]


def test_target_consumer_gets_its_message_past_earlier_waiters(server: Server) -> None:
    client = server.client()
    first, second, third = (waits(client, server, name) for name in ("anna", "berta", "carla"))
    client.publish("mail", b"for berta", targetConsumerId="berta")
    assert [payloads(client.heard(number)) for number in (first, second, third)] == [[], [b"for berta"], []]
    client.publish("mail", b"for anyone")
    assert [payloads(client.heard(number)) for number in (first, third)] == [[b"for anyone"], []], "anna kept her turn"


def test_target_consumer_that_starts_to_wait_gets_its_stored_message(server: Server) -> None:
    client = server.client()
    client.publish("mail", b"for carla", targetConsumerId="carla")
    first, second = waits(client, server, "anna"), waits(client, server, "berta")
    third = waits(client, server, "carla")
    assert [payloads(client.heard(number)) for number in (first, second, third)] == [[], [], [b"for carla"]]


@pytest.mark.parametrize("count", [1, 3, 40])
def test_target_consumers_each_get_their_own_of_many_messages(server: Server, count: int) -> None:
    """Fewer targets than consumers that wait, and more."""
    client = server.client()
    names = [f"worker-{n}" for n in range(5)]
    for n in range(count):
        client.publish("mail", b"%d" % n, targetConsumerId=f"worker-{n}")
    numbers = [waits(client, server, name) for name in ["anna", *names]]
    assert [payloads(client.heard(number)) for number in numbers] == [
        [],
        *([b"%d" % n] if n < count else [] for n in range(5)),
    ]


def test_target_consumer_subscription_gets_its_message_when_it_has_credit_again(server: Server) -> None:
    client = server.client()
    other = client.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 1, None, "anna"))
    mine = client.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 1, None, "berta"))
    for payload in (b"1", b"2"):
        client.publish("mail", payload, targetConsumerId="berta")
    pushed = client.heard(mine)[-1].value.messages
    assert [message.payload for message in pushed] == [b"1"]
    client.ask(FrameKind.ACK, messages.Settle([pushed[0].lease], "berta"))
    assert payloads(client.heard(mine)) == [b"2"]
    assert not any(answer.kind is FrameKind.DELIVER for answer in client.heard(other))


def test_target_consumer_that_waits_gets_the_next_message_of_a_group(server: Server) -> None:
    client = server.client()
    client.publish("mail", b"1", groupId="order-7")
    client.publish("mail", b"2", groupId="order-7", targetConsumerId="berta")
    [first] = client.lease("mail")
    waiting = waits(client, server, "anna"), waits(client, server, "berta")
    client.ask(FrameKind.ACK, messages.Settle([first.lease], None))
    assert [payloads(client.heard(number)) for number in waiting] == [[], [b"2"]]
