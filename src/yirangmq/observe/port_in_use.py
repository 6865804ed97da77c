"""Diagnosis of a failed listen: the setting, the process that uses the address, the remedy.

On Linux the process is found through ``/proc/net`` and the open files in ``/proc/PID/fd``, or through the peer
credentials of a unix socket. Only its process id and program name are shown, because its command line may contain
secrets."""

import contextlib
import errno
import os
import socket
import struct
from pathlib import Path

from yirangmq.core.errors import CannotListen

PROC = Path("/proc")
TABLES = {socket.SOCK_STREAM: ("tcp", "0A"), socket.SOCK_DGRAM: ("udp", "07")}
"""Per socket type, the file in ``/proc/net`` and the state code of a listening or bound socket."""
LOCAL, STATE, INODE = 1, 3, 9
"""Column numbers in these files: local address, state, inode."""
CREDENTIALS = struct.Struct("3i")
"""Layout of ``SO_PEERCRED``: process, user and group id."""
UNKNOWN_PROCESS = "another program"
REQUIRED_SETTINGS = frozenset({"pair_listen", "cluster_listen"})
"""Settings that cannot be set to ``off``."""
LOWEST_FREE_PORT = 1024
FIRST_WORDS = 4
"""Number of leading words of a command line that are searched for the program, as in ``nice python -m yirangmq``."""


def cannot_listen(
    setting: str, address: tuple[str, int], error: OSError, kind: socket.SocketKind = socket.SOCK_STREAM
) -> CannotListen:
    host, port = address
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return in_use(setting, place, process_on_port(port, kind), "HOST:PORT")
    hint = ""
    if error.errno == errno.EADDRNOTAVAIL:
        hint = "; this machine has no such address"
    elif error.errno in (errno.EACCES, errno.EPERM) and port < LOWEST_FREE_PORT:
        hint = f"; a port below {LOWEST_FREE_PORT} needs rights that this process does not have"
    return CannotListen(f"{place}: {error.strerror or error}{hint}; {_remedies(setting, 'HOST:PORT')}", field=setting)


def in_use(setting: str, place: str, who: str, form: str) -> CannotListen:
    return CannotListen(f"{place} is in use by {who}; stop it, or {_remedies(setting, form)}", field=setting)


def _remedies(setting: str, form: str) -> str:
    flag = f"--{setting.replace('_', '-')}"
    return f"choose another with {flag} {form}" + ("" if setting in REQUIRED_SETTINGS else f", or {flag} off")


def process_on_port(port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> str:
    """Describe the process that listens at a port of this machine, if this process has the rights to find it."""
    marks = {f"socket:[{inode}]" for inode in _inodes(port, *TABLES[kind])}
    for process in PROC.glob("[0-9]*") if marks else ():
        with contextlib.suppress(OSError):
            if any(str(file.readlink()) in marks for file in (process / "fd").iterdir()):
                return describe_process(int(process.name))
    return f"{UNKNOWN_PROCESS} (`ss -lntup`, as root, says which)"


def _inodes(port: int, table: str, state: str) -> list[str]:
    found = []
    for path in (PROC / "net" / table, PROC / "net" / f"{table}6"):
        with contextlib.suppress(OSError):
            for line in path.read_text().splitlines()[1:]:
                words = line.split()
                if words[STATE] == state and int(words[LOCAL].rpartition(":")[2], 16) == port:
                    found.append(words[INODE])
    return found


def process_on_socket(path: Path) -> str | None:
    """Describe the process that listens at a unix socket; None if the socket file is stale."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # a process listens, and its backlog is full
            return UNKNOWN_PROCESS
        except OSError:
            return None
        try:
            given = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        except (OSError, AttributeError):
            return UNKNOWN_PROCESS
    return describe_process(CREDENTIALS.unpack(given)[0])


def describe_process(pid: int) -> str:
    """Describe a process by id and program name. The rest of its command line is not shown: it may contain secrets."""
    process = PROC / str(pid)
    try:
        words = os.fsdecode((process / "cmdline").read_bytes()).split("\0")
        is_ours = "yirangmq" in {Path(word).name for word in words[:FIRST_WORDS]}
        name = "yirangmq" if is_ours else (process / "comm").read_text().strip()
    except OSError:
        return f"process {pid}" if pid > 0 else UNKNOWN_PROCESS
    return f"process {pid} ({name})"
