"""The machine is worth something only if it finds bugs: here they are planted, and each must be found."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.properties.machine import CONSUMERS, QueueMachine
from tests.support.stores import Place
from yirangmq.broker import changes
from yirangmq.core import transitions
from yirangmq.core.backoff import RandomFraction
from yirangmq.core.message import Envelope, Message
from yirangmq.core.policy import QueuePolicy, RetryPolicy
from yirangmq.core.ports import AddResult, Transaction
from yirangmq.core.states import UNFINISHED, State
from yirangmq.core.validation import line_of
from yirangmq.stores import memory
from yirangmq.stores.files.deduplication import DeduplicationKeys
from yirangmq.stores.files.overlay import Overlay
from yirangmq.stores.memory import MemoryState, MemoryStore, MemoryTransaction
from yirangmq.stores.sqlite.writes import StateChanges

Plant = Callable[[pytest.MonkeyPatch], None]

# The same examples at each run, so that a bug found once is found always; no shrinking, since nobody reads them.
LOOKING = settings(
    max_examples=1000,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)


def is_found(kind: str = "memory", place_of: type[Place] = Place) -> bool:
    machine = type("PlantedMachine", (QueueMachine,), {"kind": kind, "place_of": place_of})
    try:
        run_state_machine_as_test(machine, settings=LOOKING)
    except AssertionError:
        return True
    return False


def no_attempt_limit(patch: pytest.MonkeyPatch) -> None:
    """Failing messages are tried for ever."""
    nack = transitions.nack

    def endless(
        message: Message, policy: QueuePolicy, now: int, cause: transitions.Cause, place: int, chance: RandomFraction
    ) -> transitions.TransitionResult:
        retry = RetryPolicy(10**6, policy.retry.backoff, policy.retry.initial_ms, policy.retry.max_ms)
        rules = copy.copy(policy)
        object.__setattr__(rules, "retry", retry)
        return nack(message, rules, now, cause, place, chance)

    patch.setattr(transitions, "nack", endless)


def a_lease_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """Every lease of a message has the same id, so that an old holder can still ack."""
    lease = transitions.lease

    def unfenced(message: Message, now: int, until: int, consumer: str) -> Message:
        return lease(message, now, until, consumer)._replace(leases=1)

    patch.setattr(transitions, "lease", unfenced)


def rank_is_ignored(patch: pytest.MonkeyPatch) -> None:
    heads = MemoryTransaction.heads

    def by_place(self: MemoryTransaction, queue: str, limit: int, target: int = 0) -> list[tuple[Message, Envelope]]:
        return sorted(heads(self, queue, 10**6, target), key=lambda head: head[0].place)[:limit]

    patch.setattr(MemoryTransaction, "heads", by_place)


def a_lease_that_lapses_early(patch: pytest.MonkeyPatch) -> None:
    """By one millisecond."""
    due = MemoryTransaction.due
    patch.setattr(MemoryTransaction, "due", lambda self, now, limit: due(self, now + 1, limit))


def time_to_live_is_not_looked_at_when_a_delay_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transitions, "_is_expired", lambda message, now: False)


def a_returning_message_goes_to_the_front(patch: pytest.MonkeyPatch) -> None:
    release = transitions._release

    def in_front(message: Message, policy: QueuePolicy, now: int, place: int) -> Message:
        return release(message, policy, now, message.place)

    patch.setattr(transitions, "_release", in_front)


def keys_are_forgotten_at_once(patch: pytest.MonkeyPatch) -> None:
    known = MemoryTransaction._find_duplicate

    def by_id_alone(self: MemoryTransaction, envelope: Envelope, now: int) -> AddResult | None:
        return known(self, envelope._replace(dedup_key=None), now)

    patch.setattr(MemoryTransaction, "_find_duplicate", by_id_alone)


def a_repeated_nack_counts_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transitions, "nacked_before", lambda message, leases: False)


def a_failed_transaction_is_half_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("yirangmq.stores.memory.MemoryUndoLog.undo", lambda self: None)


def a_redriven_message_keeps_its_attempts(patch: pytest.MonkeyPatch) -> None:
    redrive = transitions.redrive

    def tired(message: Message, now: int, place: int) -> Message:
        return redrive(message, now, place)._replace(attempt=message.attempt)

    patch.setattr(transitions, "redrive", tired)


def _not_freed_after(state: State) -> Plant:
    """The next one of a group waits for ever when the one before it ends like this."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        left = changes._left
        patch.setattr(changes, "_left", lambda before, after: after.state is not state and left(before, after))

    plant.__name__ = f"a_group_is_not_freed_when_one_is_{state}"
    return plant


def a_group_is_not_held(patch: pytest.MonkeyPatch) -> None:
    """All of a group are in line at once."""
    patch.setattr(changes, "hold_group_followers", lambda transaction, new: None)


def a_group_loses_its_order_when_one_comes_back(patch: pytest.MonkeyPatch) -> None:
    """It goes behind the others, as it would without a group."""
    release = transitions._release

    def behind(message: Message, policy: QueuePolicy, now: int, place: int) -> Message:
        return release(message, policy, now, place)._replace(place=place)

    patch.setattr(transitions, "_release", behind)


