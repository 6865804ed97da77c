"""The brokers we compare with, from Debian's packages, unpacked beside the project.

Run as a program it fetches; imported it says where things are."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from debian import check_tools, known, unpack, would_install

ROOT = Path(__file__).resolve().parent.parent / ".bench-peers"
WANTED = ("redis-server", "redis-tools", "rabbitmq-server")
"""Packages with a program that we start. All are named, so that they are unpacked also where they are installed:
Debian's ``redis-server`` is only a link to a program in ``redis-tools``."""
ERLANG = (
    *("asn1", "base", "crypto", "eldap", "ftp", "inets", "mnesia", "os-mon", "parsetools", "public-key"),
    *("runtime-tools", "snmp", "ssl", "syntax-tools", "tftp", "tools", "xmerl"),
)
"""Named for the same reason: Erlang does not look in two places."""
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
    check_tools("the brokers")
    unpack(known(_packages, "redis-server or rabbitmq-server"), ROOT)
    _write_starter()
    find()
    print(f"Redis and RabbitMQ are in {ROOT}")


def _packages() -> list[str] | None:
    names = [*WANTED, *(f"erlang-{part}" for part in ERLANG)]
    found = would_install("--reinstall", *names)
    return found if found is not None and set(names) <= set(found) else None


def _write_starter() -> None:
    erlexec = next((ROOT / "root").glob("usr/lib/erlang/erts-*/bin/erlexec"))
    starter = ROOT / "bin/erl"
    starter.parent.mkdir()
    starter.write_text(ERL.format(erlang=erlexec.parents[2], bin=erlexec.parent))
    starter.chmod(0o755)


if __name__ == "__main__":
    fetch()
