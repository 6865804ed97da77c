"""The brokers we compare with, from Debian's packages, unpacked beside the project: nothing is installed, no service is
set up, and no root is needed unless apt knows no packages yet.

Run as a program it fetches; imported it says where things are."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / ".bench-peers"
WANTED = ("redis-server", "rabbitmq-server")
ERLANG = (
    *("asn1", "base", "crypto", "eldap", "ftp", "inets", "mnesia", "os-mon", "parsetools", "public-key"),
    *("runtime-tools", "snmp", "ssl", "syntax-tools", "tftp", "tools", "xmerl"),
)
"""Named, so that they are unpacked also where they are installed: Erlang does not look in two places."""
ERL = """#!/bin/sh
# Erlang's own starter has its installed place written into it; this one knows where it was unpacked.
export ROOTDIR={erlang} BINDIR={bin} EMU=beam PROGNAME=erl
exec "$BINDIR/erlexec" "$@"
"""


@dataclass(frozen=True, slots=True)
class Packages:
    """Where the programs are, and what they need around them."""

    redis: Path
    rabbitmq: Path
    epmd: Path
    environment: dict[str, str]


NO_PACKAGES = Packages(Path(), Path(), Path(), {})


def find() -> Packages:
    """As unpacked by ``fetch``; a clear word if that has not been done."""
    files = ROOT / "root"
    redis = files / "usr/bin/redis-server"
    rabbitmq = next(files.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"), None)
    epmd = next(files.glob("usr/lib/erlang/erts-*/bin/epmd"), None)
    if not redis.exists() or rabbitmq is None or epmd is None:
        sys.exit(f"Redis and RabbitMQ are not in {ROOT}: run 'make bench-peers', or {sys.argv[0]} --only ours")
    libraries = [*files.glob("usr/lib/*-linux-*"), *files.glob("lib/*-linux-*")]
    environment = {
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "PATH": f"{ROOT / 'bin'}:{epmd.parent}:{os.environ['PATH']}",
    }
    return Packages(redis, rabbitmq, epmd, environment)


def fetch() -> None:
    """Download the packages and what they depend on, and unpack them."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is needed to fetch the brokers: this comparison runs on Debian and Ubuntu")
    names = _missing_packages()
    shutil.rmtree(ROOT, ignore_errors=True)
    archives = ROOT / "archives"
    archives.mkdir(parents=True)
    archives.chmod(0o777)  # apt downloads as a user of its own when root runs it
    subprocess.run(["apt-get", "download", "-qq", *names], cwd=archives, check=True)
    for archive in sorted(archives.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(archive), str(ROOT / "root")], check=True)
    shutil.rmtree(archives)
    _write_starter()
    print(f"Redis and RabbitMQ are in {ROOT}")


def _missing_packages() -> list[str]:
    """What apt would install for them, without installing it."""
    asked = _simulate()
    if asked is None and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        asked = _simulate()
    if asked is None:
        sys.exit("apt knows no package redis-server or rabbitmq-server: run 'apt-get update' as root, then try again")
    return asked


def _simulate() -> list[str] | None:
    names = [*WANTED, *(f"erlang-{part}" for part in ERLANG)]
    command = ["apt-get", "install", "--simulate", "--reinstall", "--no-install-recommends", *names]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    found = re.findall(r"^Inst (\S+)", done.stdout, re.MULTILINE)
    return found if done.returncode == 0 and set(names) <= set(found) else None


def _write_starter() -> None:
    erlexec = next((ROOT / "root").glob("usr/lib/erlang/erts-*/bin/erlexec"))
    starter = ROOT / "bin/erl"
    starter.parent.mkdir()
    starter.write_text(ERL.format(erlang=erlexec.parents[2], bin=erlexec.parent))
    starter.chmod(0o755)


if __name__ == "__main__":
    fetch()
