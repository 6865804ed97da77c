"""Store time: leases, delays and windows go by it, whatever becomes of the wall clock (docs/guarantees.md, Clocks)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.stores import KINDS, Place
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.broker.export_import import export, load
from yirangmq.broker.queues import Queues
from yirangmq.broker.store_time import MAX_OFF_MS, StoreTimeRecord, read_record, resume, resumed
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.core.errors import LeaseExpired
from yirangmq.format.envelope import NewMessage, iso
from yirangmq.testing import START_MS, ManualClock, open_for_test

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
JUMPS = pytest.mark.parametrize("by", [HOUR_MS, -HOUR_MS], ids=["forward", "back"])


class Machine:
    """Its two clocks, in milliseconds: the time since boot, and the wall clock. ``processes`` open one store on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
        self._patch = monkeypatch
        self._place = place
        self.boot_ms = 5_000
        self.wall_ms = START_MS
        self.reboot(0)

    def advance(self, milliseconds: int) -> None:
        self.boot_ms += milliseconds
        self.wall_ms += milliseconds

    def reboot(self, off_ms: int, wall_off_by: int = 0) -> None:
        """Off for so long; then the wall clock is wrong by so much."""
        self.wall_ms += off_ms + wall_off_by
        self.boot_ms = 1_000
        self._boots = getattr(self, "_boots", 0) + 1
        self._patch.setattr("yirangmq.broker.store_time.boot_id", lambda: f"boot-{self._boots}")

    @contextmanager
    def process(self) -> Iterator[Queues]:
        clock = SystemClock(lambda: self.boot_ms * 1_000_000, lambda: self.wall_ms * 1_000_000)
        store = self._place.open()
        queues = Queues(store, clock, TimeOrderedIds(clock.now_ms), "me")
        resume(queues.context.store_time, store)
        with queues:
            yield queues


