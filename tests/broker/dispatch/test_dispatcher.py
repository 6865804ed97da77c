"""Consumers behind a server, served by a strategy: who gets what, what stays, what is recorded."""

from collections import Counter
from typing import Any

import pytest

from tests.support.session import Client, Consumer, Server, dispatch
from yirangmq.broker.credit_window import PendingLeaseRequest
from yirangmq.core import validation
from yirangmq.core.dispatch import Strategy, owner
from yirangmq.core.errors import BadInput, BadPolicy, NotFound
from yirangmq.format.json_codec import loads
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, last)]


# -- strategy by strategy ---------------------------------------------------------------------------------------------


def test_dispatch_strategy_round_robin_gives_each_consumer_a_message_in_turn(server: Server, client: Client) -> None:
    dispatch(client, "round_robin")
    a, b, c = (Consumer(server, name) for name in ("a", "b", "c"))
    client.publish("mail", *numbered(0, 7))
    assert [one.look() for one in (a, b, c)] == [[b"0", b"3", b"6"], [b"1", b"4"], [b"2", b"5"]]
    client.publish("mail", b"7")
    assert [one.look() for one in (a, b, c)] == [[], [b"7"], []], "the turn goes on"
    b.leave()
    client.publish("mail", *numbered(8, 10))
    assert [one.look() for one in (a, c)] == [[b"9"], [b"8"]]


def test_dispatch_strategy_round_robin_skips_a_consumer_without_credit_and_delays_no_message(
    server: Server, client: Client
) -> None:
    dispatch(client, "round_robin")
    a, b = Consumer(server, "a", credit=1), Consumer(server, "b", credit=10)
    client.publish("mail", *numbered(0, 6))
    assert (a.look(), b.look()) == ([b"0"], numbered(1, 6))
    client.publish("mail", *numbered(6, 20))
    assert b.look() == numbered(6, 11), "five were held already"
    a.ack()
    assert a.look() == [b"11"]


def test_dispatch_strategy_priority_shares_messages_by_weight(server: Server, client: Client) -> None:
    dispatch(client, "priority", weights={"big": 3, "idle": 0})
    big, small, idle = (Consumer(server, name) for name in ("big", "small", "idle"))
    client.publish("mail", *numbered(0, 40))
    assert [len(one.look()) for one in (big, small, idle)] == [30, 10, 0]


def test_dispatch_strategy_random_gives_every_consumer_a_share(server: Server, client: Client) -> None:
    dispatch(client, "random")
    crowd = [Consumer(server, name) for name in ("a", "b", "c")]
    client.publish("mail", *numbered(0, 90))
    shares = [one.look() for one in crowd]
    assert all(10 < len(share) < 60 for share in shares)
    assert sorted([one for share in shares for one in share], key=int) == numbered(0, 90)


def test_dispatch_strategy_load_balance_prefers_the_consumer_with_the_fewest_leases(
    server: Server, client: Client
) -> None:
    dispatch(client, "load_balance")
    a, b = Consumer(server, "a"), Consumer(server, "b")
    client.publish("mail", *numbered(0, 4))
    assert (len(a.look()), len(b.look())) == (2, 2)
    a.ack()
    client.publish("mail", *numbered(4, 6))
    assert (len(a.look()), len(b.look())) == (2, 0), "a had none in hand"
    b.ack(1)
    client.publish("mail", b"6")
    assert (len(a.look()), len(b.look())) == (0, 1)


def test_dispatch_strategy_load_balance_counts_leases_from_before_a_restart(server: Server, client: Client) -> None:
    dispatch(client, "load_balance")
    client.publish("mail", *numbered(0, 3))
    old = client.ask(FrameKind.LEASE, messages.Lease("mail", 3, 0, None, "a")).value.messages
    assert len(old) == 3
    after = Server(server.store)
    after.clock.advance(server.clock.now_ms() - after.clock.now_ms())
    a, b = Consumer(after, "a"), Consumer(after, "b")
    after.client().publish("mail", *numbered(3, 6), first_id=100)
    assert (a.look(), len(b.look())) == ([], 3)


