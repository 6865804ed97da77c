"""Programs from Debian's packages, unpacked into a folder: nothing is installed, no service is set up, and no root is
needed unless apt knows no packages yet."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def check_tools(what: str) -> None:
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is needed to fetch {what}: this comparison runs on Debian and Ubuntu")


def would_install(*words: str) -> list[str] | None:
    """What apt would install for these packages, or flags and packages; None if it does not know them."""
    command = ["apt-get", "install", "--simulate", "--no-install-recommends", *words]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    return re.findall(r"^Inst (\S+)", done.stdout, re.MULTILINE) if done.returncode == 0 else None


def known(ask: Callable[[], list[str] | None], what: str) -> list[str]:
    """The answer, after an update of what apt knows if need be."""
    found = ask()
    if found is None and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        found = ask()
    if found is None:
        sys.exit(f"apt knows no package {what}: run 'apt-get update' as root, then try again")
    return found


def unpack(names: Sequence[str], root: Path) -> None:
    """Into ``root/root``; what was in ``root`` goes."""
    shutil.rmtree(root, ignore_errors=True)
    archives = root / "archives"
    archives.mkdir(parents=True)
    archives.chmod(0o777)  # apt downloads as a user of its own when root runs it
    subprocess.run(["apt-get", "download", "-qq", *names], cwd=archives, check=True)
    for archive in sorted(archives.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(archive), str(root / "root")], check=True)
    shutil.rmtree(archives)
