"""Who gets which message, strategy by strategy: tables first, then whatever hypothesis can think of."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yirangmq.core.dispatch import (
    STRATEGIES,
    Candidate,
    Dispatch,
    Memory,
    Strategy,
    copy_id,
    is_copy,
    may_lease_next,
    owner,
    read_dispatch,
    show_dispatch,
)
from yirangmq.core.errors import BadPolicy

A, B, C = (Candidate(name, 0, 100) for name in "abc")


def names(strategy: Strategy, candidates: list[Candidate], keys: list[str], memory: Memory | None = None) -> str:
    """Who gets each, "-" if it stays in line."""
    found = STRATEGIES[strategy](candidates, keys, memory or Memory())
    return "".join("-" if taker is None else candidates[taker].name for taker in found.assigned)


def capacity(candidate: Candidate, count: int) -> Candidate:
    return candidate._replace(capacity=count)


@pytest.mark.parametrize(
    ("strategy", "candidates", "count", "wanted"),
    [
        ("first_available", [capacity(A, 2), capacity(B, 2)], 5, "aabb-"),
        ("first_available", [capacity(B, 1), A], 3, "baa"),
        ("round_robin", [A, B, C], 7, "abcabca"),
        ("round_robin", [C, B, A], 4, "abca"),
        ("round_robin", [capacity(A, 1), B, capacity(C, 2)], 6, "abcbcb"),
        ("round_robin", [capacity(A, 0), capacity(B, 1)], 3, "b--"),
        ("round_robin", [], 2, "--"),
        ("load_balance", [A._replace(in_flight=2), B, C._replace(in_flight=1)], 6, "bcbacb"),
        ("load_balance", [A._replace(in_flight=9), capacity(B, 1)], 3, "baa"),
        ("load_balance", [], 1, "-"),
        ("priority", [A._replace(weight=3), B], 8, "aabaaaba"),
        ("priority", [A._replace(weight=2), B._replace(weight=1), C._replace(weight=1)], 8, "abcaabca"),
        ("priority", [capacity(A._replace(weight=5), 1), B], 3, "abb"),
        ("priority", [A._replace(weight=0), capacity(B, 1)], 3, "baa"),
        ("random", [capacity(A, 0), capacity(B, 3)], 4, "bbb-"),
        ("random", [], 1, "-"),
    ],
)
def test_dispatch_strategy_assigns_messages_to_consumers_by_its_rule(
    strategy: str, candidates: list[Candidate], count: int, wanted: str
) -> None:
    assert names(Strategy(strategy), candidates, [""] * count) == wanted


def test_dispatch_strategy_round_robin_continues_after_consumers_come_and_go() -> None:
    first = STRATEGIES[Strategy.ROUND_ROBIN]([A, C], [""], Memory())
    assert first.memory.latest == ("a", 0)
    assert names(Strategy.ROUND_ROBIN, [A, B, C], [""] * 3, first.memory) == "bca"
    assert names(Strategy.ROUND_ROBIN, [A], [""], first.memory) == "a"


def test_dispatch_strategy_priority_keeps_its_weights_over_many_small_assignments() -> None:
    memory, got = Memory(), Counter[str]()
    heavy = [A._replace(weight=3), B]
    for _ in range(40):
        assigned, memory = STRATEGIES[Strategy.PRIORITY](heavy, [""], memory)
        got[heavy[assigned[0] or 0].name] += 1
    assert got == {"a": 30, "b": 10}


def test_dispatch_strategy_random_is_fair_and_repeats_with_the_same_seed() -> None:
    candidates = [one._replace(capacity=3000) for one in (A, B, C)]
    drawn = names(Strategy.RANDOM, candidates, [""] * 3000, Memory(random_state=7))
    assert drawn == names(Strategy.RANDOM, candidates, [""] * 3000, Memory(random_state=7))
    assert all(900 < count < 1100 for count in Counter(drawn).values())
    assert drawn != names(Strategy.RANDOM, candidates, [""] * 3000, Memory(random_state=8))


def test_dispatch_strategy_key_hash_keeps_a_key_at_its_consumer_and_waits_while_it_is_full() -> None:
    keys = [f"k{n % 7}" for n in range(40)]
    got = names(Strategy.KEY_HASH, [A, B, C], keys)
    assert len({(key, who) for key, who in zip(keys, got, strict=True)}) == 7
    mine = owner("k1", ("a", "b", "c"))
    full = [capacity(one, 0) if one.name == mine else one for one in (A, B, C)]
    assert names(Strategy.KEY_HASH, full, ["k1"]) == "-", "its owner has no room: it waits"
    assert names(Strategy.KEY_HASH, [A, B], ["", "", ""]) == "aba", "without a key they go in turn"


def test_dispatch_strategy_key_hash_shares_keys_among_consumers_of_the_same_name() -> None:
    twins = [Candidate("a", 0, 1), Candidate("a", 1, 1)]
    assert STRATEGIES[Strategy.KEY_HASH](twins, ["k", "k", "k"], Memory()).assigned == [0, 1, None]


# -- whatever happens -------------------------------------------------------------------------------------------------

crowds = st.lists(
    st.builds(
        Candidate,
        st.sampled_from("abcdef"),
        st.just(0),
        st.integers(0, 6),
        st.integers(0, 5),
        st.integers(0, 4),
    ),
    max_size=6,
    unique_by=lambda one: one.name,
)
keys = st.lists(st.sampled_from(["", "x", "y", "z"]), max_size=20)
everything = st.sampled_from(sorted(STRATEGIES))


@given(everything, crowds, keys, st.integers(0, 2**64 - 1))
def test_dispatch_strategy_never_exceeds_capacity_and_except_key_hash_uses_all_of_it(
    strategy: Strategy, crowd: list[Candidate], keys: list[str], random_state: int
) -> None:
    assigned, _ = STRATEGIES[strategy](crowd, keys, Memory(random_state=random_state))
    assert len(assigned) == len(keys)
    got = Counter(taker for taker in assigned if taker is not None)
    assert all(count <= crowd[taker].capacity for taker, count in got.items())
    if strategy is not Strategy.KEY_HASH:
        assert sum(got.values()) == min(len(keys), sum(one.capacity for one in crowd))
        assert None not in assigned[: sum(got.values())], "those in front go first"


@given(st.integers(1, 5), st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_dispatch_strategy_round_robin_is_fair_for_any_batch_sizes(consumers: int, batches: list[int]) -> None:
    crowd = [Candidate(f"c{n}", 0, 1000) for n in range(consumers)]
    memory, got = Memory(), Counter[int]()
    for batch in batches:
        assigned, memory = STRATEGIES[Strategy.ROUND_ROBIN](crowd, [""] * batch, memory)
        got.update(taker for taker in assigned if taker is not None)
    assert max(got.values()) - min(got[n] for n in range(consumers)) <= 1


@given(st.sets(st.sampled_from("abcdef"), min_size=2), st.text(min_size=1, max_size=5))
def test_dispatch_strategy_key_hash_moves_only_the_keys_of_a_consumer_that_leaves(everyone: set[str], key: str) -> None:
    before = owner(key, tuple(sorted(everyone)))
    for gone in everyone - {before}:
        assert owner(key, tuple(sorted(everyone - {gone}))) == before


@given(st.data())
def test_dispatch_strategy_loses_and_repeats_no_message_as_consumers_come_and_go(data: st.DataObject) -> None:
    strategy = data.draw(everything)
    waiting, given_out, memory = list(range(30)), [], Memory(random_state=3)
    for _ in range(12):
        crowd = data.draw(crowds)
        assigned, memory = STRATEGIES[strategy](crowd, [f"k{n % 4}" for n in waiting], memory)
        given_out += [n for n, taker in zip(waiting, assigned, strict=True) if taker is not None]
        waiting = [n for n, taker in zip(waiting, assigned, strict=True) if taker is None]
    assert sorted(given_out + waiting) == list(range(30))


# -- order and copies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("in_hand", "again", "may"), [(0, 0, True), (1, 0, False), (0, 1, False), (2, 2, False)])
def test_dispatch_strict_order_waits_for_messages_in_flight_or_in_retry(in_hand: int, again: int, may: bool) -> None:
    assert may_lease_next(in_hand, again) is may


@given(st.text("abc-._", min_size=1, max_size=100), st.integers(1, 2**62))
def test_fan_out_copy_id_is_valid_deterministic_and_distinct(id: str, target: int) -> None:
    made = copy_id(id, target)
    assert len(made) <= 100
    assert is_copy(made, target)
    assert not is_copy(made, 0)
    assert made == copy_id(id, target) != copy_id(id + "x" if len(id) < 100 else id[:-1], target)


# -- the policy's words -----------------------------------------------------------------------------------------------


def test_dispatch_policy_shown_is_read_back_unchanged() -> None:
    said = {"strategy": "priority", "weights": {"big-*": 3}, "key": "account", "graceSec": 1.5, "outcomes": "told"}
    dispatch = read_dispatch(said, "mail")
    assert show_dispatch(dispatch) == said
    assert dispatch is not None
    assert (dispatch.weight("big-1"), dispatch.weight("small")) == (3, 1)
    assert show_dispatch(read_dispatch(None, "mail")) is None
    assert read_dispatch({}, "mail") == Dispatch()


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"strategy": "fifo"}, "dispatch.strategy"),
        ({"weights": {"a": -1}}, "dispatch.weights.a"),
        ({"weights": {"a": True}}, "dispatch.weights.a"),
        ({"weights": []}, "dispatch.weights"),
        ({"key": 7}, "dispatch.key"),
        ({"graceSec": -1}, "dispatch.graceSec"),
        ({"outcomes": "mail"}, "dispatch.outcomes"),
        ({"outcomes": "no/slash"}, "dispatch.outcomes"),
        ({"strategies": "x"}, "dispatch.strategies"),
        ("ordered", "dispatch"),
    ],
)
def test_dispatch_policy_that_is_invalid_is_refused_with_its_field(said: object, field: str) -> None:
    with pytest.raises(BadPolicy) as refused:
        read_dispatch(said, "mail")
    assert refused.value.field == field
