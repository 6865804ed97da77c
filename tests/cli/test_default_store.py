"""The store that a command uses if none is named: one for commands and the server, and a former one beside it."""

import json
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.server_process import daemon, run_command

OLD = "publish --db yirang.db -q mail"
"""What the default store of earlier versions looks like: one file in the working folder."""


def ready(document: str) -> int:
    return sum(row["ready"] for row in json.loads(document)["queues"])


@pytest.mark.process
def test_default_store_of_a_command_is_the_store_that_serve_uses_later(tmp_path: Path) -> None:
    assert run_command(tmp_path, "publish", "--queue", "mail", "1").returncode == 0
    assert ready(run_command(tmp_path, "status", "--json").stdout) == 1
    with daemon(tmp_path, data=""):
        status = run_command(tmp_path, "status", "--json").stdout
        assert json.loads(status)["server"] is not None
        assert ready(status) == 1, "a message published before the server was started is served"
        assert run_command(tmp_path, "publish", "--queue", "mail", "2").returncode == 0
    assert ready(run_command(tmp_path, "status", "--json").stdout) == 2
    assert not (tmp_path / "yirang.db").exists()


def test_default_store_follows_the_variable_of_the_servers_data_folder(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("MQ_DATA", "YIRANGMQ_DATA"):
        monkeypatch.setenv(variable, variable.lower())
        assert cli("publish -q mail 1").code == 0
        assert cli("status --json").json["store"] == f"sqlite:{variable.lower()}/queue.db"
    assert not (tmp_path / "yirang-data").exists()


def test_default_store_of_earlier_versions_is_used_while_it_is_the_only_one(cli: Cli, tmp_path: Path) -> None:
    cli(OLD, "1")
    assert cli("publish -q mail 2").err == ""
    status = cli("status --json").json
    assert (status["store"], status["unusedStore"], status["queues"][0]["ready"]) == ("sqlite:yirang.db", None, 2)
    assert not (tmp_path / "yirang-data").exists()


def test_default_store_of_earlier_versions_is_named_where_it_is_not_used(cli: Cli) -> None:
    cli("publish -q mail 1 --store sqlite:yirang-data/queue.db")
    cli(OLD, "2")
    status = cli("status")
    assert "sqlite:yirang-data/queue.db" in status.out
    assert "./yirang.db, the default store of earlier versions, is not used" in status.err
    assert cli("publish -q mail 3").err.count("./yirang.db") == 1
    assert cli("status --json").json["unusedStore"] == "yirang.db"
    for named in ("--db yirang.db", "--db yirang-data/x.db", "--backend fs"):
        assert "earlier versions" not in cli(f"status {named}").err


@pytest.mark.process
def test_default_store_of_earlier_versions_is_named_by_serve_and_moves_with_the_lines_of_the_note(
    tmp_path: Path,
) -> None:
    assert run_command(tmp_path, "publish", "--queue", "mail", "--db", "yirang.db", "1").returncode == 0
    with daemon(tmp_path, data="") as server:
        assert [one["file"] for one in server.events() if one["event"] == "former_store_unused"] == ["yirang.db"]
        status = run_command(tmp_path, "status")
        assert "./yirang.db" in status.stderr
        words = [line for line in status.stderr.split("'") if line.startswith("yirangmq ")]
        assert [run_command(tmp_path, *line.split()[1:]).returncode for line in words] == [0, 0, 0], words
        assert ready(run_command(tmp_path, "status", "--json").stdout) == 1
