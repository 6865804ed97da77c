"""STOMP subscribers are served by a queue's strategy as everybody else is, side by side with other doors."""

from tests.support.stomp import Stomp, StompServer, bodies
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind


def new(server: StompServer, client: Stomp) -> list[bytes]:
    """What came since it was last looked at."""
    server.turn()
    found, client.said = bodies([one for one in client.said if one.command == "MESSAGE"]), []
    return found


def test_dispatch_round_robin_includes_stomp_and_native_consumers(server: StompServer) -> None:
    native = server.client()
    native.call("dispatch_set", queue="mail", members={"strategy": "round_robin"})
    ours = native.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 10, None, "native"))
    one, two = (server.connected(**{"client-id": name}) for name in ("one", "two"))
    for client in (one, two):
        client.subscribe("/queue/mail", "client-individual")
    native.publish("mail", *[b"%d" % n for n in range(6)])
    assert new(server, one) == [b"1", b"4"]
    assert new(server, two) == [b"2", b"5"]
    assert [m.payload for a in native.heard(ours) for m in a.value.messages] == [b"0", b"3"]


def test_dispatch_ordered_delivers_the_next_message_after_an_automatic_stomp_ack(server: StompServer) -> None:
    native = server.client()
    native.call("dispatch_set", queue="mail", members={"strategy": "ordered"})
    client = server.connected()
    client.subscribe("/queue/mail", "auto")
    native.publish("mail", b"1", b"2", b"3")
    assert new(server, client) == [b"1", b"2", b"3"]
    assert [row["status"] for row in native.call("deliveries", queue="mail")] == ["DELIVERED"] * 3


def test_dispatch_broadcast_keeps_copies_for_a_named_stomp_client_until_it_reconnects(server: StompServer) -> None:
    native = server.client()
    native.call("dispatch_set", queue="mail", members={"strategy": "broadcast"})
    first, other = (server.connected(**{"client-id": name}) for name in ("ledger", "other"))
    for client in (first, other):
        client.subscribe("/queue/mail", "auto")
    first.session.close()
    server.turn()
    native.publish("mail", b"1")
    assert new(server, other) == [b"1"]
    again = server.connected(**{"client-id": "ledger"})
    assert bodies(again.subscribe("/queue/mail", "auto")) == [b"1"]
