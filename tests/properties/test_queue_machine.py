"""One machine, every store: no order of verbs, times and crashes makes a store break a promise.

``YIRANGMQ_HYPOTHESIS=long`` looks thirty times as long."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.properties.machine import QueueMachine
from tests.support.stores import ALL_KINDS

DEARER = {"files": 4}
"""So much more does a step cost on this store than on the others; it gets so many examples less."""


@pytest.mark.long
@pytest.mark.timeout(600 if settings().max_examples <= 100 else 3600)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_queue_machine_on_every_store_keeps_its_promises_in_any_order_of_events(kind: str) -> None:
    examples = settings().max_examples // DEARER.get(kind, 1)
    machine = type(f"{kind.title()}Machine", (QueueMachine,), {"kind": kind})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=30))
