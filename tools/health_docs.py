"""Prints the table of health reasons of docs/guarantees.md from ``yirangmq.core.health``; ``python
tools/health_docs.py`` writes it, a test sees that it is current."""

from pathlib import Path

from yirangmq.core.health import REASONS

PAGE = Path(__file__).parents[1] / "docs" / "guarantees.md"
BEGIN, END = "<!-- health reasons: begin -->\n", "<!-- health reasons: end -->"


def table() -> str:
    rows = [f"| `{code}` | {' or '.join(row.levels)} | {row.meaning} | {row.action} |" for code, row in REASONS.items()]
    return "\n".join(["| code | level | meaning | what to do |", "|---|---|---|---|", *rows]) + "\n"


def printed(page: str) -> str:
    """The page with the current table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(printed(PAGE.read_text()))
