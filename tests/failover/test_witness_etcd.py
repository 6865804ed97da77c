"""The witness that is a key in a real etcd."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.failover.traffic import Traffic, check_nothing_is_lost, check_one_at_a_time
from tests.support.clock import MillisecondClock
from tests.support.credentials import TOKEN
from tests.support.etcd import EtcdCluster
from tests.support.pair import pair
from tests.support.server_process import until
from yirangmq.core.errors import BadInput
from yirangmq.core.failover import FailoverTiming
from yirangmq.core.failover_witness import Witness, WitnessRequest, WitnessView
from yirangmq.failover.witness_etcd import EtcdWitness

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
PACE = FailoverTiming(interval=20_000, misses=3, has_witness=True)
TIMEOUT = PACE.timeout
Exchange = Callable[[WitnessRequest, int], tuple[Witness, int, int]]


@pytest.fixture
def clock() -> MillisecondClock:
    return MillisecondClock()


@pytest.fixture
def node(
    etcd: EtcdCluster, clock: MillisecondClock, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Exchange]]:
    """One node's view, in a thread of its own as in a server."""
    made: list[tuple[EtcdWitness, ThreadPoolExecutor]] = []

    def make(name: str) -> Exchange:
        url = f"etcd://{','.join(etcd.endpoints)}/{request.node.name}"
        key, thread = EtcdWitness(url, WitnessView(name, TIMEOUT), PACE, clock), ThreadPoolExecutor(1)
        made.append((key, thread))
        return lambda wish, term: thread.submit(key.exchange, wish, term).result(60)

    yield make
    for key, thread in made:
        thread.submit(key.close).result(60)
        thread.shutdown()


def test_witness_key_is_held_by_one_node_until_it_is_not_renewed(
    node: Callable[[str], Exchange], clock: MillisecondClock
) -> None:
    a, b = node("a"), node("b")
    assert b(WitnessRequest.WATCH, 0)[0] is Witness.THEIRS, "none is not free before the time-out is over"
    clock.ms = TIMEOUT + 1
    assert a(WitnessRequest.HOLD, 1)[0] is Witness.THEIRS, "each counts for itself"
    assert b(WitnessRequest.HOLD, 1) == (Witness.OURS, TIMEOUT + 1, 0)
    clock.ms = 2 * TIMEOUT
    assert a(WitnessRequest.HOLD, 2) == (Witness.THEIRS, 2 * TIMEOUT, 1)
    assert b(WitnessRequest.HOLD, 1)[0] is Witness.OURS
    clock.ms = 3 * TIMEOUT - 1
    assert a(WitnessRequest.HOLD, 2)[0] is Witness.THEIRS, "it was renewed since"
    clock.ms = 4 * TIMEOUT
    assert a(WitnessRequest.HOLD, 2)[0] is Witness.OURS
    assert b(WitnessRequest.HOLD, 1) == (Witness.THEIRS, 4 * TIMEOUT, 2)
    assert a(WitnessRequest.RELEASE, 2)[0] is Witness.FREE
    assert b(WitnessRequest.HOLD, 3)[0] is Witness.OURS, "given back is free at once"


def test_witness_key_taken_by_two_nodes_at_the_same_moment_goes_to_one_of_them(
    node: Callable[[str], Exchange], clock: MillisecondClock
) -> None:
    nodes = [node(name) for name in ("a", "b")]
    for round in range(5):
        for one in nodes:
            one(WitnessRequest.WATCH, 0)
        clock.ms += 2 * TIMEOUT
        with ThreadPoolExecutor(2) as threads:
            found = [one.result()[0] for one in [threads.submit(one, WitnessRequest.HOLD, round) for one in nodes]]
        assert found.count(Witness.OURS) == 1, found
        for one in nodes:
            one(WitnessRequest.RELEASE, round)


def test_witness_key_that_vanishes_is_free_only_after_the_timeout_and_keeps_its_term(
    etcd: EtcdCluster, node: Callable[[str], Exchange], clock: MillisecondClock, request: pytest.FixtureRequest
) -> None:
    a, b = node("a"), node("b")
    a(WitnessRequest.WATCH, 0)
    clock.ms = TIMEOUT + 1
    assert a(WitnessRequest.HOLD, 7)[0] is Witness.OURS
    assert b"lease" in etcd.ctl("lease", "list")
    etcd.ctl("del", f"/yirangmq/pair/{request.node.name}/holder")
    assert b(WitnessRequest.HOLD, 1) == (Witness.THEIRS, TIMEOUT + 1, 7)
    clock.ms = 2 * TIMEOUT + 2
    assert b(WitnessRequest.HOLD, 8)[0] is Witness.OURS


def test_witness_in_an_unreachable_etcd_counts_as_away(clock: MillisecondClock) -> None:
    key = EtcdWitness("etcd://127.0.0.1:1/x", WitnessView("a", TIMEOUT), FailoverTiming(interval=100), clock)
    try:
        assert key.exchange(WitnessRequest.HOLD, 1) == (Witness.UNREACHABLE, 0, 0)
    finally:
        key.close()


def test_witness_address_that_is_invalid_is_refused() -> None:
    with pytest.raises(BadInput, match="pair_witness: 'nonsense' is not one of"):
        EtcdWitness("etcd://h:1/x?nonsense=1", WitnessView("a", 1), PACE, MillisecondClock())


def test_witness_in_etcd_without_the_extra_says_what_to_install(tmp_path: Path) -> None:
    """grpc is not to be found: as after an install without it."""
    (tmp_path / "grpc").mkdir()
    (tmp_path / "grpc" / "__init__.py").write_text("raise ImportError('no grpc')\n")
    words = ["serve", "--data", str(tmp_path / "d"), "--node", "a", "--pair-peer", "127.0.0.1:9", "--pair-key", TOKEN]
    words += ["--pair-listen", "127.0.0.1:0", "--pair-witness", "etcd://127.0.0.1:2379/x"]
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from yirangmq.cli.main import run; sys.exit(run())"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 8, done
    assert "yirangmq[etcd]" in done.stderr


def test_witness_in_etcd_keeps_one_node_active_and_loses_nothing_through_cut_kill_and_freeze(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    """Cut off from each other one works; killed, the other one takes over; and while the two hear each other they need
    no witness."""
    with pair(tmp_path, "--pair-witness", f"etcd://{','.join(etcd.endpoints)}/gateway") as two:
        two.begin()
        with Traffic(two) as traffic:
            traffic.wait_for_more()
            active = two.wait_for_one()
            standby = two.other(active)
            two.cable.cut()
            kept = ["witness", "the peer has it: no takeover"]
            until(lambda: kept in two.status(standby)["evidence"] or bool(two.stalls))
            two.cable.mend()
            active = two.wait_for_one()
            standby = two.other(active)
            two.nodes[active].kill()
            traffic.wait_for_more(at=standby)
            assert two.evidence(standby, "took-over")["witness"] == "ours"
            two.nodes[active].start()
            two.wait_for_one()
            etcd.members[0].freeze()
            try:
                traffic.wait_for_more(30)
            finally:
                etcd.members[0].wake()
            traffic.wait_for_more(at=two.wait_for_one())
        check_one_at_a_time(traffic)
        check_nothing_is_lost(two, traffic)
