"""Diagnosis of an address that cannot be listened at: the setting, the process that has it, the remedy.

Linux says most: the process is found through ``/proc/net`` and the open files of ``/proc/PID/fd``, or at a unix socket
by its peer credentials. Of a process only its number and the program's name are shown, because its command line may
hold secrets."""

import contextlib
import errno
import os
import socket
import struct
from pathlib import Path

from yirangmq.core.errors import CannotListen

PROC = Path("/proc")
TABLES = {socket.SOCK_STREAM: ("tcp", "0A"), socket.SOCK_DGRAM: ("udp", "07")}
"""Where the system lists sockets of a kind, and its mark of those that wait for whoever comes."""
LOCAL, STATE, INODE = 1, 3, 9
"""Columns of these lists."""
CREDENTIALS = struct.Struct("3i")
"""Process, user and group."""
SOMEBODY = "another program"
NEEDED = frozenset({"pair_listen", "cluster_listen"})
"""Settings that cannot be off."""
LOWEST_FREE_PORT = 1024
FIRST_WORDS = 4
"""Of a command line, among which the name of its program stands: ``nice python -m yirangmq``."""


def cannot_listen(
    setting: str, address: tuple[str, int], error: OSError, kind: socket.SocketKind = socket.SOCK_STREAM
) -> CannotListen:
    host, port = address
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return in_use(setting, place, who_has(port, kind), "HOST:PORT")
    hint = ""
    if error.errno == errno.EADDRNOTAVAIL:
        hint = "; this machine has no such address"
    elif error.errno in (errno.EACCES, errno.EPERM) and port < LOWEST_FREE_PORT:
        hint = f"; a port below {LOWEST_FREE_PORT} needs rights that this process does not have"
    return CannotListen(f"{place}: {error.strerror or error}{hint}; {_ways(setting, 'HOST:PORT')}", field=setting)


def in_use(setting: str, place: str, who: str, form: str) -> CannotListen:
    return CannotListen(f"{place} is in use by {who}; stop it, or {_ways(setting, form)}", field=setting)


def _ways(setting: str, form: str) -> str:
    flag = f"--{setting.replace('_', '-')}"
    return f"choose another with {flag} {form}" + ("" if setting in NEEDED else f", or {flag} off")


def who_has(port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> str:
    """Who listens at a port of this machine, as far as this process may know."""
    marks = {f"socket:[{inode}]" for inode in _inodes(port, *TABLES[kind])}
    for process in PROC.glob("[0-9]*") if marks else ():
        with contextlib.suppress(OSError):
            if any(str(file.readlink()) in marks for file in (process / "fd").iterdir()):
                return named(int(process.name))
    return f"{SOMEBODY} (`ss -lntup`, as root, says which)"


def _inodes(port: int, table: str, state: str) -> list[str]:
    found = []
    for path in (PROC / "net" / table, PROC / "net" / f"{table}6"):
        with contextlib.suppress(OSError):
            for line in path.read_text().splitlines()[1:]:
                words = line.split()
                if words[STATE] == state and int(words[LOCAL].rpartition(":")[2], 16) == port:
                    found.append(words[INODE])
    return found


def who_listens(path: Path) -> str | None:
    """Who takes connections at a unix socket; None if nobody does, and it was left behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # somebody is there, and busy
            return SOMEBODY
        except OSError:
            return None
        try:
            given = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        except (OSError, AttributeError):
            return SOMEBODY
    return named(CREDENTIALS.unpack(given)[0])


def named(pid: int) -> str:
    """Never more of its command line than whether it is one of ours: there may be secrets in it."""
    process = PROC / str(pid)
    try:
        words = os.fsdecode((process / "cmdline").read_bytes()).split("\0")
        is_ours = "yirangmq" in {Path(word).name for word in words[:FIRST_WORDS]}
        name = "yirangmq" if is_ours else (process / "comm").read_text().strip()
    except OSError:
        return f"process {pid}" if pid > 0 else SOMEBODY
    return f"process {pid} ({name})"
