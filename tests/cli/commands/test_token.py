"""``token new``: a random token on the screen, or in a file that only its owner may read."""

import os
import stat
from pathlib import Path

import pytest

from tests.support.cli import Cli
from yirangmq.core.access import check_token


def test_token_new_prints_a_random_token_that_the_settings_accept(cli: Cli) -> None:
    printed = [cli("token new").out.strip() for _ in range(3)] + [cli("token new --json").json["token"]]
    assert len(set(printed)) == 4
    assert all(check_token(token, "token") == token and len(token) == 32 for token in printed)


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_token_new_writes_a_file_readable_by_its_owner_only_whatever_the_umask(
    cli: Cli, tmp_path: Path, mask: int
) -> None:
    path = tmp_path / "token"
    before = os.umask(mask)
    try:
        told = cli(f"token new --json --file {path}").json
    finally:
        os.umask(before)
    assert (told["file"], told["token"]) == (str(path), None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    check_token(path.read_text().strip(), "token")
    assert [entry.name for entry in tmp_path.iterdir() if "token" in entry.name] == ["token"]


def test_token_new_leaves_an_existing_file_as_it_is(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("in use")
    result = cli(f"token new --file {path}")
    assert (result.code, path.read_text()) == (2, "in use")
    assert "exists already" in result.err
    assert cli(f"token new --file {tmp_path}/none/token").code == 2
