"""``files`` where there are none."""

from pathlib import Path

import pytest

from tests.support.cli import Cli


@pytest.mark.parametrize("verb", ["list", "show", "check", "housekeep"])
def test_files_by_date_that_are_off_are_an_error_that_says_how_to_switch_them_on(
    cli: Cli, tmp_path: Path, verb: str
) -> None:
    cli("publish -q mail 1 --db queue.db")
    said = cli(f"files {verb} --db queue.db")
    assert (said.code, said.out) == (3, "")
    assert f"there are no files by date in {tmp_path}/by-date" in said.err
    assert "yirangmq serve --files-by-date on" in said.err
