"""No test sleeps: it waits for a signal, with ``until`` or ``soon`` of ``tests/support/wait.py``. See CONTRIBUTING.md.

Checks every function of every ``test_*.py``. ``sleep(0)`` yields to the loop or to another thread and is allowed."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MODULES = ("time", "asyncio")
KILL = "the moment of the kill is random"
LOAD = "random pauses are part of the load; no assertion depends on them"
RACE = "a race that runs for a given time"
RETRY = "a client pauses before it connects again, while the server is down"
ALLOWED = {
    "test_driver_kill_at_any_moment_loses_and_repeats_nothing": KILL,
    "test_bridge_delivers_every_record_once_though_the_server_is_killed_repeatedly": KILL,
    "test_server_kill_repeated_leaves_each_durable_subscriber_every_matching_record_once": KILL,
    "test_files_by_date_contain_every_confirmed_message_once_after_kills_under_load": KILL,
    "killed_again_and_again": KILL,
    "killed_in_turn": KILL,
    "test_fan_out_under_random_client_actions_misses_nothing_and_leaves_nothing_behind": RACE,
    "Feeding.run": LOAD,
    "Visit._do_something": LOAD,
    "Game.produce": LOAD,
    "Game.depose": LOAD,
    "Publishing.run": RETRY,
    "Durable.run": RETRY,
}
"""Outermost function or method → why its sleep is part of the scenario. By name, so a file can move."""


def sleepers(source: str) -> Iterator[tuple[str, int]]:
    """(outermost function, line) of each sleep."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in MODULES
        for alias in node.names
        if alias.name == "sleep"
    }
    for name, function in functions(tree):
        for node in ast.walk(function):
            if is_sleep(node, imported) or is_silence(node):
                assert isinstance(node, ast.stmt | ast.expr)
                yield name, node.lineno


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Functions of the module and methods of its classes, each with the functions inside it."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{method.name}", method


def is_sleep(node: ast.AST, imported: set[str]) -> bool:
    """``time.sleep(x)``, ``asyncio.sleep(x)``, ``Event().wait(x)``: nobody else can set that event."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(module), attr="sleep")) if module in MODULES:
            return not is_zero(node)
        case ast.Call(func=ast.Name(name)) if name in imported:
            return not is_zero(node)
        case ast.Call(func=ast.Attribute(value=ast.Call(func=made), attr="wait"), args=[_, *_]):
            return ast.unparse(made).rpartition(".")[2] == "Event"
    return False


def is_zero(call: ast.Call) -> bool:
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def is_silence(node: ast.AST) -> bool:
    """``assert not event.wait(0.1)``: it passes if the other side is only slow."""
    match node:
        case ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Attribute(attr="wait"), args=args))):
            return bool(args)
    return False


def test_sleeps_are_found_in_no_test_that_is_not_allowed() -> None:
    found = [
        (name, f"{path.relative_to(HERE)}:{line}")
        for path in sorted(HERE.rglob("test_*.py"))
        for name, line in sleepers(path.read_text())
    ]
    assert [f"{place} {name}" for name, place in found if name not in ALLOWED] == []
    assert ALLOWED.keys() - {name for name, _ in found} == set(), "no longer needed"


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("time.sleep(0.1)", True),
        ("asyncio.sleep(SECONDS)", True),
        ("nap(1)", True),
        ("threading.Event().wait(0.5)", True),
        ("assert not written.wait(0.1)", True),
        ("asyncio.sleep(0)", False),
        ("asyncio.Event().wait()", False),
        ("assert written.wait(PATIENCE)", False),
        ("wires.sleep(3)", False),
    ],
)
def test_sleeps_are_unbounded_or_timed_waits_but_not_yields_and_waits_for_signals(line: str, is_found: bool) -> None:
    source = f"from time import sleep as nap\ndef test_it():\n    def inner():\n        {line}\n"
    assert [*sleepers(source)] == [("test_it", 4)] * is_found
    assert [*sleepers(source.replace("def test_it():", "class It:"))] == [("It.inner", 4)] * is_found
