"""Command ``docs``: pages of the documentation in the terminal.

The wheel carries the Markdown pages in ``yirangmq/_docs``; in a clone of the repository they are read from ``docs``. A
page is named by its file without the suffix, or by its folder and file if two folders have a page of that name."""

import argparse
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import yirangmq
from yirangmq.cli import output
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.core.errors import NotFound
from yirangmq.core.validation import nearest

PACKAGE = Path(yirangmq.__file__).parent
SECTIONS = {
    "start": "Start",
    "guides": "Guides",
    "coming-from": "Coming from another system",
    "concepts": "Concepts",
    "": "Reference",
    "cli": "Command line",
    "reference": "Printed reference",
    "project": "Project",
    "decisions": "Decisions",
}
"""Folders of pages in the order in which they are listed, with their titles."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="the page to print; without it, list all pages")
    parser.add_argument("--find", metavar="TEXT", help="list the lines that contain this text, with their pages")


def run(args: argparse.Namespace, screen: Screen) -> int:
    pages = find_pages()
    if args.find:
        return _find(pages, args.find, screen)
    if args.topic is None:
        return _list(pages, screen)
    name = _resolve(pages, args.topic)
    text = pages[name].read_text(encoding="utf-8")
    if screen.json:
        screen.document({"ok": True, "topic": name, "title": _title(text), "text": text})
    elif screen.is_terminal:
        _show_in_pager(text, screen)
    else:
        screen.report(text.rstrip("\n"))
    return output.OK


def find_pages() -> dict[str, Path]:
    """Return all pages by name, as ``guides/web-jobs``."""
    for folder in (PACKAGE / "_docs", PACKAGE.parents[1] / "docs"):
        if (folder / "index.md").is_file():
            paths = sorted(folder.rglob("*.md"))
            return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}
    raise NotFound("the pages of the documentation are not installed here", field="docs")


def _resolve(pages: dict[str, Path], topic: str) -> str:
    asked = topic.removesuffix(".md").removeprefix("docs/")
    if asked in pages:
        return asked
    matches = [name for name in pages if name.endswith(f"/{asked}")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise NotFound(f"{topic!r} is the name of several pages: {', '.join(matches)}", field="topic")
    near = nearest(asked, [*pages, *(Path(name).name for name in pages)])
    hint = f"did you mean {near!r}?" if near else "'yirangmq docs' lists them, 'yirangmq docs --find TEXT' searches"
    raise NotFound(f"there is no page {topic!r}; {hint}", field="topic")


def _title(text: str) -> str:
    return next((line[2:].strip() for line in text.splitlines() if line.startswith("# ")), "")


def _list(pages: dict[str, Path], screen: Screen) -> int:
    titles = {name: _title(path.read_text(encoding="utf-8")) for name, path in pages.items()}
    if screen.json:
        rows = [{"topic": name, "title": title} for name, title in titles.items()]
        screen.document({"ok": True, "pages": rows})
        return output.OK
    width = max(map(len, pages))
    for folder, section in SECTIONS.items():
        rows_of = [name for name in pages if name.rpartition("/")[0] == folder and titles[name]]
        if rows_of:
            screen.report(f"{section}:")
            for name in rows_of:
                screen.report(f"  {name:{width}}  {titles[name]}")
            screen.report()
    screen.note("'yirangmq docs TOPIC' prints a page")
    return output.OK


def _find(pages: dict[str, Path], text: str, screen: Screen) -> int:
    found = list(_matches(pages, text))
    if screen.json:
        rows = [{"topic": name, "line": number, "text": line} for name, number, line in found]
        screen.document({"ok": True, "matches": rows})
    elif not found:
        screen.note(f"no page contains {text!r}")
    for name, number, line in () if screen.json else found:
        screen.report(f"{name}:{number}: {line}")
    return output.OK


def _matches(pages: dict[str, Path], text: str) -> Iterator[tuple[str, int, str]]:
    pattern = re.compile(re.escape(text), re.IGNORECASE)
    for name, path in pages.items():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if pattern.search(line):
                yield name, number, line.strip()


def _show_in_pager(text: str, screen: Screen) -> None:
    """Print a page through ``$PAGER``, or ``less``. Without either it is printed as it is."""
    command = os.environ.get("PAGER") or "less -FRX"
    try:
        subprocess.run(command, shell=True, input=text.encode(), check=True)
    except (OSError, subprocess.CalledProcessError):
        screen.report(text.rstrip("\n"))


COMMANDS = {
    "docs": Command(
        about="Print a page of the documentation, as Markdown; without a topic, list all pages. On a terminal the page "
        "is shown by $PAGER, or by less.",
        examples=(
            ("all pages", "yirangmq docs"),
            ("one page", "yirangmq docs policy"),
            ("the lines about a word", "yirangmq docs --find visibility"),
        ),
        options=add_options,
        run=run,
    )
}