@pytest.fixture(params=[kind for kind in KINDS if kind != "memory"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch, Place(request.param, tmp_path))


@JUMPS
def test_store_time_of_a_running_process_does_not_follow_the_wall_clock(machine: Machine, by: int) -> None:
    with machine.process() as queues:
        queues.publish("mail", 1)
        queues.publish("mail", NewMessage(payload=2, delay=60))
        [held] = queues.lease("mail", lease_seconds=30)
        machine.wall_ms += by
        machine.advance(29_999)
        assert (queues.sweep(), queues.counts("mail").leased) == (0, 1)
        queues.extend(held.lease_id, 20)
        machine.advance(20_000)
        with pytest.raises(LeaseExpired):
            queues.ack(held.lease_id)
        [again] = queues.lease("mail")
        assert (again.id, again.attempt, queues.counts("mail").delayed) == (held.id, 2, 1)
        machine.advance(10_001)
        assert len(queues.lease("mail")) == 1


@JUMPS
def test_store_time_is_that_of_all_processes_of_one_boot(machine: Machine, by: int) -> None:
    """One opened the store before the wall clock was set, the other after."""
    with machine.process() as first:
        first.publish("mail", 1)
        [held] = first.lease("mail", lease_seconds=30)
        machine.wall_ms += by
        machine.advance(2_000)
        with machine.process() as second:
            assert second.now_ms() == first.now_ms()
            assert (second.sweep(), second.lease("mail")) == (0, [])
            second.publish("other", NewMessage(payload=2, delay=10))
        machine.advance(10_000)
        assert len(first.lease("other")) == 1
        first.ack(held.lease_id)


@JUMPS
def test_store_time_goes_on_in_the_next_process_of_one_boot(machine: Machine, by: int) -> None:
    with machine.process() as queues:
        queues.publish("mail", NewMessage(payload=1, delay=60))
    machine.wall_ms += by
    machine.advance(59_000)
    with machine.process() as queues:
        assert queues.lease("mail") == []
        machine.advance(1_000)
        assert len(queues.lease("mail")) == 1


def test_store_time_after_a_boot_counts_the_time_the_machine_was_off(machine: Machine) -> None:
    with machine.process() as queues:
        queues.publish("mail", NewMessage(payload=1, delay=3600))
    machine.reboot(HOUR_MS - 1_000)
    with machine.process() as queues:
        assert queues.lease("mail") == []
        machine.advance(1_000)
        assert len(queues.lease("mail")) == 1


def test_store_time_after_a_boot_with_the_wall_clock_in_the_past_goes_on_from_where_it_was(machine: Machine) -> None:
    """Late by the time the machine was off and by the age of the record, not by the hour."""
    with machine.process() as queues:
        queues.publish("mail", NewMessage(payload=1, delay=30))
        before = queues.now_ms()
    machine.reboot(600_000, wall_off_by=-HOUR_MS)
    with machine.process() as queues:
        assert queues.now_ms() == before
        assert queues.lease("mail") == []
        machine.advance(30_000)
        assert len(queues.lease("mail")) == 1


def test_store_time_after_a_boot_with_the_wall_clock_in_the_future_is_early_once(machine: Machine) -> None:
    """By as much as the clock was ahead. When it is set right nothing waits longer, and the next boot is as any."""
    with machine.process() as queues:
        queues.publish("mail", NewMessage(payload=1, delay=1_800))
    machine.reboot(0, wall_off_by=HOUR_MS)
    with machine.process() as queues:
        queues.ack(queues.lease("mail")[0].lease_id)
        queues.publish("mail", NewMessage(payload=2, delay=60))
        machine.wall_ms -= HOUR_MS
        machine.advance(61_000)
        queues.ack(queues.lease("mail")[0].lease_id)
        queues.publish("mail", NewMessage(payload=3, delay=600))
        machine.advance(61_000)
        queues.publish("other", 1)
    machine.reboot(500_000)
    with machine.process() as queues:
        assert queues.lease("mail") == []
        machine.advance(39_000)
        assert len(queues.lease("mail")) == 1


@pytest.mark.parametrize("wall_off_by", [MAX_OFF_MS + DAY_MS, -50 * 365 * DAY_MS], ids=["2027", "1976"])
def test_store_time_ignores_a_wall_clock_that_is_far_off(machine: Machine, wall_off_by: int) -> None:
    """What would be lost for good is kept: a dead letter stays for its retention, a message for its time to live."""
    with machine.process() as queues:
        queues.publish("mail", NewMessage(payload=1, ttl=60))
        queues.publish("dead", 1)
        queues.nack(queues.lease("dead")[0].lease_id, "REJECTED")
    machine.reboot(1_000, wall_off_by=wall_off_by)
    with machine.process() as queues:
        queues.sweep()
        assert (queues.counts("mail").ready, queues.counts("dead").dead) == (1, 1)


def test_store_time_of_a_device_that_boots_in_1970_and_is_then_set(machine: Machine) -> None:
    machine.wall_ms = 30_000
    with machine.process() as queues:
        queues.publish("mail", NewMessage(payload=1, delay=10))
        machine.wall_ms += START_MS
        machine.advance(9_000)
        assert queues.lease("mail") == []
        machine.advance(1_000)
        [delivery] = queues.lease("mail", lease_seconds=30)
        assert delivery.lease_until == (machine.wall_ms + 30_000) / 1000
        queues.publish("new", 1)
        [new] = queues.peek("new")
        assert new.envelope is not None
        assert new.row()["changedAt"] == iso(machine.wall_ms)
        [taken] = queues.lease("new")
        assert taken.header["timestamp"] == iso(machine.wall_ms)


def test_store_time_of_an_unused_store_takes_the_wall_clock_once_it_is_set(machine: Machine) -> None:
    """Before the first message there is nothing that could be harmed: from then on the two are one."""
    machine.wall_ms = 30_000
    with machine.process() as queues:
        queues.lease("mail")
        machine.wall_ms = START_MS
        machine.advance(61_000)
        queues.lease("mail")
        assert (queues.now_ms(), queues.ahead_ms()) == (machine.wall_ms, 0)


def test_store_time_record_that_cannot_be_read_is_replaced_by_the_wall_clock(machine: Machine) -> None:
    with machine.process() as queues:
        queues.publish("mail", 1)
        queues.run(lambda transaction: transaction.set_note("clock", "{}"))
    with machine.process() as queues:
        assert queues.now_ms() == machine.wall_ms


def test_store_time_record_costs_no_commit_of_its_own(machine: Machine) -> None:
    """It joins one that is made anyway, once a minute."""
    with machine.process() as queues:
        assert queues.read(read_record) is None
        queues.publish("mail", 1)
        first = queues.read(read_record)
        machine.advance(59_999)
        queues.publish("mail", 1)
        assert queues.read(read_record) == first
        machine.advance(1)
        queues.publish("mail", 1)
        last = queues.read(read_record)
        assert first is not None
        assert last == first._replace(store_ms=first.store_ms + 60_000, wall_ms=first.wall_ms + 60_000)


def test_store_time_of_a_machine_whose_time_since_boot_went_back_is_that_of_another_boot() -> None:
    """A virtual machine that was put back to an earlier state keeps the name of its boot."""
    record = StoreTimeRecord("b", 100, 5_000, 6_000)
    assert resumed(record, "b", 4_900, 9_000) == 100
    assert resumed(record, "b", 4_899, 6_500) == 5_000 + 500 - 4_899
    assert resumed(record, "", 4_900, 6_500) == 5_000 + 500 - 4_900


@JUMPS
def test_store_time_is_shown_on_the_wall_clock_and_exported_on_it(by: int) -> None:
    clock, other = ManualClock(), ManualClock()
    with open_for_test(clock=clock) as queues, open_for_test(clock=other) as there:
        queues.publish("mail", NewMessage(payload=1, delay=60))
        queues.publish("dead", 1)
        queues.nack(queues.lease("dead")[0].lease_id, "REJECTED")
        clock.set_wall(by)
        [delayed], [dead] = queues.peek("mail", state="delayed"), queues.peek("dead", state="dead")
        assert delayed.row()["dueAt"] == iso(START_MS + 60_000 + by)
        assert dead.failure is not None
        assert dead.failure.failed_at == dead.message.changed_at == clock.wall_ms()
        on_wall, on_store = iso(clock.wall_ms()), iso(clock.now_ms())
        letters = DeadLetters(queues)
        assert [look.failure for look in letters.list("dead", f"failedAt>={on_wall} and failedAt<={on_wall}")] == [
            dead.failure
        ]
        assert list(letters.list("dead", f"failedAt>={on_store} and failedAt<={on_store}")) == []
        lines: list[bytes] = []
        export(queues, lines.append)
        other.advance(HOUR_MS)
        other.set_wall(by - HOUR_MS)
        load(there, lines)
        assert there.peek("mail", state="delayed")[0].row()["dueAt"] == delayed.row()["dueAt"]
        other.advance(59_999)
        assert there.lease("mail") == []
        other.advance(1)
        assert len(there.lease("mail")) == 1


def test_timestamp_given_by_a_producer_is_kept_when_the_wall_clock_is_set() -> None:
    clock = ManualClock()
    clock.set_wall(HOUR_MS)
    with open_for_test(clock=clock) as queues:
        given = "2020-02-02T02:02:02+02:00"
        queues.publish_many(
            "mail",
            [
                NewMessage(payload=1, timestamp=given),
                NewMessage(payload=2, attributes={"timestamp": "mine", "priority": 3}),
                b"bare",
            ],
        )
        found = {delivery.value(): delivery.header for delivery in queues.lease("mail", 3)}
        assert found[1]["timestamp"] == given
        assert found[2]["timestamp"] == found[b"bare"]["timestamp"] == iso(clock.wall_ms())
        assert found[2]["attributes"] == {"timestamp": "mine", "priority": 3}


def test_ids_keep_their_order_when_the_wall_clock_is_set_back() -> None:
    boot, wall = [1_000_000_000], [START_MS * 1_000_000]
    clock = SystemClock(lambda: boot[0], lambda: wall[0])
    ids = TimeOrderedIds(clock.now_ms)
    drawn = []
    for step in range(20):
        drawn += ids.new(3)
        boot[0] += 1_000_000
        wall[0] -= 60_000_000_000 * step
    assert drawn == sorted(drawn)
    assert len(set(drawn)) == len(drawn)
