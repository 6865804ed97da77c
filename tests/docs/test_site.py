"""The documentation builds as a site without warnings, links of pages and anchors included, and loads nothing from
outside. Its words are plain."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
MAX_LINES = 500
BANNED = re.compile(
    r"\b(whoever|whomever|nobody|somebody|(is|are|was) told|told of|told to|hears?|hands? out|handed out|"
    r"gives? way|anew|of its own accord|without a word|so long as it|looks? out for|burial|courtesy|lies among)\b",
    re.IGNORECASE,
)
"""Idioms that a reader has to decode; the glossary has the terms."""
OUTSIDE = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"(?:https?:)?//[^\"]*\"")


@pytest.mark.long
def test_docs_site_builds_without_warnings_and_loads_nothing_from_outside(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", tmp_path / "trees", DOCS,
         tmp_path / "site"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert {page.relative_to(tmp_path / "site").with_suffix(".md").as_posix() for page in pages} >= {
        page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")
    }
    assert [(page.name, found) for page in pages for found in OUTSIDE.findall(page.read_text())] == []
    index = (tmp_path / "site" / "searchindex.js").read_text()
    assert "visibl" in index  # the search finds visibility timeouts


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_docs_pages_use_plain_words(page: Path) -> None:
    if page.name == "glossary.md" or page.parent.name == "decisions":  # these quote the words that they replace
        return
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    assert [(text.count("\n", 0, match.start()) + 1, match[0]) for match in BANNED.finditer(text)] == []


def test_docs_pages_have_at_most_500_lines() -> None:
    long = {page.relative_to(ROOT).as_posix(): text.count("\n") for page in PAGES if (text := page.read_text())}
    del long["CHANGELOG.md"]
    assert {name: lines for name, lines in long.items() if lines > MAX_LINES} == {}