def test_dispatch_strategy_key_hash_gives_a_key_to_the_same_consumer(server: Server, client: Client) -> None:
    dispatch(client, "key_hash", key="account")
    crowd = [Consumer(server, name) for name in ("a", "b", "c")]
    for n in range(60):
        client.publish("mail", b"k%d" % (n % 9), attributes={"account": n % 9})
    for one in crowd:
        one.look()
    owners = Counter(key for one in crowd for key in set(one.got))
    assert set(owners.values()) == {1}
    assert sum(len(one.got) for one in crowd) == 60


def test_dispatch_strategy_key_hash_moves_keys_of_an_absent_consumer_and_waits_for_a_full_consumer(
    server: Server, client: Client
) -> None:
    dispatch(client, "key_hash")
    a, b = Consumer(server, "a", credit=1), Consumer(server, "b")
    mine = [f"g{n}" for n in range(99) if owner(f"group {validation.line_of(f'g{n}')}", ("a", "b")) == "a"][:3]
    for group in mine:
        client.publish("mail", group.encode(), groupId=group)
    assert (a.look(), b.look()) == ([mine[0].encode()], []), "a is full, and b is not their owner"
    a.leave()
    assert b.look() == [mine[1].encode(), mine[2].encode()], "what was a's in line is b's"
    b.ack()
    server.turns.advance(60_000)
    assert b.look() == [mine[0].encode()], "and what a held, once its lease has lapsed"


# -- strict order -----------------------------------------------------------------------------------------------------


def test_dispatch_strategy_ordered_delivers_one_message_at_a_time_in_order(server: Server, client: Client) -> None:
    dispatch(client, "ordered")
    a, b = Consumer(server, "a"), Consumer(server, "b")
    client.publish("mail", *numbered(0, 5))
    order = []
    for _ in range(5):
        a.look()
        b.look()
        [holder] = [one for one in (a, b) if one.held]
        [held] = holder.held
        order.append(held.payload)
        assert client.lease("mail", 5) == [], "nor for who asks"
        holder.ack()
    assert order == numbered(0, 5)


def test_dispatch_strategy_ordered_holds_later_messages_back_during_a_retry(server: Server, client: Client) -> None:
    client.call("set_policy", queue="mail", document={"retry": {"limit": 2, "backoff": "fixed", "initialDelaySec": 5}})
    dispatch(client, "ordered")
    a = Consumer(server, "a")
    client.publish("mail", *numbered(0, 3))
    client.publish("mail", b"urgent", attributes={"priority": 0})
    assert a.look() == [b"0"]
    a.nack()
    assert a.look() == [], "it waits for its retry, and the others for it"
    server.turns.advance(5_000)
    assert a.look() == [b"0"], "begun before the urgent one"
    a.nack()
    server.turns.advance(5_000)
    assert a.look() == [b"0"]
    a.nack()
    assert a.look() == [b"urgent"], "the third attempt was the last: it is dead, and the next may go"
    for _ in range(3):
        a.ack()
    assert a.got[-3:] == [b"urgent", b"1", b"2"]


def test_dispatch_strategy_ordered_keeps_the_order_after_a_restart_and_an_expired_lease(
    server: Server, client: Client
) -> None:
    client.call("set_policy", queue="mail", document={"visibilityTimeoutSec": 10})
    dispatch(client, "ordered")
    client.publish("mail", *numbered(0, 3))
    [first] = client.lease("mail")
    client.ask(FrameKind.NACK, messages.Nack([first.lease], "HANDLER_ERROR", "", 7_000))
    after = Server(server.store)
    after.clock.advance(server.clock.now_ms() - after.clock.now_ms())
    late = after.client()
    assert late.lease("mail") == [], "the delayed one is found again"
    after.turns.advance(7_000)
    [again] = late.lease("mail")
    assert again.payload == b"0"
    assert late.lease("mail") == []
    after.turns.advance(10_000)
    assert [one.payload for one in late.lease("mail", 3)] == [b"0"], "lapsed, and still the first"


