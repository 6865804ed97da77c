"""The page of packages: its lists are those of the project, and the files that it names exist."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/packages.md").read_text()


def test_packages_page_lists_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [table] = re.findall(r"\| extra \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE)
    assert set(re.findall(r"^\| `(\S+)` \|", table, re.MULTILINE)) == project["optional-dependencies"].keys()


def test_packages_page_lists_every_alert_with_its_severity() -> None:
    groups = yaml.safe_load((ROOT / "deploy/prometheus/yirangmq.rules.yml").read_text())["groups"]
    rules = [(rule["alert"], rule["labels"]["severity"]) for group in groups for rule in group["rules"]]
    assert re.findall(r"^\| `(Yirangmq\w+)` \| (\w+) \|", PAGE, re.MULTILINE) == rules


def test_packages_page_names_files_and_targets_of_make_that_exist() -> None:
    named = set(re.findall(r"\b(deploy/[\w./-]*\w)", PAGE))
    assert len(named) > 6
    assert [name for name in named if not (ROOT / name).exists()] == []
    targets = set(re.findall(r"`make (\w+)`|^make (\w+)$", PAGE, re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text()
    assert [name for pair in targets for name in pair if name and f"\n{name}: " not in makefile] == []


def test_packages_page_places_are_those_of_the_debian_package() -> None:
    packaged = yaml.safe_load((ROOT / "deploy/deb/nfpm.yaml").read_text())["contents"]
    places = {one["dst"] for one in packaged} - {"/usr/share/doc/yirangmq/copyright"}
    unit = (ROOT / "deploy/yirangmq.service").read_text()
    [socket] = re.findall(r"--socket (\S+)", unit)
    [data] = re.findall(r"--data (\S+)", unit)
    assert {*places, socket, data} == set(re.findall(r"^\| `(/\S+)` \|", PAGE, re.MULTILINE))
