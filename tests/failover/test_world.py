"""Two nodes in simulated time: each fault of the pair, then any mixture of them that hypothesis finds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.failover.world import INTERVAL, NAMES, PACE, WATCHED, World, started
from yirangmq.core.failover import Decision, FailoverTiming, FailoverVerdict, Role

pytestmark = pytest.mark.timeout(900)  # with YIRANGMQ_HYPOTHESIS=long
both_paces = pytest.mark.parametrize("pace", [PACE, WATCHED], ids=["alone", "witness"])
SERVICE_AGAIN = 4 * INTERVAL
"""Three misses, the test of the connection and the looks between them: 20 of the seed's seconds."""


def last_steps(world: World, name: str, verdict: FailoverVerdict) -> dict[str, str]:
    found = [decision for _, decision in world[name].decisions if decision.verdict is verdict]
    return {step.step: step.found for step in found[-1].steps}


@both_paces
def test_takeover_of_a_killed_active_node_happens_within_four_intervals(pace: FailoverTiming) -> None:
    world = started(pace)
    world["a"].kill()
    world.pass_time(pace.timeout - INTERVAL)
    assert world.working == []
    world.pass_time(INTERVAL + SERVICE_AGAIN - pace.timeout)
    assert world.working == ["b"]
    steps = last_steps(world, "b", FailoverVerdict.TAKE_OVER)
    assert steps["1 heartbeats"].startswith("missed 3")
    assert steps["2 last status"].startswith("RUNNING, ACTIVE")
    assert steps["3 connection"] == "no answer at the peer's TCP port"


@both_paces
def test_failover_brings_the_old_active_node_back_as_standby(pace: FailoverTiming) -> None:
    world = started(pace)
    world["a"].kill()
    world.pass_time(SERVICE_AGAIN)
    world["a"].start()
    world.pass_time(20 * INTERVAL)
    assert world.active == ["b"]
    assert world["a"].disk.term == world["b"].disk.term


@both_paces
def test_takeover_follows_in_spite_of_a_quick_restart_of_the_active_node(pace: FailoverTiming) -> None:
    world = started(pace)
    world["a"].kill()
    world["a"].start()
    world.pass_time(3 * INTERVAL)
    assert world.active == ["b"]
    assert "4 running time" in last_steps(world, "b", FailoverVerdict.CLAIM)
    assert "consents" in last_steps(world, "b", FailoverVerdict.TAKE_OVER)["consent"]


@both_paces
def test_takeover_of_a_frozen_active_node_keeps_it_from_working_when_it_wakes(pace: FailoverTiming) -> None:
    world = started(pace)
    world["a"].is_frozen = True
    world.pass_time(SERVICE_AGAIN)
    assert world.working == ["b"]
    world["a"].is_frozen = False
    assert not world["a"].works
    world.pass_time(INTERVAL)
    assert world.active == ["b"]
    assert not world.both_worked


@both_paces
def test_failover_ignores_a_short_pause_of_the_active_node(pace: FailoverTiming) -> None:
    world = started(pace)
    term = world["a"].disk.term
    world["a"].is_frozen = True
    world.pass_time(INTERVAL)
    world["a"].is_frozen = False
    world.pass_time(10 * INTERVAL)
    assert world.working == ["a"]
    assert world["b"].disk.term == term


@both_paces
def test_takeover_of_a_node_stopped_by_hand_happens_only_by_order(pace: FailoverTiming) -> None:
    world = started(pace)
    world["a"].stop()
    world.pass_time(30 * INTERVAL)
    assert world.working == []
    world["b"].failover_node.order(True)
    world.pass_time(INTERVAL)
    assert world.working == ["b"]
    assert last_steps(world, "b", FailoverVerdict.TAKE_OVER)["order"] == "by an operator"


@both_paces
def test_takeover_by_an_ordered_standby_has_the_consent_of_the_active_node(pace: FailoverTiming) -> None:
    world = started(pace)
    world["b"].failover_node.order(True)
    world.pass_time(2 * INTERVAL)
    assert world.working == ["b"]
    assert last_steps(world, "a", FailoverVerdict.HAND_OVER)["order"] == "b was ordered to take over"
    world.pass_time(30 * INTERVAL)
    assert world.active == ["b"]
    assert not world.both_worked


@both_paces
@pytest.mark.parametrize("lost", ["a", "b"])
def test_heartbeat_loss_one_way_while_tcp_answers_causes_no_takeover(pace: FailoverTiming, lost: str) -> None:
    world = started(pace)
    world.wires[lost].loss = 1.0
    world.pass_time(30 * INTERVAL)
    assert world.working == ["a"]
    assert not [one for _, one in world["b"].decisions if one.verdict is FailoverVerdict.TAKE_OVER]


