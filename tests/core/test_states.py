"""The table of transitions, and the page that is printed from it."""

from pathlib import Path

import pytest

from tools import states_docs
from yirangmq.core.states import MEANING, STORED_STATES, TRANSITIONS, State, Verb, next_state

ALLOWED = """
new     draft draft   | new publish ready | new postpone delayed | new refuse dead
draft   set ready     | draft drop dropped
delayed ripen ready   | delayed bury dead | delayed park parked | delayed drop dropped
delayed hold held     | ready hold held
held    free ready    | held postpone delayed | held bury dead | held park parked | held drop dropped
ready   claim claimed | ready lease leased | ready bury dead | ready park parked | ready drop dropped
claimed start leased  | claimed release ready | claimed bury dead | claimed park parked | claimed drop dropped
leased  extend leased | leased ack done | leased retry delayed | leased release ready
leased  bury dead     | leased park parked | leased drop dropped
dead    redrive ready | dead park parked | dead drop dropped
parked  redrive ready | parked drop dropped
"""
"""Every move there is, written once more and by hand: a change of the table must be meant twice."""

MOVES = {
    (None if before == "new" else State(before), Verb(verb)): State(target)
    for before, verb, target in (cell.split() for line in ALLOWED.split("\n") if line for cell in line.split("|"))
}


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("state", [None, *State])
def test_states_and_verbs_lead_to_the_state_of_the_table_for_every_pair(state: State | None, verb: Verb) -> None:
    assert next_state(state, verb) == MOVES.get((state, verb))


def test_states_table_has_no_other_transitions() -> None:
    assert TRANSITIONS == MOVES


def test_states_are_all_reachable_and_verbs_all_used() -> None:
    assert set(TRANSITIONS.values()) == set(State)
    assert {verb for _, verb in TRANSITIONS} == set(Verb)


def test_states_done_and_dropped_are_final() -> None:
    ends = {state for state in State if not any(next_state(state, verb) for verb in Verb)}
    assert ends == {State.DONE, State.DROPPED}


def test_states_other_than_done_and_dropped_can_be_dropped() -> None:
    assert all(next_state(state, Verb.DROP) for state in State if state not in (State.DONE, State.DROPPED))


def test_states_kept_are_all_except_dropped() -> None:
    assert set(STORED_STATES) == set(State) - {State.DROPPED}


def test_states_and_verbs_are_all_explained() -> None:
    assert set(MEANING) == set(State)
    assert set(states_docs.WHEN) == set(Verb)


def test_states_page_lists_every_state_and_transition() -> None:
    page = states_docs.page()
    for (state, verb), target in TRANSITIONS.items():
        assert f"| {state or '–'} | {verb} | {target} |" in page
    for state in State:
        assert f"| **{state}** | {MEANING[state]} |" in page


def test_states_page_in_the_docs_is_current() -> None:
    assert (Path(__file__).parents[2] / "docs" / "states.md").read_text() == states_docs.page()