# -- broadcast --------------------------------------------------------------------------------------------------------


def test_dispatch_strategy_broadcast_gives_each_consumer_a_copy_with_its_own_ack_and_retry(
    server: Server, client: Client
) -> None:
    dispatch(client, "broadcast")
    a, b = Consumer(server, "a"), Consumer(server, "b")
    client.publish("mail", b"1", b"2")
    assert (a.look(), b.look()) == ([b"1", b"2"], [b"1", b"2"])
    a.ack()
    b.nack(delay_ms=1_000)
    assert (a.look(), b.look()) == ([], [])
    server.turns.advance(1_000)
    assert (a.look(), sorted(b.look())) == ([], [b"1", b"2"])
    b.ack()
    counts = client.call("counts", queue="mail")
    assert (counts["ready"], counts["leased"], counts["dead"], counts["done"]) == (0, 0, 0, 6)


def test_dispatch_strategy_broadcast_copy_names_its_original_and_its_target_consumer(
    server: Server, client: Client
) -> None:
    dispatch(client, "broadcast")
    a = Consumer(server, "a")
    client.publish("mail", b"1", attributes={"x": 1}, deduplicationKey="d", groupId="g")
    a.look()
    header = loads(a.held[0].header.encode())
    assert (header["targetConsumerId"], header["attributes"], header["groupId"]) == ("a", {"x": 1}, "g@a")
    assert header["copyOf"] == a.held[0].id.rpartition(".")[0]


def test_dispatch_strategy_broadcast_waits_for_a_consumer_and_late_joiners_get_only_new_messages(
    server: Server, client: Client
) -> None:
    dispatch(client, "broadcast")
    client.publish("mail", b"early")
    a = Consumer(server, "a")
    assert a.look() == [b"early"]
    b = Consumer(server, "b")
    client.publish("mail", b"late")
    assert (a.look(), b.look()) == ([b"late"], [b"late"])


def test_dispatch_strategy_broadcast_keeps_copies_for_registered_consumers_over_a_restart(
    server: Server, client: Client
) -> None:
    dispatch(client, "broadcast", graceSec=5)
    assert client.call("dispatch_register", queue="mail", consumer="ledger") is True
    assert client.call("dispatch_register", queue="mail", consumer="ledger") is False
    a = Consumer(server, "a")
    client.publish("mail", b"1")
    assert a.look() == [b"1"]
    a.leave()
    after = Server(server.store)
    after.clock.advance(server.clock.now_ms() - after.clock.now_ms())
    b = Consumer(after, "b")
    after.client().publish("mail", b"2", first_id=100)
    assert b.look() == [b"2"]
    ledger = Consumer(after, "ledger")
    assert ledger.look() == [b"1", b"2"]
    again = Consumer(after, "a")
    assert again.look() == [b"2"], "a was there a moment before the restart: its copy waited"


def test_dispatch_strategy_broadcast_copies_of_an_absent_consumer_become_dead_letters(
    server: Server, client: Client
) -> None:
    dispatch(client, "broadcast", graceSec=5)
    a, b = Consumer(server, "a", credit=1), Consumer(server, "b")
    client.publish("mail", b"1", b"2", b"3")
    assert (a.look(), b.look()) == ([b"1"], numbered(1, 4))
    b.ack()
    a.leave()
    server.turns.advance(4_000)
    assert client.call("counts", queue="mail")["dead"] == 0, "it may come again"
    server.turns.advance(2_000)
    assert client.call("counts", queue="mail")["dead"] == 2
    server.turns.advance(60_000)
    assert client.call("counts", queue="mail")["dead"] == 3, "and the one it held, once its lease had lapsed"
    client.publish("mail", b"4")
    assert b.look() == [b"4"]


