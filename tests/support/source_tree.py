"""The files of the project's source: a clone of the repository, or an unpacked sdist."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def source_files() -> list[str]:
    """Return the names of the files that the repository tracks; in an unpacked sdist, those of all its files."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    paths = (path for path in ROOT.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    names = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    return [name for name in names if not name.startswith((".venv", ".tools/", ".pytest_cache/", "PKG-INFO"))]