def test_takeover_follows_a_cut_of_the_link_from_the_active_node() -> None:
    """The standby cannot reach it and takes over; the old one hears the higher term, and stands down."""
    world = started()
    world.cut("a")
    world.pass_time(SERVICE_AGAIN + INTERVAL)
    assert world.active == world.working == ["b"]


def test_witness_of_the_active_node_prevents_a_takeover_after_a_cut_of_the_link_from_it() -> None:
    world = started(WATCHED)
    world.cut("a")
    world.pass_time(30 * INTERVAL)
    assert world.active == world.working == ["a"]


@both_paces
def test_failover_ignores_a_cut_of_the_link_to_the_active_node(pace: FailoverTiming) -> None:
    world = started(pace)
    world.cut("b")
    world.pass_time(20 * INTERVAL)
    assert world.working == ["a"]


def test_failover_after_a_full_cut_without_a_witness_heals_to_the_higher_term_at_once() -> None:
    world = started()
    world.cut()
    world.pass_time(SERVICE_AGAIN)
    assert world.working == ["a", "b"]
    world.cut(is_cut=False)
    world.pass_time(INTERVAL + 50)
    assert world.active == ["b"]
    assert "older term stands down" in last_steps(world, "a", FailoverVerdict.STAND_DOWN)["term"]


@pytest.mark.parametrize("holder", NAMES)
def test_witness_in_a_full_cut_leaves_the_node_active_that_can_reach_it(holder: str) -> None:
    world = started(WATCHED)
    world.cut()
    world.other(world[holder]).sees_witness = False
    world.pass_time(SERVICE_AGAIN + WATCHED.timeout)
    assert world.working == [holder]
    assert not world.both_worked


def test_witness_reached_by_both_nodes_in_a_full_cut_changes_nothing() -> None:
    world = started(WATCHED)
    world.cut()
    world.pass_time(30 * INTERVAL)
    assert world.working == ["a"]


def test_witness_that_is_away_changes_nothing_while_heartbeats_arrive() -> None:
    world = started(WATCHED)
    for node in world.nodes.values():
        node.sees_witness = False
    world.pass_time(30 * INTERVAL)
    assert world.working == ["a"]


@both_paces
@pytest.mark.parametrize("seed", range(10))
def test_heartbeat_loss_of_thirty_percent_causes_no_takeover_for_long(pace: FailoverTiming, seed: int) -> None:
    """Heartbeats miss three times in a row now and then; the test of the connection answers."""
    world = started(pace)
    world.chance.seed(seed)
    for wire in world.wires.values():
        wire.loss = 0.3
    world.pass_time(200 * INTERVAL)
    assert world.working == ["a"]


@both_paces
def test_failover_ignores_a_slow_link(pace: FailoverTiming) -> None:
    world = started(pace)
    for wire in world.wires.values():
        wire.delay, wire.spread = INTERVAL // 2, INTERVAL
    world.pass_time(50 * INTERVAL)
    assert world.working == ["a"]


@both_paces
def test_failover_with_both_nodes_started_together_agrees_on_one(pace: FailoverTiming) -> None:
    world = World(pace)
    for node in world.nodes.values():
        node.start()
    world.pass_time(3 * INTERVAL)
    assert world.working == ["a"]
    assert not world.both_worked


@both_paces
@pytest.mark.parametrize("first", NAMES)
def test_failover_after_a_power_cut_makes_the_first_node_that_returns_active(pace: FailoverTiming, first: str) -> None:
    world = started(pace)
    for node in world.nodes.values():
        node.kill()
    world.pass_time(5 * INTERVAL)
    world[first].start()
    world.pass_time(2 * INTERVAL)
    world.other(world[first]).start()
    world.pass_time(4 * INTERVAL)
    assert world.working == [first]


@both_paces
@pytest.mark.parametrize("jump", [-3_600_000_000, 3_600_000_000])
def test_failover_ignores_a_clock_jump(pace: FailoverTiming, jump: int) -> None:
    world = started(pace)
    world["a"].jump = jump
    world.pass_time(20 * INTERVAL)
    assert world.working == ["a"]
    world["b"].kill()
    world["b"].start()
    world.pass_time(20 * INTERVAL)
    assert world.working == ["a"]
    assert world["b"].failover_node.peer is not None