def a_target_is_ignored(patch: pytest.MonkeyPatch) -> None:
    heads = MemoryTransaction.heads

    def anybodys(self: MemoryTransaction, queue: str, limit: int, target: int = 0) -> list[tuple[Message, Envelope]]:
        lines = [heads(self, queue, limit, line_of(consumer)) for consumer in CONSUMERS]
        return sorted({head[0].seq: head for line in lines for head in line}.values(), key=_turn)[:limit]

    def _turn(head: tuple[Message, Envelope]) -> tuple[int, int]:
        return head[0].rank, head[0].place

    patch.setattr(MemoryTransaction, "heads", anybodys)


def the_bytes_of_dead_letters_count(patch: pytest.MonkeyPatch) -> None:
    states = UNFINISHED | {State.DEAD}
    patch.setattr(memory, "_weight", lambda message: message.size if message.state in states else 0)


def a_header_weighs_nothing(patch: pytest.MonkeyPatch) -> None:
    fresh = transitions.fresh

    def light(envelope: Envelope, seq: int, now: int) -> Message:
        return fresh(envelope, seq, now)._replace(size=len(envelope.payload))

    patch.setattr(transitions, "fresh", light)


IN_MEMORY: list[Plant] = [
    no_attempt_limit,
    a_lease_without_a_fence,
    rank_is_ignored,
    a_lease_that_lapses_early,
    time_to_live_is_not_looked_at_when_a_delay_ends,
    a_returning_message_goes_to_the_front,
    keys_are_forgotten_at_once,
    a_repeated_nack_counts_again,
    a_failed_transaction_is_half_done,
    a_redriven_message_keeps_its_attempts,
    _not_freed_after(State.DONE),
    _not_freed_after(State.DEAD),
    _not_freed_after(State.DROPPED),
    a_group_is_not_held,
    a_group_loses_its_order_when_one_comes_back,
    a_target_is_ignored,
    the_bytes_of_dead_letters_count,
    a_header_weighs_nothing,
]


@pytest.mark.parametrize("plant", IN_MEMORY, ids=[plant.__name__ for plant in IN_MEMORY])
def test_planted_bug_in_memory_is_found_by_the_queue_machine(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert is_found()


def sqlite_forgets_a_counter(patch: pytest.MonkeyPatch) -> None:
    """A change that comes with a failure is not counted."""
    count = StateChanges.count_changes

    def forgetful(self: StateChanges, *kind: Any) -> None:
        *_, failed, _number = kind
        if not failed:
            count(self, *kind)

    patch.setattr(StateChanges, "count_changes", forgetful)


def sqlite_trusts_its_memory(patch: pytest.MonkeyPatch) -> None:
    """A process trusts what it remembers of a lease, also after another one has changed the message."""
    patch.setattr("yirangmq.stores.sqlite.store_file.StoreFile.refresh_cache", lambda self: None)


def sqlite_keeps_members(patch: pytest.MonkeyPatch) -> None:
    """Who is done with stays a member of the group."""
    patch.setattr(StateChanges, "_regroup", lambda self, changes: None)


def files_look_no_further(patch: pytest.MonkeyPatch) -> None:
    """Who is next in a group is looked for among those just touched only."""
    patch.setattr(Overlay, "_first_untouched", lambda self, queue, group: None)


def files_break_chains(patch: pytest.MonkeyPatch) -> None:
    """Those behind one that leaves a group are lost with it."""
    patch.setattr("yirangmq.stores.files.secondary_indexes._ListEdit._bind", lambda self, one, other: None)


def files_forget_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeduplicationKeys, "holder", lambda self, queue, key, now: None)


ON_DISK: list[tuple[str, Plant]] = [
    ("sqlite", sqlite_forgets_a_counter),
    ("sqlite", sqlite_trusts_its_memory),
    ("sqlite", sqlite_keeps_members),
    ("files", files_forget_keys),
    ("files", files_look_no_further),
    ("files", files_break_chains),
]


@pytest.mark.parametrize(("kind", "plant"), ON_DISK, ids=[plant.__name__ for _, plant in ON_DISK])
def test_planted_bug_in_a_store_on_disk_is_found_by_the_queue_machine(
    kind: str, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert is_found(kind)


class ForgetfulPlace(Place):
    """A disk that said yes too early: at a crash the last commit is gone."""

    def __init__(self, kind: str, folder: Path) -> None:
        super().__init__(kind, folder)
        self.saved: dict[str, Any] = {}

    def crash(self, unfinished: Callable[[Transaction], None]) -> None:
        super().crash(unfinished)
        for name, value in self.saved.items():
            setattr(self.state, name, value)


def test_planted_bug_that_loses_a_commit_in_a_crash_is_found_by_the_queue_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = MemoryStore.transaction
    places: list[ForgetfulPlace] = []

    class Watched(ForgetfulPlace):
        def __init__(self, kind: str, folder: Path) -> None:
            super().__init__(kind, folder)
            places[:] = [self]

    @contextlib.contextmanager
    def saving(self: MemoryStore, *, write: bool = True) -> Iterator[MemoryTransaction]:
        before = copied(self.state)
        with begin(self, write=write) as transaction:
            yield transaction
        if copied(self.state) != before:
            places[0].saved = before

    monkeypatch.setattr(MemoryStore, "transaction", saving)
    assert is_found(place_of=Watched)


def copied(state: MemoryState) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in vars(state).items() if isinstance(value, dict | list)}


def test_queue_machine_finds_nothing_without_a_planted_bug() -> None:
    """The other tests of this file could not fail if the machine complained about everything."""
    run_state_machine_as_test(QueueMachine, settings=settings(LOOKING, max_examples=20))
