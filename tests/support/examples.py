"""A runner of the programs in ``examples/``, by the commands in their headers (``tools/examples_docs.py``)."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.support.ports import free_port
from tests.support.wait import PATIENCE, until
from tools.examples_docs import EXAMPLES, read_header

PORTS = ("8080", "8000", "9000", "61613")
"""Ports that headers name; free ones replace them in a test."""
ADDRESS = "sqlite:demo.db"
"""The store that headers name, for examples that need no server."""
BASE_INSTALL = {"PYTHONPATH": str(Path(__file__).with_name("base_install"))}
"""Environment in which extras cannot be imported. Examples that install no package run in it, and their servers."""
PROGRAMS = ("curl", "node", "openssl", "cc")
"""Programs that an example may need. Without one of them its test is skipped."""


class Place:
    """A folder in which commands of headers run, with ``examples/`` in it and ports of its own."""

    def __init__(self, folder: Path, ports: Mapping[str, str] = MappingProxyType({})) -> None:
        self.folder = folder
        self._ports = {port: str(free_port()) for port in PORTS} | dict(ports)
        (folder / "examples").symlink_to(EXAMPLES)
        self.env = {
            **os.environ,
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "YIRANGMQ_HTTP": f"127.0.0.1:{self._ports['8080']}",
            "PYTHONWARNINGS": "error",
        }

    def at_free_ports(self, command: str) -> str:
        return re.sub(rf"\b({'|'.join(self._ports)})\b", lambda match: self._ports[match[0]], command)

    def run(self, command: str, env: Mapping[str, str] = MappingProxyType({})) -> str:
        """Run a command; return its standard output. A failure fails the test."""
        with subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", self.at_free_ports(command)],
            cwd=self.folder, env=self.env | dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                stdout, stderr = process.communicate(timeout=PATIENCE)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # with the servers that it started
                raise
        assert process.returncode == 0, (command, stdout, stderr[-4000:])
        return stdout

    @contextmanager
    def background(self, command: str, output: Path, env: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
        """Run a command that stays; continue when it has printed a line."""
        with (
            output.open("w") as stdout,
            output.with_suffix(".log").open("w") as stderr,
            subprocess.Popen(
                ["bash", "-c", f"exec {self.at_free_ports(command)}"],
                cwd=self.folder, env=self.env | dict(env), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            ) as process,
        ):  # fmt: skip
            try:
                until(lambda: "\n" in output.read_text() or process.poll() is not None, what=command)
                assert process.poll() is None, (command, output.with_suffix(".log").read_text()[-4000:])
                yield
            finally:
                process.terminate()


class Places:
    """Folders with a running server each: one for each command line and environment, used by all their examples."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._servers: dict[tuple[str, ...], Place] = {}
        self._count = 0

    def fresh(self) -> Place:
        """Return a folder without a server."""
        self._count += 1
        folder = self._folder / f"place-{self._count}"
        folder.mkdir()
        return Place(folder)

    def with_server(self, command: str, env: Mapping[str, str] = BASE_INSTALL) -> Place:
        key = (command, *env)
        if key not in self._servers:
            place = self.fresh()
            self._stack.enter_context(place.background(command, place.folder / "serve.txt", env))
            self._servers[key] = place
        return self._servers[key]


def run_example(places: Places, name: str, expected: str, address: str = ADDRESS) -> None:
    """Run the commands of an example's header; their output must be ``expected``, in which ``…`` is any text.

    ``address`` replaces the store that the header names."""
    header = read_header(EXAMPLES / name)
    commands = [command.replace(ADDRESS, address) for command in header.commands if "pip install" not in command]
    env = BASE_INSTALL if len(commands) == len(header.commands) else {}
    for program in PROGRAMS:
        used = any(re.search(rf"\b{program}\b", text) for text in (*commands, header.needs))
        if used and shutil.which(program) is None:
            pytest.skip(f"there is no {program} on this machine")
    [server] = [command.removesuffix(" &") for command in commands if command.startswith("yirangmq serve")] or [""]
    if address != ADDRESS:
        server = "yirangmq serve"
    place = places.with_server(server, env) if server else places.fresh()
    outputs: list[Path] = []
    said = ""
    with ExitStack() as stack:
        for command in commands:
            if command.startswith("yirangmq serve"):
                continue
            if command.endswith("&"):
                outputs.append(place.folder / f"{name}-{len(outputs)}.txt")
                stack.enter_context(place.background(command.removesuffix("&").strip(), outputs[-1], env))
            else:
                said += place.run(command, env)
        if outputs:
            until(lambda: is_output(expected, "".join(path.read_text() for path in outputs) + said), what=expected)
        else:
            assert is_output(expected, said), f"\n{said}\nis not\n\n{expected}"


def is_output(expected: str, text: str) -> bool:
    pattern = ".*?".join(map(re.escape, expected.split("…")))
    return re.fullmatch(pattern, text, re.DOTALL) is not None
