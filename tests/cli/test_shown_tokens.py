"""Commands do not print the token that an address holds."""

from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.credentials import TOKEN
from tests.support.server_process import daemon


@pytest.mark.process
def test_token_of_an_address_is_not_printed_by_any_inspecting_command_or_publish(cli: Cli, tmp_path: Path) -> None:
    looks = (
        "status",
        "health",
        "stats",
        "peek -q mail",
        "dlq list -q mail",
        "consumers",
        "programs",
        "policy show -q m",
    )
    with daemon(tmp_path, "--tcp", "127.0.0.1:0", "--token", TOKEN) as server:
        address = server.address_of("tcp")
        for command in (f"{look}{json}" for look in looks for json in ("", " --json")):
            found = cli(command, "--store", f"{address}?token={TOKEN}")
            assert TOKEN not in found.out + found.err, command
        assert cli("status --json", "--store", f"{address}?token={TOKEN}").json["server"] == address
        assert TOKEN not in cli("publish -q mail", "{}", "--store", f"{address}?token={TOKEN}").out
