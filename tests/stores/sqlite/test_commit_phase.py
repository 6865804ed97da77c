"""Phases of the commits of a server's store: the table, and what SQLite and the redo log are in each phase."""

import errno
import os
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.support.sqlite import OrderedIds, after_a_kill, ids, plain, redo_of, served
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import QueueError
from yirangmq.fsio.disk import Disk
from yirangmq.stores.sqlite.commit_phase import HAS_TRANSACTION, MEANING, TRANSITIONS, CommitEvent, Phase
from yirangmq.stores.sqlite.redo_committer import RedoCommitter
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.testing import open_for_test

ROLL_BACKS = (CommitEvent.ROLL_BACK, CommitEvent.ROLL_BACK_IN_DOUBT)
ROLLED_BACK = (Phase.BEHIND, Phase.IN_DOUBT)


@pytest.mark.parametrize(("phase", "event"), [*product(Phase, CommitEvent)])
def test_commit_phase_moves_only_by_the_pairs_of_the_table(home: Path, phase: Phase, event: CommitEvent) -> None:
    """Walks every pair on a committer; what must not happen is an error, and what may happen keeps the rules."""
    store = served(home)
    committer = redo_of(store)
    committer.phase = phase
    after = TRANSITIONS.get((phase, event))
    if after is None:
        with pytest.raises(KeyError):
            committer._move(event)
        assert committer.phase is phase
    else:
        committer._move(event)
        assert committer.phase is after
        if event in ROLL_BACKS:
            assert after in ROLLED_BACK
        if event in (CommitEvent.VOID, CommitEvent.EMPTY, CommitEvent.RESET):
            assert after is Phase.CLOSED
        if event in (CommitEvent.LOG, CommitEvent.REPLAY, CommitEvent.START, CommitEvent.JOIN):
            assert after in HAS_TRANSACTION
    committer.phase = Phase.CLOSED
    store.close()


def test_commit_phase_every_phase_is_described_reached_and_left() -> None:
    assert set(MEANING) == set(Phase)
    reached = {Phase.CLOSED}
    while more := {after for (phase, _), after in TRANSITIONS.items() if phase in reached} - reached:
        reached |= more
    assert reached == set(Phase)
    ends = {Phase.CLOSED}
    while more := {phase for (phase, _), after in TRANSITIONS.items() if after in ends} - ends:
        ends |= more
    assert ends == set(Phase)
    assert {event for _, event in TRANSITIONS} == set(CommitEvent)
    assert {phase for phase, event in TRANSITIONS if event in ROLL_BACKS} == set(Phase) - {Phase.COMMITTING}


class BrokenDisk(Disk):
    """Fails writes to the redo log while ``failures`` last; each failure is of one call."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0

    def write_at(self, fd: int, data: bytes, at: int) -> None:
        self._fail()
        super().write_at(fd, data, at)

    def fdatasync(self, fd: int) -> None:
        self._fail()
        super().fdatasync(fd)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class Walk:
    """A store of a server that is used at random, its disk failing at times."""

    def __init__(self, home: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = BrokenDisk()
        self.store: SqliteStore = served(home, durability="full", redo_bytes=3072, disk=self.disk)
        self.committer: RedoCommitter = redo_of(self.store)
        self.queues: Queues = open_for_test(store=self.store, ids=OrderedIds())
        self.sent: list[str] = []
        self.seen: set[tuple[Phase, Phase]] = set()

    def publish(self) -> None:
        self.sent.append(self.queues.publish("q", b"x" * self.chance.randrange(300)).id)

    def publish_many(self) -> None:
        self.sent += [one.id for one in self.queues.publish_many("q", [b"y"] * 100)]

    def publish_to_a_broken_disk(self) -> None:
        self.disk.failures = self.chance.choice([1, 2])
        try:
            self.publish()
        except QueueError:
            pass
        finally:
            self.disk.failures = 0

    def fail(self) -> None:
        def work() -> None:
            with self.store.transaction(write=self.chance.random() < 0.5) as transaction:
                transaction.counts("q")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()

    def read(self) -> None:
        assert self.queues.counts("q").ready == len(self.sent)

    def commit(self) -> None:
        self.committer.commit_in_background()

    def run_background(self) -> None:
        self.committer.run_background_commit()

    def step(self) -> None:
        acts: list[Callable[[], None]] = [
            *[self.publish] * 8,
            self.publish_many,
            *[self.publish_to_a_broken_disk] * 2,
            self.fail,
            *[self.read] * 3,
            self.commit,
            self.run_background,
        ]
        before = self.committer.phase
        self.chance.choice(acts)()
        self.seen.add((before, self.committer.phase))
        self.check()

    def check(self) -> None:
        """The phase says what SQLite and the redo log are."""
        committer, phase = self.committer, self.committer.phase
        assert (committer.background is not None) == (phase is Phase.COMMITTING)
        if phase is not Phase.COMMITTING:
            assert self.store.file.db.in_transaction == (phase in HAS_TRANSACTION)
        if phase is Phase.CLOSED:
            assert committer.log.count == 0
        assert committer.log.is_in_doubt == (phase in (Phase.IN_DOUBT, Phase.IN_DOUBT_OPEN))
        assert (committer.recorder.join_background_commit is not None) == (phase is Phase.COMMITTING)


def test_commit_phase_agrees_with_sqlite_and_the_redo_log_in_random_walks(tmp_path: Path) -> None:
    seen: set[tuple[Phase, Phase]] = set()
    for seed in range(6):
        home = tmp_path / str(seed)
        home.mkdir()
        walk = Walk(home, seed)
        for number in range(200):
            walk.step()
            if number % 50 == 49:
                left = plain(after_a_kill(home, tmp_path / f"{seed}-{number}"))
                assert ids(left) == walk.sent
                left.close()
        seen |= walk.seen
        assert list(walk.queues.check(repair=False)) == []
        walk.queues.close()
    assert {phase for pair in seen for phase in pair} == set(Phase)
