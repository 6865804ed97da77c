"""Faults of a pair, with real servers: killed, frozen, cut off, switched by hand; what clients see of it."""

import itertools
import json
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.failover.traffic import Traffic, check_nothing_is_lost
from tests.support.pair import INTERVAL, NAMES, Pair, pair
from tests.support.server_process import until
from tests.support.wait import PATIENCE
from yirangmq import NewMessage, QueueError
from yirangmq.client.connect import connect
from yirangmq.core.errors import Unavailable

pytestmark = pytest.mark.process


def test_takeover_of_a_killed_active_node_makes_it_standby_when_it_comes_back(tmp_path: Path) -> None:
    with pair(tmp_path) as two, connect(two.begin().addresses) as client:
        client.publish("work", NewMessage(payload=b"before", id="before"))
        two.nodes["a"].kill()
        client.publish("work", NewMessage(payload=b"after", id="after"))  # waits for the other node by itself
        assert two.works("b")
        [taken] = client.lease("work")
        assert taken.id == "after"
        found = two.evidence("b", "took-over")
        assert found["1 heartbeats"].startswith("missed 3")
        assert found["2 last status"] == "RUNNING, ACTIVE in term 1"
        assert found["3 connection"] == "no answer at the peer's TCP port"
        two.nodes["a"].start()
        until(lambda: (two.status("a")["peer"] or {}).get("role") == "ACTIVE")
        back = two.status("a")
        assert (back["role"], back["works"], back["term"]) == ("STANDBY", False, 2)
        assert back["backlog"] == {"work": 1}, "what was confirmed is still on its node's disk, and told"


def test_takeover_of_a_frozen_active_node_makes_it_stand_down_when_it_wakes(tmp_path: Path) -> None:
    with pair(tmp_path) as two:
        two.begin()
        frozen = two.nodes["a"]
        assert frozen.process is not None
        frozen.process.send_signal(signal.SIGSTOP)
        with connect(two.addresses, timeout=1) as client:
            client.publish("work", NewMessage(payload=b"1", id="1"))
        assert two.works("b")
        frozen.process.send_signal(signal.SIGCONT)
        with connect(frozen.address, retries=0) as client, pytest.raises(Unavailable, match="standby"):
            client.publish("work", NewMessage(payload=b"2", id="2"))
        two.wait_for("b")
        assert "did not run for" in two.evidence("a", "stood-down")["frozen"] or two.evidence("a", "stood-down")["term"]
        assert two.history("b", "stood-down") == []


def test_failover_after_a_full_cut_ends_with_the_higher_term_and_reports_the_overlap(tmp_path: Path) -> None:
    """Without a witness both serve, which nobody can prevent; when they hear each other again the older term stands
    down, and says which messages it took in meanwhile."""
    with pair(tmp_path) as two:
        two.begin()
        with connect(two.nodes["a"].address) as here:
            here.publish("work", NewMessage(payload=b"0", id="before-the-cut"))
        two.cable.cut()
        two.wait_for("a", "b")
        for name in ("a", "b"):
            with connect(two.nodes[name].address) as client:
                client.publish("work", NewMessage(payload=b"1", id=f"only-{name}"))
                client.publish("work", NewMessage(payload=b"2", id="both"))
        two.cable.mend()
        two.wait_for("b")
        assert two.status("a")["term"] == two.status("b")["term"] == 2
        assert "older term stands down" in two.evidence("a", "stood-down")["term"]
        until(lambda: bool(two.history("a", "overlap")))
        [report] = two.history("a", "overlap")
        assert report["messages"] == 2
        lines = [json.loads(line) for line in Path(report["file"]).read_text().splitlines()]
        assert {line["messageId"] for line in lines} == {"only-a", "both"}
        assert two.status("a")["backlog"] == {"work": 3}, "nothing is thrown away"
        assert two.status("b")["backlog"] == {"work": 2}


