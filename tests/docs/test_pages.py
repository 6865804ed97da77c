"""What the pages say is so: their programs run, their links lead somewhere, their defaults are the defaults."""

import json
import re
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import yirangmq
from tests.support.pages import code_blocks
from tests.support.source_tree import source_files
from tools import errors_docs
from yirangmq.core.errors import every_error
from yirangmq.core.policy import read_policy, show_policy
from yirangmq.format.envelope import read as read_envelope

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(#[^)]*)?\)")


def blocks(page: str, language: str) -> list[str]:
    return code_blocks((ROOT / page).read_text(), language)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_every_page_lead_to_existing_files(page: Path) -> None:
    targets = [target for target, _ in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_modules_named_in_the_architecture_and_contributing_pages_exist(page: str) -> None:
    named = set(re.findall(r"\b((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)\b", (ROOT / page).read_text()))
    assert len(named) > 10
    places = (ROOT / "src" / "yirangmq", ROOT)
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


@pytest.mark.parametrize("number", range(len(blocks("docs/python.md", "python"))))
def test_python_page_programs_run(number: int, tmp_path: Path) -> None:
    program = blocks("docs/python.md", "python")[number]
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_policy_page_shows_the_defaults() -> None:
    [shown] = blocks("docs/policy.md", "json")
    assert json.loads(shown) == show_policy(read_policy({}, "telemetry"))


def test_policy_page_explains_every_member_of_a_policy() -> None:
    page = (ROOT / "docs/policy.md").read_text()
    for name, value in show_policy(read_policy({}, "q")).items():
        members = [f"{name}.{inner}" for inner in value] if isinstance(value, dict) and value else [name]
        for member in members:
            assert f"`{member}`" in page or f"`{member.split('.')[-1]}`" in page, member


def test_envelope_page_example_is_a_valid_envelope() -> None:
    [shown] = blocks("docs/envelope.md", "json")
    assert read_envelope("telemetry", shown.encode(), "x", 0).id == "9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71"


def test_sqlite_page_queries_run_and_every_table_is_listed(tmp_path: Path) -> None:
    with yirangmq.open(f"sqlite:{tmp_path / 'queue.db'}") as queues:
        queues.publish("telemetry", {"temp": 36.1})
        queues.nack(queues.lease("telemetry")[0].lease_id, "REJECTED")
    database = apsw.Connection(str(tmp_path / "queue.db"))
    for text in blocks("docs/sqlite.md", "sql"):
        for query in text.split(";")[:-1]:
            assert list(database.execute(query)), query
    tables = {row[0] for row in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    page = (ROOT / "docs/sqlite.md").read_text()
    assert [table for table in tables if not table.startswith("sqlite_") and f"| `{table}` |" not in page] == []
    database.close()


def test_error_codes_are_all_documented_on_the_cli_page() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    assert [error.code for error in every_error() if f"`{error.code}`" not in page] == []


def test_errors_page_is_current_and_has_advice_for_every_code() -> None:
    assert errors_docs.PAGE.read_text() == errors_docs.page(), "run: python tools/errors_docs.py"
    assert set(errors_docs.ADVICE) == {error.code for error in every_error()}


def test_repository_files_mention_nothing_outside_the_project() -> None:
    forbidden = re.compile(
        r"/work/|pypi\.org|files\.pythonhosted|deb\.debian|registry\.npmjs|\bClaude\b|language model", re.I
    )
    texts = {name: (ROOT / name).read_text(errors="replace") for name in source_files()}
    own = Path(__file__).relative_to(ROOT).as_posix()
    assert [name for name, text in texts.items() if name != own and forbidden.search(text)] == []
