"""No operation of the hot path takes more calls of Python functions than it did: ``make count-calls`` shows which.

The bounds have a little slack. Lower them when a change makes an operation cheaper; raise one only with a reason."""

import json
import subprocess
import sys

import pytest

from tools import module_trace

BOUNDS = {"socket publish": 128, "http publish": 158, "lease and ack": 315, "publish --db": 412}


@pytest.fixture(scope="module")
def counted() -> dict[str, list[str]]:
    command = [sys.executable, module_trace.__file__, "--calls", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.process
@pytest.mark.parametrize("operation", BOUNDS)
def test_call_counts_of_an_operation_do_not_grow(counted: dict[str, list[str]], operation: str) -> None:
    calls = counted[operation]
    assert any(call.startswith("yirangmq.broker.operations:publish") or "lease" in call for call in calls)
    assert len(calls) <= BOUNDS[operation], "\n".join(calls)


def test_call_counts_have_a_bound_for_each_target() -> None:
    assert BOUNDS.keys() == module_trace.CALL_LIMITS.keys()


def test_call_counts_are_reported_with_a_line_for_each_target(capsys: pytest.CaptureFixture[str]) -> None:
    found = {name: ["yirangmq.a:f"] * limit for name, limit in module_trace.CALL_LIMITS.items()}
    found["lease and ack"].append("yirangmq.b:g")
    module_trace.report_calls(found, is_listing=True)
    printed = capsys.readouterr().out
    assert "target: socket publish | 100 calls | <= 100 | reached" in printed
    assert "target: lease and ack | 151 calls | <= 150 | short" in printed
    assert "\n  b:g\n" in printed
