"""Names of modules, classes, functions and attributes use the words of the field; ``docs/glossary.md`` lists them.

``vocabulary_allowed.txt`` lists the uses of banned words that remain, each with its module; it may only shrink: a line
whose use is gone fails the test. Words of a library's or a wire's own names are not excused by this list: they are not
banned."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "yirangmq"
ALLOWED = Path(__file__).with_name("vocabulary_allowed.txt")

GERUNDS = {"pipelining", "staging", "monitoring", "testing", "planning", "rendering", "alerting"}
"""Module names in -ing that are established terms of the field."""

# fmt: off
BANNED = {
    "desk", "lane", "courtesy", "told", "tell", "telling", "hear", "heard", "hearing", "look", "looks", "looked",
    "vigil", "lookout", "reign", "deposed", "duty", "deeds", "house", "parlour", "sight", "vain", "survey",
    "rescue", "workshop", "spread", "taker", "hungry", "attending", "happenings", "errand", "courier", "clogged",
    "roster", "holdings", "bell", "judge", "trial", "whoever", "anew", "making", "keeping", "giving", "troupe",
    "partner", "chronicle", "crossing", "calendar",
}
# fmt: on
"""Words of no standard meaning here that modules, names and first lines of docstrings once used."""

LOOKUP = re.compile(r"look(s|ed)?[ _]up")
"""To look up is a term; the bare verb is not."""

CONCEPTS = {
    "checkpoint": "stores/sqlite/background.py",
    "fenc": "cluster/fenced_commits.py",
    "retention": "stores/log/segment_set.py",
    "long poll": "protocols/http/v1/consume.py",
    "keep-alive": "webhooks/http_client.py",
    "undo": "stores/files/undo_log.py",
    "scheduler": "broker/cron_scheduler.py",
    "lease": "consumer/lease_table.py",
    "sweep": "broker/expiry_sweeper.py",
    "retry": "consumer/delivery.py",
    "rate limit": "protocols/http/auth.py",
    "group commit": "broker/group_commit.py",
    "redo log": "stores/sqlite/redo_log.py",
    "backpressure": "protocols/stream_server.py",
    "admission": "broker/admission/admission.py",
    "overlay": "stores/files/overlay.py",
    "failover": "failover/node.py",
    "spin": "core/adaptive_spin.py",
    "rate limit of catch-up": "topics/catchup.py",
    "election": "cluster/leadership.py",
    "fan-out": "topics/live.py",
    "catch-up": "topics/catchup.py",
    "backoff": "core/backoff.py",
    "worker pool": "consumer/worker_pool.py",
    "composition root": "server/__init__.py",
    "coalesc": "protocols/http/server.py",
    "pipelin": "protocols/http/pipelining.py",
    "negative cache": "stores/sqlite/recorder.py",
    "reconnect": "client/connection.py",
    "proxy": "protocols/leader_proxy.py",
    "deduplication": "stores/files/deduplication.py",
    "credit": "broker/credit_window.py",
    "quota": "broker/quota.py",
}
"""Standard concepts and the modules that define them: the word is in the module's name or docstring."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def words_of(identifier: str) -> list[str]:
    """Return the lower-case words of a name in snake_case or CamelCase."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)
    return [part.lower() for part in parts]


def identifiers(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines: classes, functions, parameters, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def first_lines(tree: ast.Module) -> Iterator[str]:
    """Yield the first line of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text.splitlines()[0]


def uses_of_banned_words() -> set[str]:
    found = set()
    for path in modules():
        tree = tree_of(path)
        for identifier in identifiers(tree):
            words = words_of(LOOKUP.sub("", identifier))
            found |= {f"{name_of(path)}: {identifier}" for word in words if word in BANNED}
        for line in first_lines(tree):
            words = re.findall(r"[a-z]+", LOOKUP.sub("", re.sub(r"``[^`]*``", "", line.lower())))
            found |= {f'{name_of(path)}: "{word}" in a docstring' for word in words if word in BANNED}
    return found


def test_vocabulary_of_module_names_has_no_gerunds_but_established_terms() -> None:
    found = {name_of(path) for path in modules() if path.stem.endswith("ing") and path.stem not in GERUNDS}
    assert found == set()


def test_vocabulary_of_public_classes_names_each_one_once_in_the_package() -> None:
    places = defaultdict(list)
    for path in modules():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name_of(path))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_vocabulary_has_no_banned_words_beyond_a_list_that_shrinks() -> None:
    allowed = set(ALLOWED.read_text().splitlines())
    found = uses_of_banned_words()
    assert found - allowed == set(), "use the field's word (docs/glossary.md)"
    assert allowed - found == set(), "these uses are gone: remove their lines from vocabulary_allowed.txt"


@pytest.mark.parametrize(("concept", "module"), CONCEPTS.items())
def test_vocabulary_finds_each_concept_in_its_module(concept: str, module: str) -> None:
    path = PACKAGE / module
    docstring = ast.get_docstring(tree_of(path)) or ""
    text = re.sub(r"[\s-]+", " ", f"{path.stem.replace('_', ' ')} {docstring}".lower())
    for word in concept.split(" of "):
        assert re.sub(r"-", " ", word) in text
