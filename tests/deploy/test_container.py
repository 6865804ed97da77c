"""``deploy/Containerfile``: what it installs, as whom the server runs, and how its health is asked.

No container engine is needed: the instructions are read, and the steps that install are run in a folder."""

import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.server_process import Daemon, run_command
from tests.support.source_tree import ROOT, source_files

FILE = ROOT / "deploy/Containerfile"


def instructions() -> list[tuple[str, str]]:
    """Return the words and arguments of the file; lines that end in a backslash are joined."""
    text = re.sub(r"\\\n\s*", "", FILE.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, arguments) for word, _, arguments in (line.partition(" ") for line in lines)]


def arguments_of(word: str) -> list[str]:
    return [arguments for given, arguments in instructions() if given == word]


def environment_of() -> dict[str, str]:
    """Return the variables that the ENV instructions set, but for PATH."""
    pairs = [pair.partition("=") for line in arguments_of("ENV") for pair in line.split()]
    return {name: value for name, _, value in pairs if name != "PATH"}


def test_container_installs_only_packages_whose_hashes_are_locked() -> None:
    installs = [line for line in arguments_of("RUN") for _ in range(line.count("pip install"))]
    assert len(installs) == 3
    assert [
        line for line in installs if "--require-hashes -r requirements" not in line and "--no-index" not in line
    ] == []


def test_container_copies_files_that_exist_and_are_in_the_build_context() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert patterns[0] == "*"
    let_through = {line.removeprefix("!") for line in patterns if line.startswith("!")}
    copied = {name for line in arguments_of("COPY") if "--from" not in line for name in line.split()[:-1]}
    assert copied == let_through
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert any(fnmatch.fnmatch("src/yirangmq/core/__pycache__", line) for line in patterns[1:])


def test_container_copies_everything_that_the_wheel_is_made_of() -> None:
    """What is missing in the build context would silently be missing in the wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    target = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    sources = {path.partition("/")[0] for path in [*target.get("packages", []), *target.get("only-include", [])]}
    needed = {*sources, project["project"]["readme"], *project["project"]["license-files"], "pyproject.toml"}
    copied = {name for line in arguments_of("COPY") if "--from" not in line for name in line.split()[:-1]}
    assert sources
    assert needed - copied == set()


def test_container_server_runs_as_a_user_without_privileges() -> None:
    [user] = arguments_of("USER")
    final = instructions()[[word for word, _ in instructions()].index("USER", 1) :]
    assert user == "yirangmq"
    assert any(f"useradd --system --uid 10411 --home-dir /data {user}" in line for line in arguments_of("RUN"))
    assert [word for word, _ in final if word in ("RUN", "COPY", "ADD")] == []


@pytest.mark.process
def test_container_health_check_and_stop_signal_suit_the_server(tmp_path: Path) -> None:
    """The server gets the image's settings, on ports that are free here and with a folder of the test as its volume."""
    [signal_name], [volume], [check] = arguments_of("STOPSIGNAL"), arguments_of("VOLUME"), arguments_of("HEALTHCHECK")
    settings = {name: value.replace(volume, str(tmp_path)) for name, value in environment_of().items()}
    settings |= {name: re.sub(r":\d+$", ":0", settings[name]) for name in ("YIRANGMQ_TCP", "YIRANGMQ_HTTP")}
    health = json.loads(check[check.index("[") :].replace(volume, str(tmp_path)))
    server = Daemon(tmp_path, data="")
    try:
        server.start(**settings, YIRANGMQ_TOKEN="a-token-of-the-test-0123456789", YIRANGMQ_INSECURE="true")
        assert run_command(tmp_path, *health[1:]).returncode == 0
        assert server.stop(signal.Signals[signal_name]) == 0
        assert run_command(tmp_path, *health[1:]).returncode != 0
    finally:
        server.kill()


@pytest.mark.slow
def test_container_build_steps_install_the_locked_versions_and_a_program_that_runs(tmp_path: Path) -> None:
    """The RUN instructions of the first stage, with its folders below the test's own."""
    source = tmp_path / "src"
    for name in [name for line in arguments_of("COPY") if "--from" not in line for name in line.split()[:-1]]:
        for file in source_files():
            if file == name or file.startswith(f"{name}/"):
                (source / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, source / file)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for step in [line for line in arguments_of("RUN") if "useradd" not in line]:
        command = step.replace("/opt/", f"{tmp_path}/opt/").replace("--no-cache-dir ", "")
        subprocess.run(["sh", "-ec", command], cwd=source, env={**os.environ, "PATH": path}, check=True)
    program = tmp_path / "opt/yirangmq/bin"
    listed = subprocess.run([program / "pip", "freeze"], capture_output=True, text=True, check=True).stdout
    installed = {line.lower().replace("_", "-") for line in listed.splitlines() if "==" in line}
    locked = re.findall(r"^[a-z][\w.-]*==\S+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert installed == set(locked)
    subprocess.run([program / "yirangmq", "demo"], cwd=tmp_path, capture_output=True, check=True)
