"""The stages of a request: every pair of a stage and a step, and what a request does in each stage."""

from itertools import product

import pytest

from tests.protocols.http.parts import Bench
from tests.support.http import Answers, request
from yirangmq.protocols.http import pipelining
from yirangmq.protocols.http.pipelining import TRANSITIONS, RequestState, Stage, Step
from yirangmq.protocols.http.types import Response

WITH_RESPONSE = {Stage.ANSWERED, Stage.STREAMING, Stage.PAUSED, Stage.SENT}
GET = b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"


def waiting() -> RequestState:
    """A request whose route has not answered yet, as the only one of its connection."""
    bench = Bench()
    bench.receive(request("POST", "/hold", b"x"))
    [state] = bench.connection.responses.pending
    return state


@pytest.mark.parametrize(("stage", "step"), list(product(Stage, Step)), ids=lambda one: one.name)
def test_request_stage_changes_only_as_the_table_says(stage: Stage, step: Step) -> None:
    state = waiting()
    state.stage = stage
    after = TRANSITIONS[stage].get(step)
    if after is None:
        with pytest.raises(KeyError):
            state.take(step)
        assert state.stage is stage
    else:
        state.take(step)
        assert state.stage is after


def test_request_stages_are_all_reached_from_the_first_one() -> None:
    found = {Stage.RECEIVING}
    while more := {after for stage in found for after in TRANSITIONS[stage].values()} - found:
        found |= more
    assert found == set(Stage)


def test_request_is_dropped_from_every_stage_and_leaves_it_by_no_step() -> None:
    assert {moves[Step.DROP] for moves in TRANSITIONS.values()} == {Stage.DROPPED}
    assert set(TRANSITIONS[Stage.DROPPED].values()) == {Stage.DROPPED}


def test_request_that_has_a_response_never_returns_to_a_stage_without_one() -> None:
    for stage in WITH_RESPONSE:
        assert set(TRANSITIONS[stage].values()) <= WITH_RESPONSE | {Stage.DROPPED}


def test_request_stages_and_steps_stand_in_the_diagram_of_the_module() -> None:
    diagram = (pipelining.__doc__ or "").lower()
    assert [one.name for one in (*Stage, *Step) if one.name.lower() not in diagram and one is not Step.WRITE] == []


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage >= Stage.ANSWERED], ids=lambda one: one.name)
def test_request_ignores_a_second_answer(stage: Stage) -> None:
    state = waiting()
    state.stage = stage
    first = state.response
    state.answer(Response(200, b"late"))
    assert (state.stage, state.response) == (stage, first)


def test_request_goes_through_its_stages_as_it_is_answered() -> None:
    bench = Bench()
    bench.receive(b"POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx")
    [first] = bench.connection.responses.pending
    assert first.stage is Stage.RECEIVING
    bench.receive(b"x" + GET)
    second = bench.connection.responses.pending[1]
    assert (first.stage, second.stage) == (Stage.HANDLING, Stage.ANSWERED)
    first.answer(Response(200, b"done"))
    assert (first.stage, second.stage) == (Stage.SENT, Stage.SENT)
    assert not bench.connection.responses.pending


def test_request_is_dropped_when_its_connection_is_lost() -> None:
    bench = Bench()
    bench.receive(request("POST", "/hold", b"x") + GET)
    states = list(bench.connection.responses.pending)
    bench.connection.release()
    assert [state.stage for state in states] == [Stage.DROPPED, Stage.DROPPED]
    assert bench.shared.held == 0


def test_request_that_is_refused_by_its_head_is_sent_while_its_body_is_discarded() -> None:
    bench = Bench()
    sent = bench.receive(b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab")
    reader = Answers()
    reader.feed(sent)
    assert [answer.status for answer in reader.complete] == [404]
    assert not bench.connection.responses.pending
    reader.feed(bench.receive(b"cd" + GET))
    assert [answer.status for answer in reader.complete] == [404, 200]
