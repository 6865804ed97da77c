"""Messages of one group: handed out one at a time, in the order in which they came, whatever becomes of each."""

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.queues import SECOND, dead_letters, exhaust, state, take, taken
from tests.support.stores import Place
from tests.support.wait import PATIENCE
from yirangmq.broker import export_import
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import BadInput
from yirangmq.core.states import State
from yirangmq.format.envelope import NewMessage
from yirangmq.testing import CountingIds, ManualClock, open_for_test


def members(count: int, group: str = "order-7", **more: object) -> list[NewMessage]:
    return [NewMessage(payload=n, group=group, **more) for n in range(count)]  # type: ignore[arg-type]


def ack_one(queues: Queues) -> str:
    delivery = take(queues)
    queues.ack(delivery.lease_id)
    return delivery.id


def test_group_has_only_one_message_leased_at_a_time(queues: Queues) -> None:
    queues.publish_many("mail", members(3))
    queues.publish("mail", "of no group")
    first, other = queues.lease("mail", 100)
    assert (first.id, first.header["groupId"], other.id) == ("m-1", "order-7", "m-4")
    assert taken(queues) == []
    assert [state(queues, f"m-{n}") for n in (1, 2, 3)] == [State.LEASED, State.HELD, State.HELD]
    assert (queues.counts("mail").held, queues.counts("mail").leased) == (2, 2)
    queues.ack(first.lease_id)
    assert taken(queues) == ["m-2"]


def test_group_messages_are_delivered_in_the_order_of_publishing_regardless_of_priority(queues: Queues) -> None:
    for priority in (9, None, 0, 5):
        queues.publish("mail", NewMessage(payload=1, group="g", priority=priority))
    queues.publish("mail", NewMessage(payload=1, priority=1))
    assert [ack_one(queues) for _ in range(5)] == ["m-5", "m-1", "m-2", "m-3", "m-4"]


def test_group_batch_leases_the_next_message_of_each_of_several_groups(queues: Queues) -> None:
    queues.publish_many("mail", [NewMessage(payload=n, group=f"g{n % 3}") for n in range(12)])
    seen: list[list[str]] = []
    while batch := queues.lease("mail", 100):
        seen.append([delivery.id for delivery in batch])
        queues.ack([delivery.lease_id for delivery in batch])
    assert seen == [[f"m-{n}" for n in range(at, at + 3)] for at in (1, 4, 7, 10)]


def test_groups_of_the_same_name_in_two_queues_are_independent(queues: Queues) -> None:
    for queue in ("mail", "post"):
        queues.publish_many(queue, members(2))
    assert (taken(queues, queue="mail"), taken(queues, queue="post")) == (["m-1"], ["m-3"])


def test_group_is_held_while_its_first_message_waits_for_a_retry(queues: Queues, clock: ManualClock) -> None:
    queues.publish_many("mail", [*members(2), *members(1, "other")])
    queues.nack(take(queues).lease_id, delay=5)
    assert taken(queues) == ["m-3"]
    clock.advance(5 * SECOND)
    [again] = queues.lease("mail", 100)
    assert (again.id, again.attempt) == ("m-1", 2)
    queues.ack(again.lease_id)
    assert taken(queues) == ["m-2"]


@pytest.mark.parametrize("requeue", ["back", "front"])
@pytest.mark.parametrize("how", ["nack at once", "nack and wait", "lapse", "release"])
def test_group_message_that_returns_is_still_the_first_of_its_group(
    queues: Queues, clock: ManualClock, how: str, requeue: str
) -> None:
    queues.set_policy("mail", {"requeue": requeue})
    queues.publish_many("mail", members(3))
    lease = take(queues).lease_id
    match how:
        case "lapse":
            clock.advance(30 * SECOND)
        case "release":
            queues.release(lease)
        case _:
            queues.nack(lease, delay=0 if how == "nack at once" else 1)
            clock.advance(SECOND)
    assert [ack_one(queues) for _ in range(3)] == ["m-1", "m-2", "m-3"]


@pytest.mark.parametrize("how", ["dead", "dropped", "parked", "out of attempts"])
def test_group_message_that_fails_finally_releases_the_next_message(
    queues: Queues, clock: ManualClock, how: str
) -> None:
    document = {"dlq": {"enabled": False, "whenDisabled": "park"}} if how == "parked" else {"retry": {"limit": 0}}
    queues.set_policy("mail", document)
    queues.publish_many("mail", members(3))
    if how == "dropped":
        assert queues.drop("mail", ["m-1"]) == [None]
    elif how == "out of attempts":
        take(queues)
        clock.advance(30 * SECOND)
    else:
        exhaust(queues)
    assert taken(queues) == ["m-2"]


