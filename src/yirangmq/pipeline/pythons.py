"""The Python that Spark starts for its tasks on this machine: the one that runs here, by way of a small script.

Spark puts its own Python sources first on the path, as a zip of which nothing is kept compiled: each process that it
starts, and each stream starts one, would compile them anew, which takes three times as long as to load those that are
installed, and Spark waits ten seconds for it. The script leaves the zip out."""

import hashlib
import os
import shlex
import sys
from pathlib import Path

SCRIPT = """#!/bin/sh
case "$PYTHONPATH" in */pyspark.zip:*) PYTHONPATH="${{PYTHONPATH#*/pyspark.zip:}}" ;; esac
export PYTHONPATH
exec {python} "$@"
"""


def quick_python(cache: Path) -> str:
    """Its path; the Python that runs here where no script can be kept."""
    text = SCRIPT.format(python=shlex.quote(sys.executable))
    path = cache / f"python-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    try:
        if not path.exists():
            cache.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_text(text)
            fresh.chmod(0o755)
            fresh.replace(path)
    except OSError:
        return sys.executable
    return str(path) if os.access(path, os.X_OK) else sys.executable
