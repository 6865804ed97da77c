"""The strategies that look into the store in their own way, on every store, also when it is opened again."""

import pytest

from tests.support.session import Client, Consumer, Server, dispatch
from tests.support.stores import Place
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind


def reopened(place: Place, server: Server, later_ms: int = 0) -> tuple[Server, Client]:
    made = Server(place.reopen())
    made.clock.advance(server.clock.now_ms() - made.clock.now_ms() + later_ms)
    return made, made.client()


def test_dispatch_strategy_broadcast_copies_wait_for_their_consumers_in_every_store(place: Place) -> None:
    server = Server(place.open())
    client = server.client()
    dispatch(client, "broadcast", graceSec=5)
    client.publish("mail", b"0")
    for name in ("ledger", "audit"):
        client.call("dispatch_register", queue="mail", consumer=name)
    a = Consumer(server, "a")
    client.publish("mail", b"1", b"2", groupId="g")
    assert a.look() == [b"0", b"1"], "the second of the group waits for the first, copy by copy"
    a.ack()
    assert a.look() == [b"2"]
    a.ack()
    after, again = reopened(place, server)
    ledger = Consumer(after, "ledger")
    assert ledger.look() == [b"0", b"1"]
    ledger.ack()
    assert ledger.look() == [b"2"]
    ledger.ack()
    again.call("dispatch_deregister", queue="mail", consumer="audit")
    after.turn()
    counts = again.call("counts", queue="mail")
    assert (counts["ready"] + counts["leased"] + counts["held"], counts["dead"]) == (0, 3), "audit's are dead letters"


def test_dispatch_strategy_ordered_keeps_its_order_after_a_restart_in_every_store(place: Place) -> None:
    server = Server(place.open())
    client = server.client()
    dispatch(client, "ordered")
    client.publish("mail", b"1", b"2")
    [first] = client.lease("mail", 2)
    client.ask(FrameKind.NACK, messages.Nack([first.lease], "HANDLER_ERROR", "", 9_000))
    after, again = reopened(place, server, 1_000)
    assert again.lease("mail", 2) == []
    after.turns.advance(9_000)
    [retried] = again.lease("mail", 2)
    assert retried.payload == b"1"
    again.ask(FrameKind.ACK, messages.Settle([retried.lease]))
    assert [one.payload for one in again.lease("mail", 2)] == [b"2"]


@pytest.mark.parametrize("strategy", ["round_robin", "random", "priority", "load_balance", "key_hash"])
def test_dispatch_strategy_shares_out_all_messages_and_counts_their_acks_in_every_store(
    place: Place, strategy: str
) -> None:
    server = Server(place.open())
    client = server.client()
    dispatch(client, strategy)
    a, b = Consumer(server, "a"), Consumer(server, "b")
    for n in range(12):
        client.publish("mail", b"%d" % n, groupId=f"g{n}")
    a.ack()
    b.ack()
    assert sorted(int(one) for one in [*a.got, *b.got]) == list(range(12))
    assert client.call("counts", queue="mail")["done"] == 12
    assert client.call("dispatch", queue="mail")["deliveries"]["DELIVERED"] == 12