def test_dispatch_strategy_broadcast_gives_copies_to_a_consumer_that_polls_without_waiting(
    server: Server, client: Client
) -> None:
    dispatch(client, "broadcast")
    assert client.ask(FrameKind.LEASE, messages.Lease("mail", 5, 0, None, "poller")).value.messages == []
    a = Consumer(server, "a")
    client.publish("mail", b"1", b"2")
    found = client.ask(FrameKind.LEASE, messages.Lease("mail", 5, 0, None, "poller")).value.messages
    assert ([one.payload for one in found], a.look()) == ([b"1", b"2"], [b"1", b"2"])


# -- addressed, paused, switched --------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [*Strategy])
def test_dispatch_strategy_of_every_kind_delivers_a_targeted_message_only_to_its_consumer(
    server: Server, client: Client, strategy: str
) -> None:
    dispatch(client, strategy)
    a, b = Consumer(server, "a"), Consumer(server, "b")
    client.publish("mail", b"for b", targetConsumerId="b")
    assert (a.look(), b.look()) == ([], [b"for b"])


@pytest.mark.parametrize("strategy", [*Strategy])
def test_dispatch_strategy_of_every_kind_delivers_nothing_from_a_paused_queue(
    server: Server, client: Client, strategy: str
) -> None:
    dispatch(client, strategy)
    a = Consumer(server, "a")
    client.call("queue_pause", queue="mail")
    client.publish("mail", b"1")
    assert a.look() == []
    client.call("queue_resume", queue="mail")
    assert a.look() == [b"1"]


@pytest.mark.parametrize("strategy", [*Strategy])
def test_dispatch_strategy_of_every_kind_serves_waiting_lease_requests(
    server: Server, client: Client, strategy: str
) -> None:
    dispatch(client, strategy)
    number = client.send(FrameKind.LEASE, messages.Lease("mail", 5, 30_000, None, "poller"))
    server.turn()
    client.publish("mail", b"1")
    assert [one.payload for answer in client.heard(number) for one in answer.value.messages] == [b"1"]


def test_dispatch_strategy_changes_through_all_but_broadcast_lose_and_duplicate_no_message(
    server: Server, client: Client
) -> None:
    a, b = Consumer(server, "a", credit=3), Consumer(server, "b", credit=3)
    sent, got = 0, Counter[bytes]()
    plan = [one for one in Strategy if one is not Strategy.BROADCAST]
    for strategy in [*plan, *reversed(plan), "none", "round_robin"]:
        dispatch(client, strategy)
        client.publish("mail", *numbered(sent, sent + 10))
        sent += 10
        a.ack(1)
        b.ack(1)
    while client.call("counts", queue="mail")["ready"] or a.held or b.held:
        a.ack()
        b.ack()
        a.look()
        b.look()
    got.update([*a.got, *b.got])
    assert got == Counter(numbered(0, sent))
    assert client.call("counts", queue="mail")["done"] == sent


def test_dispatch_strategy_change_from_broadcast_still_delivers_copies_to_their_consumers(
    server: Server, client: Client
) -> None:
    dispatch(client, "broadcast")
    a, b = Consumer(server, "a", credit=1), Consumer(server, "b", credit=1)
    client.publish("mail", b"1", b"2")
    dispatch(client, "first_available")
    for one in (a, b):
        one.ack(1)
        one.look()
    assert (a.got, b.got) == ([b"1", b"2"], [b"1", b"2"])


# -- looking, and what is refused -------------------------------------------------------------------------------------


def test_dispatch_status_lists_the_consumers_with_their_leases_and_weights(server: Server, client: Client) -> None:
    dispatch(client, "key_hash", weights={"a": 2})
    a = Consumer(server, "a")
    client.call("dispatch_register", queue="mail", consumer="z")
    client.publish("mail", b"1", attributes={})
    a.look()
    found = client.call("dispatch", queue="mail")
    assert (found["strategy"], found["inFlight"], found["deliveries"]["DELIVERED"]) == ("key_hash", 1, 0)
    members = ("consumerId", "registered", "here", "inFlight", "weight")
    assert [tuple(row[name] for name in members) for row in found["consumers"]] == [
        ("a", False, True, 1, 2),
        ("z", True, False, 0, 1),
    ]
    a.ack()
    assert client.call("dispatch", queue="mail")["deliveries"]["DELIVERED"] == 1
    assert client.call("status")["queues"][0]["strategy"] == "key_hash"


