"""The commands in the pages about the command line run as they stand there."""

from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.pages import code_blocks
from yirangmq.core.filter import FIELDS
from yirangmq.core.message import MEANING

DOCS = Path(__file__).parents[2] / "docs"
ID = "9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71"


def lines(page: str) -> list[str]:
    blocks = code_blocks((DOCS / page).read_text(), "sh")
    return [line for block in blocks for line in block.splitlines() if line.startswith("yirangmq ")]


@pytest.mark.parametrize("page", ["filter.md", "dead-letters.md", "transfer.md"])
def test_cli_docs_every_command_line_of_a_page_runs(cli: Cli, tmp_path: Path, page: str) -> None:
    for queue, id in (("telemetry", ID), ("mail", "m-1")):
        cli(f"publish -q {queue} --id {id} 1")
        lease = cli(f"consume -q {queue} --no-ack --json").json["lease"]["leaseId"]
        cli(f"nack {lease} --reason REJECTED")
    found = lines(page)
    assert found
    for line in found:
        result = cli(line.removeprefix("yirangmq ").replace("/var/yirang", str(tmp_path)))
        assert result.code == 0, (line, result)


def test_filter_docs_name_every_field_of_the_filter_language() -> None:
    page = (DOCS / "filter.md").read_text()
    assert [field for field in FIELDS if f"`{field}`" not in page and f"`{field}.NAME`" not in page] == []


def test_dead_letter_docs_list_every_reason_with_its_meaning() -> None:
    page = (DOCS / "dead-letters.md").read_text()
    assert [reason for reason, text in MEANING.items() if f"| `{reason}` | {text} |" not in page] == []
