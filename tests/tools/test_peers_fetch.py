"""The packages that ``make bench-peers`` unpacks, on a machine where Debian's Redis is installed already."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STATUS = Path("/var/lib/dpkg/status")
REDIS = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")


def shown(package: str) -> str:
    """What apt knows of the newest version of a package; "" if nothing."""
    if shutil.which("apt-cache") is None:
        return ""
    command = ["apt-cache", "show", "--no-all-versions", package]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def test_bench_peers_unpacks_the_package_with_the_program_where_redis_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's redis-server is a link to a program in redis-tools, which apt does not install again by itself."""
    stanzas = [shown(package) for package in REDIS]
    if not all(stanzas) or not STATUS.exists():
        pytest.skip("apt knows no redis-server here: this comparison runs on Debian and Ubuntu")
    installed = [f"{stanza}\nStatus: install ok installed\n" for stanza in stanzas]
    (tmp_path / "status").write_text("\n".join([STATUS.read_text().rstrip() + "\n", *installed]))
    (tmp_path / "apt.conf").write_text(f'Dir::State::status "{tmp_path / "status"}";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    ask = "import peers_fetch; print(*(peers_fetch._packages() or ['unknown']))"
    found = subprocess.run(
        [sys.executable, "-c", ask], cwd=ROOT / "benchmarks", capture_output=True, text=True, check=True
    ).stdout.split()
    if found == ["unknown"]:
        pytest.skip("apt knows no package of the Erlang parts here")
    assert {"redis-server", "redis-tools", "rabbitmq-server"} <= set(found)
    assert "libjemalloc2" not in found, "a library that is installed is used"
