"""Every fault of a pair that has a witness, with real servers and programs at both: at most one node takes work at any
time, what was confirmed is handed out once, and the history says why what happened did."""

import itertools
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.failover.traffic import Traffic, check_nothing_is_lost, check_one_at_a_time
from tests.support.pair import INTERVAL, NAMES, Pair, pair
from tests.support.server_process import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
KEPT = ["witness", "the peer has it: no takeover"]
TRUE_INTERVAL = 5.0
SERVICE_AGAIN = 20.0
"""Seconds, with the true interval; with shorter ones nobody measures."""


@contextmanager
def witnessed(folder: Path) -> Iterator[Pair]:
    with pair(folder, "--pair-witness", f"file:{folder / 'witness'}") as two:
        yield two


@contextmanager
def busy(two: Pair, again: float = SERVICE_AGAIN) -> Iterator[Traffic]:
    """Programs work at it; afterwards it is looked at whether all is well, and was so again in time."""
    with Traffic(two) as traffic:
        traffic.wait_for_more()
        yield traffic
        traffic.wait_for_more(at=two.wait_for_one())
    check_one_at_a_time(traffic)
    if INTERVAL >= TRUE_INTERVAL:
        assert traffic.longest_gap() <= again
    check_nothing_is_lost(two, traffic)


def test_takeover_with_a_witness_follows_a_kill_of_the_active_node(tmp_path: Path) -> None:
    with witnessed(tmp_path) as two, busy(two.begin()) as traffic:
        active = two.wait_for_one()
        standby = two.other(active)
        two.nodes[active].kill()
        traffic.wait_for_more(at=standby)
        found = two.evidence(standby, "took-over")
        assert found["1 heartbeats"].startswith("missed")
        assert found["3 connection"] == "no answer at the peer's TCP port"
        assert found["witness"] == "ours"
        two.nodes[active].start()


def test_takeover_with_a_witness_follows_a_freeze_and_the_woken_node_stands_down(tmp_path: Path) -> None:
    with witnessed(tmp_path) as two, busy(two.begin()) as traffic:
        active = two.wait_for_one()
        standby = two.other(active)
        two.signal(active, signal.SIGSTOP)
        traffic.wait_for_more(at=standby)
        assert two.evidence(standby, "took-over")["witness"] == "ours"
        two.signal(active, signal.SIGCONT)
        until(lambda: bool(two.history(active, "stood-down")))
        assert {"frozen", "term", "witness"} & two.evidence(active, "stood-down").keys()


def test_witness_prevents_a_takeover_while_the_link_is_cut_in_one_or_both_directions(tmp_path: Path) -> None:
    with witnessed(tmp_path) as two, busy(two.begin()) as traffic:
        for senders in (("standby",), ("active",), ("active", "standby")):
            active = two.wait_for_one()
            standby = two.other(active)
            names = {"active": active, "standby": standby}
            two.cable.cut(*(names[one] for one in senders))
            deaf = active if senders == ("standby",) else standby
            until(lambda name=deaf: two.status(name)["peer"]["silent"] or bool(two.stalls))
            if deaf == standby:
                until(lambda name=standby: KEPT in two.status(name)["evidence"] or bool(two.stalls))
            traffic.wait_for_more()
            two.cable.mend()
            until(lambda: all(not two.status(name)["peer"]["silent"] for name in NAMES))
        assert two.stalls or [len(two.history(name, "took-over")) for name in NAMES] == [1, 0]


@pytest.mark.slow
def test_heartbeat_loss_and_a_slow_link_with_a_witness_cause_no_takeover(tmp_path: Path) -> None:
    with witnessed(tmp_path) as two, busy(two.begin()) as traffic:
        for loss, delay in ((0.3, 0.0), (0.0, 2 * INTERVAL)):
            for way in two.cable.ways.values():
                way.loss, way.delay = loss, delay
            begun = two.cable.ways["a"].carried
            until(lambda before=begun: two.cable.ways["a"].carried > before + 6, 60 + 30 * INTERVAL)
            traffic.wait_for_more()
        two.cable.mend()
        assert two.stalls or [len(two.history(name, "took-over")) for name in NAMES] == [1, 0]


@pytest.mark.slow
def test_failover_with_a_witness_started_together_or_in_either_order_uses_each_term_once(tmp_path: Path) -> None:
    with witnessed(tmp_path) as two:
        for node in two.nodes.values():
            node.launch()
        for node in two.nodes.values():
            node.wait()
        with busy(two, again=2 * SERVICE_AGAIN) as traffic:
            for first in NAMES:
                for node in two.nodes.values():
                    node.kill()
                two.start(first)
                two.start(two.other(first))
                traffic.wait_for_more()
                two.wait_for_one()
        terms = sorted(line["term"] for name in NAMES for line in two.history(name, "took-over"))
        assert len(terms) >= 3
        assert all(before < after for before, after in itertools.pairwise(terms)), "no term is used twice"


@pytest.mark.slow
def test_switch_by_hand_under_load_with_a_witness_has_the_consent_of_the_active_node(tmp_path: Path) -> None:
    with witnessed(tmp_path) as two, busy(two.begin()) as traffic:
        for _ in range(2):
            active = two.wait_for_one()
            two.switch(two.other(active))
            traffic.wait_for_more(at=two.other(active))
            assert two.evidence(active, "handed-over")["order"]
        assert two.evidence("b", "took-over")["consent"].startswith("a consents to term")
