"""What an install has to carry: few packages, few megabytes, and every one with its reason on paper; and what the
extras add."""

import ast
import re
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"[A-Za-z0-9._-]+")
IMPORT = re.compile(r"^ *(?:import|from) ([a-z]\w*)", re.MULTILINE)
OWN = {"yirangmq", "pyspark_yirangmq"}


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _needed() -> set[str]:
    """The packages of the base install, with all they pull in."""
    todo, found = list(_project()["dependencies"]), set[str]()
    while todo:
        match = NAME.match(todo.pop())
        assert match is not None
        if match[0] not in found:
            found.add(match[0])
            todo += [line for line in distribution(match[0]).requires or [] if "extra ==" not in line]
    return found


def _name(requirement: str) -> str:
    match = NAME.match(requirement)
    assert match is not None
    return match[0].lower().replace("_", "-")


def _foreign_modules(program: str) -> set[str]:
    """The top-level modules that a program imports, but for the standard library and ours."""
    if not {*IMPORT.findall(program)} - sys.stdlib_module_names - OWN:
        return set()  # parsed only where a line looks like such an import; a docstring may have one too
    found = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - OWN


def _bytes(package: str) -> int:
    files = distribution(package).files or []
    paths = [Path(str(file.locate())) for file in files if "__pycache__" not in str(file)]
    return sum(path.stat().st_size for path in paths if path.is_file())


def test_base_install_is_at_most_8_packages_and_20_megabytes() -> None:
    packages = _needed()
    assert len(packages) <= 8
    assert sum(_bytes(package) for package in packages) < 20_000_000


def test_base_install_has_a_documented_reason_for_each_package() -> None:
    page = (ROOT / "docs/decisions/0001-dependencies.md").read_text()
    assert [package for package in _needed() if package not in page] == []


def test_extra_all_is_all_extras() -> None:
    extras = _project()["optional-dependencies"]
    [combined] = extras["all"]
    assert combined == f"yirangmq[{','.join(name for name in extras if name != 'all')}]"


def test_extras_and_base_install_declare_every_package_that_is_imported() -> None:
    """numpy comes with pandas, which needs it."""
    extras = [line for lines in _project()["optional-dependencies"].values() for line in lines]
    declared = {_name(line) for line in [*_project()["dependencies"], *extras]} | {"numpy"}
    providers = packages_distributions()
    others = {module for path in (ROOT / "src").rglob("*.py") for module in _foreign_modules(path.read_text())}
    assert len(others) > 8
    assert [module for module in others if not declared & {_name(name) for name in providers.get(module, ())}] == []


@pytest.mark.parametrize("lock", sorted(ROOT.glob("requirements*.lock")), ids=lambda lock: lock.name)
def test_requirements_locks_name_no_address_and_no_path(lock: Path) -> None:
    assert re.search(r"https?://|file:|--index|--find-links|/home/|/root/", lock.read_text()) is None
