"""Whoever does not lead writes nothing, also if it does not know yet; and who gets what, by the ledger alone."""

from typing import Any

import pytest

from tests.support.etcd import EtcdCluster, at, keys_of, play, running
from tests.support.wait import soon
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.cluster.dispatch import planner
from yirangmq.cluster.dispatch.dispatcher import Dispatcher, DispatcherOptions
from yirangmq.cluster.dispatch.messages import sweep_dead
from yirangmq.cluster.dispatch.recovery import DispatchRecovery, LeadershipLost
from yirangmq.cluster.dispatch.state import DispatchInbox, EtcdQueueState, InboxArrival, LineRemoval
from yirangmq.cluster.etcd.channel import MESSAGES
from yirangmq.cluster.etcd.client import Etcd
from yirangmq.cluster.etcd.quota import EtcdQuota
from yirangmq.cluster.keys import (
    Keys,
    ParsedKey,
    Registration,
    RegistrationKey,
    decode_segment,
    queue_of_segment,
    read_registration,
    segment,
    served_queue_of_key,
)
from yirangmq.core.errors import BadInput, Unavailable
from yirangmq.core.policy import read_policy
from yirangmq.core.validation import check_dispatched_queue

KEYS = Keys("jobs")


@pytest.mark.process
def test_fencing_prevents_every_write_of_a_replaced_leader(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        keys = Keys(queue)
        async with at(*etcd.endpoints) as client:
            fence = (await client.put(keys.leader, b"old")).header.revision
            arrived = (await client.put(keys.inbox("ann", "k"), b"1")).header.revision
            ledger, _ = await DispatchRecovery(client, queue, "old", SystemClock(), 256).read(fence)
            ledger.inbox.fill(InboxArrival(keys.inbox("ann", "k"), b"ann", b"k", arrived, None), b"1")
            ledger.removals.append(LineRemoval(9, b"x", True))
            await client.delete(keys.leader)
            await client.put(keys.leader, b"new")
            await client.put(keys.why(1), b'{"due": 1}')
            before = [(kv.key, kv.mod_revision) for kv in (await client.range(keys.leader, keys.base + b"~")).kvs]
            dispatcher = Dispatcher(
                client, queue, "old", SystemClock(), TimeOrderedIds(), EtcdQuota(), DispatcherOptions()
            )
            for batch in (
                planner.plan(ledger, fence, 1, 0.0),
                planner.heartbeat(ledger, fence, 1, 0.0),
                planner.plan_removals(ledger, fence),
            ):
                assert not batch.is_empty
                with pytest.raises(LeadershipLost):
                    await dispatcher._commit(ledger, batch, fence, 0.0)
            await sweep_dead(client, keys, fence, 10)
            after = [(kv.key, kv.mod_revision) for kv in (await client.range(keys.leader, keys.base + b"~")).kvs]
            assert after == before
            with pytest.raises(LeadershipLost):
                await DispatchRecovery(client, queue, "old", SystemClock(), 256).read(fence)
            with pytest.raises(LeadershipLost):
                await dispatcher.lead(fence)

    play(game())


@pytest.mark.process
def test_dispatcher_does_not_move_a_message_that_its_producer_deleted_or_rewrote(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        keys = Keys(queue)
        async with at(*etcd.endpoints) as client:
            fence = (await client.put(keys.leader, b"me")).header.revision
            ledger, _ = await DispatchRecovery(client, queue, "me", SystemClock(), 256).read(fence)
            for name in ("taken", "anew", "kept"):
                revision = (await client.put(keys.inbox("ann", name), b"1")).header.revision
                ledger.inbox.add(InboxArrival(keys.inbox("ann", name), b"ann", name.encode(), revision, b"1"))
            await client.delete(keys.inbox("ann", "taken"))
            await client.put(keys.inbox("ann", "anew"), b"2")
            dispatcher = Dispatcher(
                client, queue, "me", SystemClock(), TimeOrderedIds(), EtcdQuota(), DispatcherOptions()
            )
            await dispatcher._commit(ledger, planner.plan(ledger, fence, 1, 0.0), fence, 0.0)
            assert [one.name for one in ledger.inbox] == [b"kept"]
            assert await keys_of(client, keys.base + b"0") == []
            await dispatcher._commit(ledger, planner.plan(ledger, fence, 1, 0.0), fence, 0.0)
            assert await keys_of(client, keys.base + b"0") == [keys.ordered(1, b"kept")]
            assert await keys_of(client, keys.base + b"p/") == [keys.inbox("ann", "anew")]
            await client.delete(keys.leader, keys.base + b"~")

    play(game())


@pytest.mark.process
@pytest.mark.slow
def test_leader_election_is_impossible_with_a_minority_of_etcd(etcds: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with running(etcds.endpoints) as node, at(*etcds.endpoints) as client:
            await soon(lambda: _answers(client))
            for member in etcds.members[:2]:
                member.kill()
            with pytest.raises(Unavailable):
                await client.put(Keys(queue).leader, b"me")
            assert queue not in node.dispatchers
            for member in etcds.members[:2]:
                member.start()
            assert etcds.wait_well()
            await soon(lambda: _answers(client))
            await client.put(Keys(queue).inbox("ann", "k"), b"1")
            await soon(lambda: queue in node.dispatchers, what="a leader")
            assert len(await keys_of(client, Keys(queue).leader)) >= 1

    async def _answers(client: Etcd) -> bool:
        try:
            await client.range(b"/q/", limit=1)
            return True
        except Unavailable:
            return False

    play(game())


def registered(ledger: EtcdQueueState, name: str, host: bytes, revision: int = 1) -> bytes:
    home = KEYS.home(name)
    kv: Any = MESSAGES["KeyValue"](key=home, value=host, create_revision=revision, mod_revision=revision, lease=1)
    ledger.register(home, kv)
    return home


def filled(count: int, window: int = 256) -> EtcdQueueState:
    ledger = EtcdQueueState("jobs", "here", read_policy({}, "jobs"), window)
    for number in range(count):
        key = KEYS.inbox("ann", f"k{number}")
        ledger.inbox.add(InboxArrival(key, b"ann", b"k%d" % number, number + 1, b"v"))
    return ledger


def test_dispatcher_registration_names_the_host_and_the_kind_of_copies() -> None:
    for value, host, references in (
        (b"here", b"here", False), (b"here?copies=reference", b"here", True), (b"", b"", False),
        (b"here?copies=body", b"here?copies=body", False),
    ):  # fmt: skip
        assert read_registration(value) == Registration(host, references)
        assert Registration(host, references).value == value
    ledger = filled(1)
    home = registered(ledger, "a", b"here?copies=reference")
    assert ledger.consumers[home].near
    batch = planner.plan(ledger, 1, 0, 0.0)
    inside = [one for packed in batch.builder.request.success for one in packed.request_txn.success]
    puts = {one.request_put.key: one.request_put.value for one in inside if one.HasField("request_put")}
    assert puts == {KEYS.ordered(1, b"k0"): b"v", home + b"%020d/k0" % 1: b""}
    assert batch.bytes == 1


def test_dispatcher_prefers_a_consumer_on_the_leaders_node_then_the_least_loaded() -> None:
    """E-23."""
    ledger = filled(5, window=2)
    near, far, other = (registered(ledger, *one) for one in (("c", b"here"), ("a", b"there"), ("b", b"there")))
    planner.plan(ledger, 1, 0, 0.0)
    assert {home: sorted(one.held) for home, one in ledger.consumers.items()} == {near: [1, 2], far: [3, 5], other: [4]}


def test_dispatcher_transaction_stays_within_the_limits_of_etcd() -> None:
    ledger = filled(500)
    registered(ledger, "a", b"here")
    for number in range(1000):
        ledger.removals.append(LineRemoval(number, b"x", True))
    batch = planner.plan(ledger, 1, 0, 0.0)
    request = batch.builder.request
    inside = [len(one.request_txn.success) for one in request.success if one.HasField("request_txn")]
    assert max(len(request.success), len(request.compare), len(request.failure)) + max(inside) <= 128
    assert len(batch.moves) > 50
    assert len(batch.removed) > 50


def test_dispatcher_ledger_is_correct_after_an_ack_before_the_answer_and_after_a_refused_transaction() -> None:
    ledger = filled(3)
    home = registered(ledger, "a", b"here")
    batch = planner.plan(ledger, 1, 0, 0.0)
    ledger.settle_delivery(home, 2, 8, 5)
    planner.apply(ledger, batch, [], 7)
    assert sorted(ledger.unacked) == [1, 3]
    assert [one.number for one in ledger.removals] == [2]
    assert ledger.consumers[home].held == {1, 3}
    again = filled(3)
    home = registered(again, "a", b"here")
    planner.undo(again, planner.plan(again, 1, 0, 0.0))
    assert (again.unacked, again.consumers[home].held, again.next, len(again.inbox)) == ({}, set(), 1, 3)


def test_dispatcher_inbox_holds_a_bounded_number_of_bytes_and_the_rest_by_its_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("yirangmq.cluster.dispatch.state.MAX_INBOX_BYTES", 4)
    inbox = DispatchInbox()
    one, two, three, four = (InboxArrival(b"k%d" % number, b"", b"", number, b"vvv") for number in range(1, 5))
    for arrival in (one, two, three, four):
        inbox.add(arrival)
    unread = [three._replace(value=None), four._replace(value=None)]
    assert inbox.unread(4, 9) == unread
    assert inbox.unread(3, 9) == inbox.unread(4, 1) == unread[:1]
    inbox.fill(unread[0], b"vvv")
    inbox.remove(one)
    inbox.add(two._replace(value=b"old", revision=1))
    assert list(inbox) == [two, three, unread[1]]
    inbox.add(two._replace(value=b"new", revision=9))
    inbox.remove(two)  # that was another
    assert [arrival.value for arrival in inbox] == [b"new", b"vvv", None]
    inbox.stuck.update((two.key, three.key))
    assert inbox.unread(1, 9) == unread[1:]
    inbox.remove(three)
    assert [arrival.key for arrival in inbox.stuck_messages(9)] == [two.key]


def test_ack_is_not_inferred_from_the_dispatchers_own_deletion_of_an_earlier_copy() -> None:
    """The same consumer has the message again when we hear that we took it back."""
    ledger = filled(1)
    home = registered(ledger, "a", b"here")
    planner.apply(ledger, planner.plan(ledger, 1, 0, 0.0), [], 7)
    ledger.tick(10**9)
    taken = planner.plan(ledger, 1, 10**9, 0.0)
    was_there: Any = MESSAGES["ResponseOp"](response_txn={"succeeded": True})
    planner.apply(ledger, taken, [was_there], 8)
    ledger.tick(2 * 10**9)
    ledger.bodies[1] = b"v"
    planner.apply(ledger, planner.plan(ledger, 1, 2 * 10**9, 0.0), [], 9)
    ledger.settle_delivery(home, 1, 8, 0)
    assert (sorted(ledger.unacked), list(ledger.removals)) == ([1], [])
    ledger.settle_delivery(home, 1, 10, 0)
    assert (sorted(ledger.unacked), [one.number for one in ledger.removals]) == ([], [1])
    assert ledger.revoked_at == {}


def test_ack_removal_deletes_messages_in_runs_that_hold_nothing_else() -> None:
    ledger = filled(9)
    home = registered(ledger, "a", b"here")
    planner.apply(ledger, planner.plan(ledger, 1, 0, 0.0), [], 7)
    for number in (2, 9, 1, 3, 6, 5):
        ledger.settle_delivery(home, number, 8, 0)
    batch = planner.plan(ledger, 1, 0, 0.0)
    assert _deleted(batch) == [(1, 3), (5, 6), (9, 9)]
    planner.apply(ledger, batch, [], 9)
    for number in (4, 8):
        ledger.settle_delivery(home, number, 10, 0)
    assert _deleted(planner.plan(ledger, 1, 0, 0.0)) == [(4, 4), (8, 8)]
    ledger.settle_delivery(home, 7, 11, 0)
    batch = planner.plan(ledger, 1, 0, 0.0)
    assert _deleted(batch) == [(4, 8)]  # 5 and 6 are gone already
    planner.apply(ledger, batch, [], 12)
    assert not ledger.removals
    assert ledger.counters.acked == 9


def test_ack_removal_of_a_single_message_waits_for_its_neighbours_while_there_is_other_work() -> None:
    ledger = filled(9)
    home = registered(ledger, "a", b"here")
    planner.apply(ledger, planner.plan(ledger, 1, 0, 0.0), [], 7)
    for number in (2, 5, 6, 7, 8):
        ledger.settle_delivery(home, number, 8, 0)
    ledger.inbox.add(InboxArrival(KEYS.inbox("ann", "more"), b"ann", b"more", 9, b"v"))
    batch = planner.plan(ledger, 1, 0, 0.0)
    assert _deleted(batch) == [(5, 8)]
    planner.apply(ledger, batch, [], 10)
    assert _deleted(planner.plan(ledger, 1, 0, 0.0)) == [(2, 2)]


def _deleted(batch: planner.PlannedTransaction) -> list[tuple[int, int]]:
    """The numbers in line from which and to which it deletes."""
    inside = [one for packed in batch.builder.request.success for one in packed.request_txn.success]
    ranges = [one.request_delete_range for one in inside if one.HasField("request_delete_range")]
    found = [(KEYS.in_line(one.key), KEYS.in_line(one.range_end)) for one in ranges]
    return [(first[0], last[0]) for first, last in found if first and last]


@pytest.mark.parametrize(
    ("key", "parsed"),
    [
        (b"/q/jobs/c/bob", RegistrationKey(b"/q/jobs/c/bob/", b"bob")),
        (b"/queue/jobs/consumer/bob/", RegistrationKey(b"/queue/jobs/consumer/bob/", b"bob")),
        (b"/q/other/p/ann/k", None),
        (b"/q/jobs/c/", None),
        (b"/q/jobs/c/bob/12/k", None),
        (b"/q/jobs/x/ann/k", None),
        (b"/elsewhere/jobs/p/ann/k", None),
        (b"/q/jobs", None),
    ],
)
def test_etcd_key_is_read_as_a_registration_or_ignored(key: bytes, parsed: ParsedKey | None) -> None:
    assert KEYS.parsed(key) == parsed


def test_etcd_key_names_a_served_queue_only_with_a_valid_prefix_and_name() -> None:
    assert served_queue_of_key(b"/queue/jobs/p/k") == "jobs"
    for key in (b"/jobs/p/k", b"q/jobs", b"/q/", b"/q/.hidden/p/k", b"/q/\xff/p", "/q/작업/p/k".encode()):
        assert served_queue_of_key(key) is None


@pytest.mark.parametrize("name", ["jobs", "작업", "a b", "orders%2Feu", "50%", "a%20b", ".hidden", "x" * 300])
def test_etcd_queue_name_is_its_path_segment(name: str) -> None:
    assert queue_of_segment(name.encode()) == name


@pytest.mark.parametrize("part", [b"", b"\xff", b"a\nb", b"\x7f", "\x85".encode(), b"x" * 1025])
def test_etcd_queue_name_that_no_queue_can_have_is_refused(part: bytes) -> None:
    with pytest.raises(BadInput, match="queue: must"):
        queue_of_segment(part)


def test_etcd_queue_name_with_a_slash_is_written_with_its_escape() -> None:
    assert check_dispatched_queue("orders/eu") == check_dispatched_queue("orders%2Feu") == "orders%2Feu"
    with pytest.raises(BadInput, match="must be a string"):
        check_dispatched_queue(5)


def test_dispatcher_transaction_with_long_keys_stays_within_the_request_size_of_etcd() -> None:
    """Names of the longest queue, client and message in every key."""
    keys = Keys("작" * 341)
    ledger = EtcdQueueState(keys.queue, "here", read_policy({}, "jobs"), 256)
    name = b"k" * 380
    for number in range(500):
        key = keys.inbox("a" * 400, f"{number:020}{'k' * 380}")
        ledger.inbox.add(InboxArrival(key, b"a" * 400, b"%020d" % number + name, number + 1, bytes(10_000)))
        ledger.removals.append(LineRemoval(2 * number, name, True))
    home = keys.home("c" * 400)
    kv: Any = MESSAGES["KeyValue"](key=home, value=b"h", create_revision=1, mod_revision=1, lease=1)
    ledger.register(home, kv)
    sizes, moved = [], 0
    for revision in range(40):
        batch = planner.plan(ledger, 1, 0, 0.0)
        if batch.is_empty:
            break
        sizes.append(batch.builder.request.ByteSize())
        moved += len(batch.moves)
        planner.apply(ledger, batch, [], revision)
    assert max(sizes) < 1_572_864
    assert (moved, len(ledger.removals)) == (500, 0)


@pytest.mark.parametrize("text", ["a", "a/b", "50%", "%2F", "ü/%"])
def test_etcd_key_keeps_a_slash_in_a_name_and_refuses_a_name_too_long(text: str) -> None:
    made = segment(text)
    assert b"/" not in made
    assert decode_segment(made) == text
    with pytest.raises(BadInput, match="key"):
        segment("x" * 500)
