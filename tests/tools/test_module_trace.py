"""``tools/module_trace.py`` on this tree. Counts of modules are not checked, because they change with the code;
those of Python calls have upper bounds."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import yirangmq
from tools import module_trace

TOUCHED = {
    "socket publish": {"wire", "broker", "stores"},
    "lease and ack": {"wire", "broker", "stores"},
    "http publish": {"http", "broker", "stores"},
    "topic catch-up": {"wire", "topics", "stores"},
}
"""Packages that each operation must pass through."""
LOADED = ("publish --db", "idle server")
MAX_CALLS = {"socket publish": 110, "http publish": 115, "lease and ack": 268, "publish --db": 320}
"""Upper bounds of Python calls, a little above what is counted today. They only shrink, towards
``module_trace.CALL_LIMITS``."""


@pytest.fixture(scope="module")
def counted() -> dict[str, Any]:
    command = [sys.executable, module_trace.__file__, "--json", "--repeats", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def traced(counted: dict[str, Any]) -> dict[str, list[str]]:
    return {operation: row["modules"] for operation, row in counted.items()}


@pytest.mark.process
def test_module_trace_counts_every_operation(traced: dict[str, list[str]]) -> None:
    assert {*traced} == {*TOUCHED, *LOADED}
    assert module_trace.LIMITS.keys() <= traced.keys()
    for modules in traced.values():
        assert len(modules) == len(set(modules)) > 0
        assert all(module.startswith("yirangmq.") for module in modules)
        assert not any(hasattr(sys.modules.get(module), "__path__") for module in modules)


@pytest.mark.process
@pytest.mark.parametrize("operation", TOUCHED)
def test_module_trace_shows_that_an_operation_passes_through_its_packages(
    traced: dict[str, list[str]], operation: str
) -> None:
    assert TOUCHED[operation] <= {part for module in traced[operation] for part in module.split(".")}


@pytest.mark.process
def test_architecture_page_names_every_module_of_a_socket_publish_in_order(traced: dict[str, list[str]]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    drawn = page.partition("## One publish, from bytes to fsync to reply")[2].split("```")[1]
    named = re.findall(r"^ ([\w/]+)\.py ", drawn, re.MULTILINE)
    touched = [module.removeprefix("yirangmq.").replace(".", "/") for module in traced["socket publish"]]
    assert named == touched


@pytest.mark.process
@pytest.mark.parametrize("operation", LOADED)
def test_module_trace_contains_the_modules_that_the_package_imports(
    traced: dict[str, list[str]], operation: str
) -> None:
    assert {yirangmq.QueueError.__module__, yirangmq.NewMessage.__module__} <= {*traced[operation]}
    assert len(traced["publish --db"]) < len(traced["idle server"])


@pytest.mark.process
@pytest.mark.parametrize("operation", MAX_CALLS)
def test_python_calls_of_an_operation_stay_below_their_bound(counted: dict[str, Any], operation: str) -> None:
    assert 20 < counted[operation]["calls"] <= MAX_CALLS[operation]


def test_module_trace_report_ends_with_a_line_for_each_target(capsys: pytest.CaptureFixture[str]) -> None:
    limit = module_trace.LIMITS["http publish"]
    touched = [f"yirangmq.part{number}" for number in range(limit)]
    rows = [
        module_trace.Row("http publish", False, touched, 121),
        module_trace.Row("topic catch-up", False, touched, None),
        module_trace.Row("idle server", True, touched, None),
    ]
    module_trace.report(rows, is_listing=True)
    printed = capsys.readouterr().out
    assert "\nhttp publish, touched in this order:\n  part0\n  part1\n" in printed
    assert printed.splitlines()[-3:] == [
        f"target: http publish | {limit} modules | <= {limit} | reached",
        f"target: topic catch-up | {limit} modules | <= 27 | short",
        "target: http publish | 121 calls | <= 120 | short",
    ]