def test_dispatch_deliveries_are_recorded_with_status_and_times(server: Server, client: Client) -> None:
    client.call("set_policy", queue="mail", document={"visibilityTimeoutSec": 10, "retry": {"initialDelaySec": 1}})
    dispatch(client, "first_available")
    a = Consumer(server, "a", credit=1)
    client.publish("mail", b"1")
    began = server.clock.now_ms()
    [under_way] = client.call("deliveries", queue="mail")
    assert (under_way["status"], under_way["begunAt"], under_way["endedAt"]) == ("DELIVERING", began, None)
    server.turns.advance(200)
    a.nack()
    server.turns.advance(1_000)
    a.look()
    server.turns.advance(10_000)
    a.look()
    server.turns.advance(50)
    a.ack()
    found = client.call("deliveries", queue="mail", consumer="a")
    assert [(row["attempt"], row["status"], row["became"]) for row in reversed(found)] == [
        (1, "FAILED", "delayed"),
        (2, "TIMEOUT", "ready"),
        (3, "DELIVERED", "done"),
    ]
    assert [row["endedAt"] - row["begunAt"] for row in reversed(found)] == [200, 10_000, 50]
    assert found[2]["text"] == "it broke"
    assert client.call("deliveries", status="TIMEOUT", id=found[0]["messageId"])[0]["attempt"] == 2
    assert client.call("deliveries", queue="other") == []


def test_dispatch_deliveries_are_not_recorded_in_a_queue_without_a_strategy(server: Server, client: Client) -> None:
    a = Consumer(server, "a")
    client.publish("mail", b"1")
    a.ack()
    assert client.call("deliveries") == []
    assert client.call("dispatch", queue="mail")["strategy"] is None


@pytest.mark.parametrize("ending", ["ack", "ack in one run", "nack", "timeout", "drop"])
def test_dispatch_delivery_begun_under_a_strategy_ends_after_the_strategy_was_removed(
    server: Server, client: Client, ending: str
) -> None:
    """S-31: a delivery that begins as DELIVERING ends with the message's lease, whatever the policy says by then; its
    consumer is not taken for busy when a strategy is set again."""
    client.call("set_policy", queue="mail", document={"visibilityTimeoutSec": 10})
    dispatch(client, "load_balance")
    a = Consumer(server, "a", credit=2)
    client.publish("mail", *numbered(0, 2))
    assert len(a.look()) == 2
    dispatch(client, "none")
    if ending == "ack":
        a.ack(1)
        a.ack(1)
    elif ending == "ack in one run":
        a.ack()
    elif ending == "nack":
        a.nack(delay_ms=3_600_000)
    elif ending == "drop":
        client.call("drop", queue="mail", ids=[message.id for message in a.held])
        a.held = []
    else:
        client.call("queue_pause", queue="mail")
        server.turns.advance(10_000)
        client.call("drop", queue="mail", ids=[message.id for message in a.held])
        client.call("queue_resume", queue="mail")
        a.held = []
    a.leave()
    status = {"nack": "FAILED", "timeout": "TIMEOUT", "drop": "FAILED"}.get(ending, "DELIVERED")
    assert [row["status"] for row in client.call("deliveries", consumer="a")] == [status, status]
    assert client.call("deliveries", status="DELIVERING") == []
    dispatch(client, "load_balance")
    a, b = Consumer(server, "a"), Consumer(server, "b")
    client.publish("mail", *numbered(2, 6))
    assert (len(a.look()), len(b.look())) == (2, 2), "both consumers are idle"


