"""One machine, every store: no order of verbs, times and crashes makes a store break a promise.

``YIRANGMQ_HYPOTHESIS=long`` looks thirty times as long."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.places import KINDS
from tests.properties.machine import QueueMachine


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_no_order_of_events_breaks_a_promise(kind: str) -> None:
    machine = type(f"{kind.title()}Machine", (QueueMachine,), {"kind": kind})
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=30))
