"""What a device has to carry: few packages, few megabytes, and every one with its reason on paper."""

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"[A-Za-z0-9._-]+")


def _needed() -> set[str]:
    """The packages of the base install, with all they pull in."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    todo, found = list(project["dependencies"]), set[str]()
    while todo:
        match = NAME.match(todo.pop())
        assert match is not None
        if match[0] not in found:
            found.add(match[0])
            todo += [line for line in distribution(match[0]).requires or [] if "extra ==" not in line]
    return found


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


def test_requirements_lock_names_no_address_and_no_path() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert re.search(r"https?://|file:|--index|--find-links|/home/|/root/", text) is None