def test_dispatch_strategy_set_again_counts_leases_taken_without_a_strategy(server: Server, client: Client) -> None:
    dispatch(client, "load_balance")
    a = Consumer(server, "a", credit=3)
    client.publish("mail", b"0")
    a.ack()
    dispatch(client, "none")
    client.publish("mail", *numbered(1, 4))
    assert len(a.look()) == 3
    dispatch(client, "load_balance")
    assert client.call("dispatch", queue="mail")["inFlight"] == 3
    again, b = Consumer(server, "a"), Consumer(server, "b")
    client.publish("mail", *numbered(4, 7))
    assert (again.look(), len(b.look())) == ([], 3)


@pytest.mark.parametrize("command", ["delete_queue", "queue_clear"])
def test_dispatch_deliveries_end_when_their_queue_is_emptied(server: Server, client: Client, command: str) -> None:
    dispatch(client, "load_balance")
    a = Consumer(server, "a")
    client.publish("mail", b"1")
    a.look()
    client.call(command, queue="mail")
    [row] = client.call("deliveries", queue="mail")
    assert (row["status"], row["reason"], row["became"]) == ("FAILED", "dropped", "dropped")
    assert client.call("dispatch", queue="mail")["inFlight"] == 0


def test_dispatch_outcomes_of_ack_and_nack_are_published_to_the_outcomes_queue(server: Server, client: Client) -> None:
    dispatch(client, "round_robin", outcomes="told")
    a = Consumer(server, "a")
    client.publish("mail", b"1", b"2")
    a.ack(1)
    a._client.ask(FrameKind.NACK, messages.Nack([a.held[0].lease], "REJECTED", "no", None, "a"))
    told = [loads(one.payload) for one in client.lease("told", 5)]
    assert [(one["status"], one["became"], one["final"], one["consumerId"]) for one in told] == [
        ("DELIVERED", "done", True, "a"),
        ("FAILED", "dead", True, "a"),
    ]
    assert told[1]["reason"] == "REJECTED"


def test_dispatch_outcomes_that_cannot_be_published_fail_no_delivery(server: Server, client: Client) -> None:
    client.call("set_policy", queue="told", document={"quota": {"maxMessages": 1}})
    dispatch(client, "round_robin", outcomes="told")
    a = Consumer(server, "a")
    client.publish("mail", b"1", b"2")
    a.ack(1)
    a.ack(1)
    assert client.call("counts", queue="mail")["done"] == 2
    assert client.call("counts", queue="told")["ready"] == 1


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"strategy": "fifo"}, "dispatch.strategy"),
        ({"strat": "ordered"}, "dispatch.strat"),
        ({"outcomes": "mail"}, "dispatch.outcomes"),
    ],
)
def test_dispatch_settings_with_an_invalid_member_are_rejected_and_change_nothing(
    client: Client, members: dict[str, Any], field: str
) -> None:
    dispatch(client, "ordered")
    with pytest.raises((BadPolicy, BadInput)) as refused:
        client.call("dispatch_set", queue="mail", members=members)
    assert refused.value.field == field
    assert client.call("dispatch", queue="mail")["strategy"] == "ordered"


def test_dispatch_registration_at_an_unknown_queue_is_rejected(client: Client) -> None:
    with pytest.raises(NotFound):
        client.call("dispatch_register", queue="mail", consumer="a")


def test_dispatch_registrations_are_gone_after_the_queue_is_deleted_and_created_again(
    server: Server, client: Client
) -> None:
    dispatch(client, "broadcast")
    client.publish("mail", b"1")
    client.call("dispatch_register", queue="mail", consumer="a")
    client.call("delete_queue", queue="mail")
    dispatch(client, "broadcast")
    assert client.call("dispatch", queue="mail")["consumers"] == []


def test_waiter_for_a_single_lease_request_is_a_poll() -> None:
    assert PendingLeaseRequest("mail", "a", None, 1, lambda got: True).is_poll
