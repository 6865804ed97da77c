"""The commands and programs of the README, the start pages, guides and concept pages run in order, each page in a
folder of its own.

A comment before a block says how it is run:

- ``<!-- background -->``: a shell block that goes on; the page continues when it has printed its first line. With
  ``<!-- background: COMMAND -->`` the command is run in place of the block.
- ``<!-- file: NAME -->``: the text of a file that the reader writes.
- ``<!-- exit: N -->``: the last command of the block ends with this exit code.
- ``<!-- not run: REASON -->``: left out.

A block in the language ``text`` after a block that ran is its output: each line must be in it, in this order, and ``…``
stands for anything."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.curl import curl_command
from tests.support.ports import free_port
from tests.support.wait import PATIENCE

ROOT = Path(__file__).parents[2]
FOLDERS = ("start", "guides", "coming-from", "concepts")
PAGES = [ROOT / "README.md", *(path for folder in FOLDERS for path in sorted((ROOT / "docs" / folder).glob("*.md")))]
BLOCK = re.compile(
    r"(?:<!-- (?P<how>[^\n]*?) -->\n+)?```(?P<language>sh|python|text|c|js|json|ini)\n(?P<text>.*?)```", re.DOTALL
)
PORTS = (8080, 7411, 61613)
"""Ports that pages name; a test uses free ones in their place."""


class Block(NamedTuple):
    how: str
    language: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    found = BLOCK.finditer(page.read_text())
    return [Block(match["how"] or "", match["language"], match["text"]) for match in found]


RUNNING = [
    page
    for page in PAGES
    if any(block.language in ("sh", "python") and not block.how.startswith("not run") for block in blocks_of(page))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT).with_suffix("")))
def test_guide_names_each_file_that_the_reader_saves_in_its_text(page: Path) -> None:
    """The site does not show comments: the line before such a block names the file."""
    for found in re.finditer(r"([^\n]*)\n+<!-- file: (\S+) -->\n", page.read_text()):
        assert found[1] == f"Save as `{found[2]}`:"


@pytest.mark.process
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: str(page.relative_to(ROOT).with_suffix("")))
def test_guide_commands_run_as_written(page: Path, tmp_path: Path) -> None:
    ports = {str(port): str(free_port()) for port in PORTS}
    here = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "YIRANGMQ_HTTP": f"127.0.0.1:{ports['8080']}",
        "EXAMPLES": str(ROOT / "examples"),
    }
    output = ""
    with ExitStack() as stack:
        for how, language, written in blocks_of(page):
            text = re.sub(rf"\b({'|'.join(ports)})\b", lambda match: ports[match[0]], written)
            kind, _, value = how.partition(": ")
            if kind == "file":
                (tmp_path / value).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / value).write_text(text)
            elif kind == "background":
                stack.enter_context(_background(value or text, tmp_path, here))
            elif language == "text" and output is not None:
                _compare(written, output)
            elif language in ("sh", "python") and kind != "not run":
                wanted = int(value) if kind == "exit" else 0
                output = _run(language, text, tmp_path, here, wanted)


def _run(language: str, text: str, folder: Path, env: dict[str, str], wanted: int) -> str:
    if language == "sh":
        text = re.sub(r"\bcurl\b", curl_command(), text)
        command = ["bash", "-euo", "pipefail", "-c", text]
    else:
        command = [sys.executable, "-c", text]
    done = subprocess.run(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert done.returncode == wanted, (text, done.stdout)
    return done.stdout


@contextmanager
def _background(text: str, folder: Path, env: dict[str, str]) -> Iterator[None]:
    """Run the only command of a block until the end of the page; go on when it has printed a line."""
    [command] = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    with subprocess.Popen(
        shlex.split(command), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline(), f"{command} ended"
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE)


def _compare(shown: str, output: str) -> None:
    place = 0
    for line in filter(None, map(str.strip, shown.splitlines())):
        match = re.compile(".*?".join(map(re.escape, line.split("…")))).search(output, place)
        assert match is not None, (line, output)
        place = match.end()