def test_failover_after_a_full_cut_under_load_reports_each_message_of_the_overlap(tmp_path: Path) -> None:
    """Programs at both nodes go on; each message that the node with the older term took in meanwhile is in its report,
    both journals are kept, and once adopted everything is handed out once."""
    with pair(tmp_path) as two:
        two.begin()
        with Traffic(two) as traffic:
            traffic.wait_for_more(at="a")
            two.cable.cut()
            traffic.wait_for_more(at="b")
            traffic.wait_for_more(20, at="a")
            two.cable.mend()
            assert two.wait_for_one() == "b"
        until(lambda: bool(two.history("a", "overlap")))
        [report] = two.history("a", "overlap")
        told = [json.loads(line)["messageId"] for line in Path(report["file"]).read_text().splitlines()]
        assert len(told) == len(set(told)) == report["messages"]
        second = min(one.ended for one in traffic.accepted if one.node == "b")
        assert {one.id for one in traffic.accepted if one.node == "a" and one.begun > second} <= set(told)
        assert set(told) <= {id for id in traffic.tried if id.startswith("a")}
        assert "older term stands down" in two.evidence("a", "stood-down")["term"]
        check_nothing_is_lost(two, traffic)


def test_failover_with_the_link_cut_one_way_leaves_one_node_active(tmp_path: Path) -> None:
    with pair(tmp_path) as two:
        two.begin()
        two.cable.cut("b")
        until(lambda: two.status("a")["peer"]["silent"])
        two.wait_for("a")
        two.cable.mend()
        until(lambda: not two.status("a")["peer"]["silent"])
        two.cable.cut("a")
        two.wait_for("b")
        assert two.status("a")["role"] == "STANDBY", "it heard the higher term"


def test_heartbeat_loss_and_delay_cause_no_takeover(tmp_path: Path) -> None:
    """A machine on which a node cannot answer in time is given a slower pair: with one that it can, nothing follows."""
    for times in (1, 5, 20):
        (tmp_path / f"{times}").mkdir()
        if _nothing_follows(tmp_path / f"{times}", times * INTERVAL):
            return
    raise AssertionError("b took over, though a answered")


def _nothing_follows(folder: Path, interval: float) -> bool:
    with pair(folder, "--pair-interval-seconds", str(interval)) as two:
        two.begin()
        for way in two.cable.ways.values():
            way.loss, way.delay = 0.3, interval / 2
        begun = two.cable.ways["a"].carried
        until(lambda: two.cable.ways["a"].carried > begun + 15, 60 + 60 * interval)
        for way in two.cable.ways.values():
            way.loss, way.delay = 1.0, 0.0
        until(lambda: bool(two.history("b", "kept") or two.history("b", "took-over")), 60 + 60 * interval)
        if two.history("b", "took-over"):
            return False
        two.wait_for("a")
        assert "answered" in two.evidence("b", "kept")["3 connection"]
        assert two.history("b", "late")
        return two.history("b", "took-over") == []


def test_heartbeat_loss_of_all_datagrams_is_one_entry_in_the_history(tmp_path: Path) -> None:
    """S-19: UDP lost but TCP ok: no takeover. An answer over TCP is a heartbeat, but not the return of the link."""
    with pair(tmp_path, "--pair-interval-seconds", str(2 * INTERVAL)) as two:
        two.begin()
        for way in two.cable.ways.values():
            way.loss = 1.0
        until(lambda: bool(two.history("b", "late")))
        before = two.status("b")["heartbeats"]["heard"]
        until(lambda: two.status("b")["heartbeats"]["heard"] > before + 4, max(PATIENCE, 60 * INTERVAL))
        if two.stalls or two.history("b", "took-over"):
            return  # the machine stood still for longer than the pair waits
        assert [len(two.history("b", event)) for event in ("late", "kept", "in-time")] == [1, 1, 0]
        two.cable.mend()
        until(lambda: bool(two.history("b", "in-time")))
        assert two.works("a")


