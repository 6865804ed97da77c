"""A store that other users may reach is reported, and closed by ``repair``."""

import json
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.file_modes import mode_of


@pytest.mark.parametrize("backend", ["sqlite", "files"])
def test_health_permissions_too_open_are_reported_as_by_check_and_closed_by_repair(
    cli: Cli, tmp_path: Path, backend: str
) -> None:
    url, part = (
        (f"sqlite:{tmp_path}/q.db", tmp_path / "q.db")
        if backend == "sqlite"
        else (f"files:{tmp_path}/q", tmp_path / "q")
    )
    cli(f"publish --store {url} -q mail 1")
    assert (cli(f"check --store {url}").code, cli(f"health --store {url} --json").json["status"]) == (0, "ok")
    part.chmod(mode_of(part) | 0o044)
    found = cli(f"check --store {url} --json")
    assert found.code == 5
    finding = next(one for one in found.json["findings"])
    assert (finding["kind"], finding["where"]) == ("permissions", str(part))
    assert "chmod" in finding["text"]
    health = cli(f"health --store {url} --json").json
    assert (health["status"], {one["code"] for one in health["reasons"]}) == ("degraded", {"permissions"})
    assert cli(f"repair --store {url} --dry-run").code == 5
    assert mode_of(part) & 0o077
    assert cli(f"repair --store {url}").code == 0
    assert not mode_of(part) & 0o077
    assert json.loads(cli(f"check --store {url} --json").out)["ok"]