def test_failover_cooldown_after_a_switch_delays_the_next_takeover() -> None:
    world = started(PACE._replace(cooldown=12 * INTERVAL))
    world["a"].kill()
    world.pass_time(SERVICE_AGAIN)
    world["a"].start()
    world.pass_time(INTERVAL)
    world["a"].failover_node.order(True)
    world.pass_time(2 * INTERVAL)
    assert world.working == ["a"]
    world["a"].kill()
    world.pass_time(SERVICE_AGAIN)
    assert world.working == [], "b has just been switched"
    assert "left" in dict(world["b"].conduct.latest.steps)["cooldown"]  # type: ignore[union-attr]
    world.pass_time(12 * INTERVAL)
    assert world.working == ["b"]


def test_heartbeat_lateness_is_noticed_before_a_takeover() -> None:
    world = started()
    world.wires["a"].loss = 1.0
    world.pass_time(INTERVAL // 2 - 20)
    assert not world["b"].failover_node.is_late(world["b"].now)
    world.pass_time(2 * INTERVAL)
    assert world["b"].failover_node.is_late(world["b"].now)
    assert world["b"].failover_node.own.role is Role.STANDBY


def test_failover_notices_more_than_five_switches() -> None:
    world = started()
    names = ["b", "a"] * 3
    for name in names:
        assert not world["b"].failover_node.is_flapping
        world[name].failover_node.order(True)
        world.pass_time(3 * INTERVAL)
        assert world.working == [name]
    assert world["b"].failover_node.switches == 6
    assert world["b"].failover_node.is_flapping


@both_paces
def test_takeover_does_not_follow_heartbeats_with_another_key(pace: FailoverTiming) -> None:
    world = started(pace)
    world["b"].key = "another key"
    world["b"].kill()
    world["b"].start()
    world.pass_time(30 * INTERVAL)
    assert world.working == ["a"]
    assert "signed with another key" in dict(world["b"].conduct.latest.steps)["key"]  # type: ignore[union-attr]
    assert world["a"].failover_node.keys_differ(world["a"].now)
    world["a"].kill()
    world.pass_time(SERVICE_AGAIN + pace.timeout)
    assert world.working == ["b"], "a dead node sends nothing, with whatever key"


@both_paces
def test_failover_with_different_keys_from_the_start_makes_no_node_active(pace: FailoverTiming) -> None:
    world = World(pace)
    world["b"].key = "another key"
    for node in world.nodes.values():
        node.start()
    world.pass_time(30 * INTERVAL)
    assert world.active == []
    world["b"].key = "key"
    world.pass_time(5 * INTERVAL)
    assert len(world.working) == 1


@both_paces
def test_takeover_does_not_follow_a_probe_that_is_answered_with_another_key(pace: FailoverTiming) -> None:
    """The datagrams are lost; the answers over TCP show that the peer lives."""
    world = started(pace)
    for wire in world.wires.values():
        wire.loss = 1.0
    world["b"].key = "another key"
    world.pass_time(30 * INTERVAL)
    assert world.working == ["a"]
    assert "another key" in dict(world["b"].conduct.latest.steps)["3 connection"]  # type: ignore[union-attr]


def test_heartbeat_stays_late_while_only_tcp_answers() -> None:
    """S-19: UDP lost but TCP ok: no takeover, and one change to late, not one with each answer over TCP."""
    world = started()
    for wire in world.wires.values():
        wire.loss = 1.0
    changes: list[bool] = []
    for _ in range(30 * INTERVAL // 20):
        world.pass_time(20)
        is_late = world["b"].failover_node.is_late(world["b"].now)
        if not changes or changes[-1] is not is_late:
            changes.append(is_late)
    assert world.working == ["a"]
    assert changes == [False, True]
    for wire in world.wires.values():
        wire.loss = 0.0
    world.pass_time(2 * INTERVAL)
    assert not world["b"].failover_node.is_late(world["b"].now)


@both_paces
def test_failover_standby_has_the_highest_term_that_it_has_heard(pace: FailoverTiming) -> None:
    world = started(pace)
    for name in ("b", "a"):
        world[name].failover_node.order(True)
        world.pass_time(3 * INTERVAL)
        assert world.working == [name]
        assert world["a"].failover_node.own.term == world["b"].failover_node.own.term


def test_failover_hand_over_that_failed_can_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = started()
    driver = world["a"].conduct
    begun: list[Decision] = []
    assert driver is not None
    monkeypatch.setattr(world["a"], "hand_over", begun.append)
    world["b"].failover_node.order(True)
    world.pass_time(2 * INTERVAL)
    assert (len(begun), world.working) == (1, ["a"])
    driver.on_hand_over_failed()
    world.pass_time(INTERVAL)
    assert len(begun) == 2


def test_failover_measures_the_time_without_an_active_node() -> None:
    world = started()
    node = world["b"].failover_node
    assert node.time_without_active(world["b"].now) == 0
    stopped_at = world.time
    world["a"].stop()
    world.pass_time(10 * INTERVAL)
    assert abs(node.time_without_active(world["b"].now) - (world.time - stopped_at)) <= INTERVAL
    world["b"].failover_node.order(True)
    world.pass_time(INTERVAL)
    assert node.time_without_active(world["b"].now) == 0


# -- anything at all ------------------------------------------------------------------------------------------------

names = st.sampled_from(NAMES)
faults = st.one_of(
    st.tuples(st.just("cut"), names),
    st.tuples(st.just("mend"), names),
    st.tuples(st.just("loss"), names),
    st.tuples(st.just("slow"), names),
    st.tuples(st.just("kill"), names),
    st.tuples(st.just("start"), names),
    st.tuples(st.just("freeze"), names),
    st.tuples(st.just("wake"), names),
    st.tuples(st.just("jump"), names),
    st.tuples(st.just("blind"), names),
    st.tuples(st.just("sighted"), names),
    st.tuples(st.just("stop"), names),
    st.tuples(st.just("key"), names),
    st.tuples(st.just("order"), names),
)
spans = st.sampled_from([20, 60, INTERVAL, 2 * INTERVAL, 3 * INTERVAL, 3 * INTERVAL + 20, 5 * INTERVAL])
scripts = st.lists(st.tuples(faults, spans), max_size=14)


def play(world: World, script: list[tuple[tuple[str, str], int]]) -> None:
    for node in world.nodes.values():
        node.start()
    for (fault, name), span in script:
        node, wire = world[name], world.wires[name]
        match fault:
            case "cut" | "mend":
                wire.is_cut = fault == "cut"
            case "loss":
                wire.loss = 0.0 if wire.loss else 0.5
            case "slow":
                wire.delay, wire.spread = (0, 0) if wire.delay else (INTERVAL, 2 * INTERVAL)
            case "kill":
                node.kill()
            case "start":
                node.start()
            case "freeze" | "wake":
                node.is_frozen = fault == "freeze"
            case "jump":
                node.jump += 10**9
            case "blind" | "sighted":
                node.sees_witness = fault == "sighted"
            case "stop":
                node.stop()
            case "key":
                node.key = "key" if node.key != "key" else f"another key of {name}"
            case "order":
                if node.is_up:
                    node.failover_node.order(True)
        world.pass_time(span)


@given(scripts, st.integers(0, 99))
def test_witness_never_lets_two_nodes_work_under_any_faults(
    script: list[tuple[tuple[str, str], int]], seed: int
) -> None:
    world = World(WATCHED, seed)
    play(world, script)
    world.settle()
    assert not world.both_worked
    assert not world["a"].worked_in & world["b"].worked_in, "a term is one node's"
    assert len(world.working) == 1, "in the end somebody works"


@given(scripts, st.integers(0, 99))
def test_failover_without_a_witness_leaves_one_node_active_at_once_after_healing(
    script: list[tuple[tuple[str, str], int]], seed: int
) -> None:
    world = World(PACE, seed)
    play(world, script)
    if all(node.is_up for node in world.nodes.values()):
        for wire in world.wires.values():
            wire.is_cut, wire.loss, wire.delay, wire.spread = False, 0.0, 0, 0
            wire.on_the_way.clear()
        for node in world.nodes.values():
            node.key = "key"
        terms = {name: node.failover_node.own.term for name, node in world.nodes.items()}
        both = world.active == ["a", "b"]
        world.pass_time(2 * INTERVAL)
        assert len(world.active) <= 1
        if both and terms["a"] != terms["b"] and world.active:
            assert world.active == [max(terms, key=lambda name: terms[name])]
    world.settle()
    assert len(world.working) == 1


@given(scripts, st.integers(0, 99))
def test_failover_never_lets_a_restarted_node_replace_an_active_one_that_it_receives(
    script: list[tuple[tuple[str, str], int]], seed: int
) -> None:
    world = World(PACE, seed)
    play(world, script)
    world.settle()
    [active] = world.active
    other = world.other(world[active])
    other.kill()
    other.start()
    world.pass_time(30 * INTERVAL)
    assert world.active == [active]