def test_failover_start_together_or_in_either_order_gives_one_active_node_and_a_new_term(tmp_path: Path) -> None:
    with pair(tmp_path) as two:
        two.start()
        until(lambda: two.works("a") or two.works("b"))
        active, standby = ("a", "b") if two.works("a") else ("b", "a")
        two.wait_for(active)
        terms = [two.status(active)["term"]]
        for first, second in ((standby, active), (active, standby)):
            for node in two.nodes.values():
                node.kill()
            two.start(first)
            two.wait_for(first, of=(first,))
            two.start(second)
            until(lambda one=second: (two.status(one)["peer"] or {}).get("role") == "ACTIVE")
            two.wait_for(first)
            terms.append(two.status(first)["term"])
        assert terms == sorted(set(terms)), "no term is used twice"


def test_takeover_of_a_node_stopped_by_hand_happens_only_by_order(tmp_path: Path) -> None:
    with pair(tmp_path, "--no-handover") as two:
        two.begin()
        assert two.nodes["a"].stop() == 0
        until(lambda: two.status("b")["peer"]["silent"])
        assert two.status("b")["peer"]["status"] == "STOPPED"
        assert ["2 last status", "STOPPED, by an operator: no takeover unless ordered"] in two.status("b")["evidence"]
        assert not two.works("b")
        done = two.command("b", "switch")
        assert done.returncode == 0, done
        assert json.loads(done.stdout)["active"] == "b"
        assert two.works("b")


@pytest.mark.parametrize("blind", ["a", "b"])
def test_witness_lets_at_most_one_node_work_while_the_link_is_cut(tmp_path: Path, blind: str) -> None:
    """The witness is a file; a node that cannot read it has none of it."""
    (tmp_path / "shared").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"way-{name}").symlink_to(tmp_path / "shared")
    with pair(tmp_path) as two:
        for name, node in two.nodes.items():
            node.options = (*node.options, "--pair-witness", f"file:{tmp_path}/way-{name}/witness")
        two.begin()
        watch = Watch(two)
        with watch:
            (tmp_path / f"way-{blind}").unlink()
            two.cable.cut()
            other = "b" if blind == "a" else "a"
            until(lambda: not two.works(blind) and two.works(other) and two.status(other)["peer"]["silent"])
            enough = watch.looks + 20
            until(lambda: watch.looks > enough)
            two.cable.mend()
            until(lambda: two.status(blind)["peer"]["role"] == "ACTIVE")
        assert watch.accepted_by_both == []


class Watch:
    """Publishes to both nodes, each by its own socket, again and again; notes when both take it at the same time: the
    second was accepted between the sending and the answer of two that the first accepted."""

    def __init__(self, two: Pair) -> None:
        self._two = two
        self._over = threading.Event()
        self._accepted: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
        self._threads = [threading.Thread(target=self._publish, args=(name,)) for name in NAMES]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *reason: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _publish(self, name: str) -> None:
        while not self._over.wait(0.005):
            try:
                with connect(self._two.nodes[name].address, retries=0, timeout=5) as client:
                    begun = time.monotonic()
                    client.publish("work", b"x")
                    self._accepted[name].append((begun, time.monotonic()))
            except (QueueError, OSError):
                continue

    @property
    def looks(self) -> int:
        return sum(map(len, self._accepted.values()))

    @property
    def accepted_by_both(self) -> list[tuple[float, float]]:
        """Stretches in which one node certainly worked, as it took one before and one after, and the other did too."""
        a, b = (self._accepted[name] for name in NAMES)
        spans = [(before[1], after[0]) for before, after in itertools.pairwise(a) if after[0] - before[1] < INTERVAL]
        return [one for one in b for begin, end in spans if begin < one[0] and one[1] < end]


@pytest.mark.slow
def test_takeover_with_five_second_heartbeats_restores_the_service_within_twenty_seconds(tmp_path: Path) -> None:
    with pair(tmp_path, "--pair-interval-seconds", "5", "--pair-cooldown-seconds", "30") as two:
        with connect(two.begin().addresses) as client:
            two.nodes["a"].kill()
            client.publish("work", b"1")
        assert two.works("b")
        silent = re.search(r"is ([0-9.]+) s old", two.evidence("b", "took-over")["1 heartbeats"])
        assert silent is not None
        assert 15 < float(silent[1]) <= 20