def test_group_messages_dropped_from_the_middle_are_skipped(queues: Queues) -> None:
    queues.publish_many("mail", members(4))
    assert queues.drop("mail", ["m-2", "m-3"]) == [None, None]
    assert [ack_one(queues), ack_one(queues)] == ["m-1", "m-4"]


def test_group_appends_a_redriven_message_at_its_end(queues: Queues) -> None:
    queues.publish_many("mail", members(3))
    assert exhaust(queues).id == "m-1"
    dead_letters(queues).redrive("mail", all=True)
    assert state(queues) is State.HELD
    assert [ack_one(queues) for _ in range(3)] == ["m-2", "m-3", "m-1"]


def test_group_that_is_empty_delivers_a_redriven_message_at_once(queues: Queues) -> None:
    queues.publish_many("mail", members(2))
    for _ in range(2):
        exhaust(queues)
    dead_letters(queues).redrive("mail", all=True)
    assert [ack_one(queues), ack_one(queues)] == ["m-1", "m-2"]


def test_group_is_held_behind_a_delayed_message(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", NewMessage(payload=1, group="g", delay=5))
    queues.publish("mail", NewMessage(payload=2, group="g"))
    assert taken(queues) == []
    assert (state(queues, "m-1"), state(queues, "m-2")) == (State.DELAYED, State.HELD)
    clock.advance(5 * SECOND)
    assert [ack_one(queues), ack_one(queues)] == ["m-1", "m-2"]


def test_group_delay_of_a_held_message_counts_from_publishing(queues: Queues, clock: ManualClock) -> None:
    queues.publish_many("mail", [NewMessage(payload=n, group="g", delay=delay) for n, delay in enumerate([0, 5, 9])])
    first = take(queues)
    clock.advance(4 * SECOND)
    queues.ack(first.lease_id)
    assert (taken(queues), state(queues, "m-2")) == ([], State.DELAYED)
    clock.advance(SECOND)
    second = take(queues)
    clock.advance(5 * SECOND)
    queues.ack(second.lease_id)
    assert taken(queues) == ["m-3"]


@pytest.mark.parametrize("expire", ["drop", "dead"])
def test_group_members_expire_while_held_and_an_expired_member_releases_the_next(
    queues: Queues, clock: ManualClock, expire: str
) -> None:
    """The first one's time to live ends: the next one's turn. One that is held ages as well."""
    queues.set_policy("mail", {"onExpire": expire})
    queues.publish_many("mail", [NewMessage(payload=n, group="g", ttl=ttl) for n, ttl in enumerate([2, 5, 1, None])])
    clock.advance(SECOND)
    assert queues.counts("mail").held == 3
    queues.sweep()
    assert queues.counts("mail").held == 2
    clock.advance(SECOND)
    assert taken(queues, 1) == ["m-2"]
    over = State.DROPPED if expire == "drop" else State.DEAD
    assert [state(queues, f"m-{n}") for n in (1, 2, 3, 4)] == [over, State.LEASED, over, State.HELD]


def test_group_whose_members_expire_together_delivers_the_next_message(queues: Queues, clock: ManualClock) -> None:
    queues.publish_many("mail", members(5, ttl=1))
    queues.publish("mail", NewMessage(payload=1, group="order-7"))
    clock.advance(SECOND)
    assert taken(queues) == ["m-6"]
    assert (queues.counts("mail").held, queues.counts("mail").dropped) == (0, 5)


def test_group_is_not_joined_by_a_duplicate_message(queues: Queues) -> None:
    queues.publish("mail", NewMessage(payload=1, id="x"))
    again = queues.publish_many("mail", [NewMessage(payload=2, id="x", group="g"), NewMessage(payload=3, group="g")])
    assert [one.duplicate for one in again] == [True, False]
    assert sorted(taken(queues)) == sorted(["x", again[1].id])


def test_group_is_gone_after_its_queue_is_deleted(queues: Queues) -> None:
    queues.publish_many("mail", members(2))
    take(queues)
    queues.delete_queue("mail")
    queues.publish_many("mail", members(2))
    assert taken(queues) == ["m-3"]


@pytest.mark.parametrize("group", ["", "x" * 256, 7])
def test_group_id_that_is_not_a_short_text_is_rejected(queues: Queues, group: object) -> None:
    with pytest.raises(BadInput) as caught:
        queues.publish("mail", NewMessage(payload=1, group=group))  # type: ignore[arg-type]
    assert caught.value.field == "groupId"
    assert queues.counts("mail").published == 0


@pytest.mark.parametrize("kind", ["memory", "sqlite", "files"])
def test_group_order_survives_export_and_import(tmp_path: Path, kind: str) -> None:
    clock = ManualClock()
    places = [Place(one, tmp_path / one) for one in (kind, "sqlite" if kind == "files" else "files")]
    for place in places:
        (tmp_path / place.kind).mkdir()
    here, there = [open_for_test(store=place.open(), clock=clock, ids=CountingIds(place.kind)) for place in places]
    here.publish_many(
        "mail", [NewMessage(payload=n, group=f"g{n % 2}", target="anna" if n == 2 else None) for n in range(6)]
    )
    [first, _] = here.lease("mail", 9)
    here.nack(first.lease_id, delay=5)
    lines: list[bytes] = []
    export_import.export(here, lines.append)
    export_import.load(there, lines)
    assert there.counts("mail").held == 4
    _check_same_order(here, there, clock)
    for place in places:
        place.close()


def _check_same_order(here: Queues, there: Queues, clock: ManualClock) -> None:
    clock.advance(60 * SECOND)
    order = [_drained(queues) for queues in (here, there)]
    assert order[1] == order[0]
    for group in (0, 1):
        assert [n for n in order[1] if n % 2 == group] == [n for n in range(6) if n % 2 == group]


def _drained(queues: Queues) -> list[int]:
    found = []
    while batch := queues.lease("mail", 1, consumer="anna"):
        found += [delivery.value() for delivery in batch]
        queues.ack([delivery.lease_id for delivery in batch])
    return found


class Watcher:
    """Sees who is at work on which group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self.seen: dict[str, list[int]] = {}
        self.clashes: list[str] = []

    def begin(self, group: str, number: int) -> None:
        with self._lock:
            if group in self._busy:
                self.clashes.append(f"{group} {number}")
            self._busy.add(group)
            self.seen.setdefault(group, []).append(number)

    def end(self, group: str) -> None:
        with self._lock:
            self._busy.discard(group)

    @property
    def count(self) -> int:
        with self._lock:
            return sum(map(len, self.seen.values()))


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_group_never_has_two_messages_leased_by_two_concurrent_consumers(tmp_path: Path, kind: str) -> None:
    """Each with an opening of its own, at the same time, giving some back."""
    place, clock, watcher = Place(kind, tmp_path), ManualClock(), Watcher()
    queues = [open_for_test(store=place.open(), clock=clock, ids=CountingIds(f"c{n}-")) for n in range(2)]
    queues[0].publish_many("mail", [NewMessage(payload=n, group=f"g{n % 4}") for n in range(80)])

    def work(mine: Queues) -> None:
        while watcher.count < 80:
            _work_once(mine, watcher)

    threads = [threading.Thread(target=work, args=(one,)) for one in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watcher.clashes == []
    assert watcher.seen == {f"g{k}": list(range(k, 80, 4)) for k in range(4)}
    assert list(queues[0].check()) == []
    place.close()


def _work_once(queues: Queues, watcher: Watcher) -> None:
    for delivery in queues.lease("mail", 3):
        if delivery.attempt == 1 and delivery.value() % 5 == 0:
            queues.nack(delivery.lease_id, delay=0)
            continue
        group = delivery.header["groupId"]
        watcher.begin(group, delivery.value())
        watcher.end(group)
        queues.ack(delivery.lease_id)


def test_group_ack_wakes_a_waiting_consumer_with_the_next_message(queues: Queues) -> None:
    """Whoever waits for the queue is woken by the ack that frees the next one."""
    queues.publish_many("mail", members(2))
    first = take(queues)
    got: list[str] = []
    waiting = threading.Thread(target=lambda: got.extend(_ids(queues.lease("mail", wait=PATIENCE))))
    waiting.start()
    queues.ack(first.lease_id)
    waiting.join()
    assert got == ["m-2"]


def _ids(deliveries: Iterable[object]) -> list[str]:
    return [delivery.id for delivery in deliveries]  # type: ignore[attr-defined]
