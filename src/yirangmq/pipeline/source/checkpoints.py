"""Ownership of checkpoint folders: a single query per checkpoint.

The owner is written into the folder: machine, process and the process's start time. While the owner is alive, another
query is refused before any data moves. Without this check Spark notices only after both queries have run for a while.
Folders that are not on this machine are not checked. An owner on another machine does not count."""

import fcntl
import json
import os
import re
import socket
from urllib.parse import unquote, urlsplit

from yirangmq.pipeline.source.errors import SourceError

NAME = "yirangmq.owner"


def claim(checkpoint: str | None) -> None:
    """Claim the checkpoint for this process, or for the Java process above it, for as long as that process lives.

    ``SourceError`` if the owner is another live process."""
    folder = local_folder(checkpoint or "")
    process = owner_of(os.getpid())
    if folder is None or process is None:
        return
    try:
        handle = os.open(os.path.join(folder, NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return  # missing yet, or not writable: Spark reports it
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        known = _read(os.pread(handle, 4096, 0))
        if known is not None and known != process and is_alive(known):
            raise SourceError(
                f"the checkpoint {folder} is in use by another query, in process {known[1]}; two queries on one "
                "checkpoint would damage it: stop the other one, or give this one its own checkpoint"
            )
        if known != process:
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(process).encode(), 0)
    finally:
        os.close(handle)


def release(folder: str) -> None:
    """Remove the claim after the query has ended. The Java process that this process started may live on."""
    path = os.path.join(folder, NAME)
    try:
        with open(path, "rb") as file:
            known = _read(file.read())
    except OSError:
        return
    found = _stat(known[1]) if known is not None and is_alive(known) else None
    if found is not None and found[1] == os.getpid():
        os.unlink(path)


def local_folder(checkpoint: str) -> str | None:
    """Return the path of the folder on this machine, or None if it is not on this machine."""
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", checkpoint):
        return checkpoint if os.path.isdir(checkpoint) else None
    parts = urlsplit(checkpoint)
    path = unquote(parts.path)
    return path if parts.scheme == "file" and os.path.isdir(path) else None


Owner = tuple[str, int, int]
"""Machine, process id and start time of the process. The system reuses process ids; id and start time together are
unique."""


def owner_of(process: int) -> Owner | None:
    """Return the Java process above this process, or the process itself. None if ``/proc`` does not show it."""
    here = process
    for _ in range(10):
        found = _stat(here)
        if found is None:
            break
        name, parent, begun = found
        if name == "java":
            return socket.gethostname(), here, begun
        here = parent
    own = _stat(process)
    return None if own is None else (socket.gethostname(), process, own[2])


def is_alive(owner: Owner) -> bool:
    """Return whether the owner lives on this machine.

    An owner on another machine cannot be checked and counts as dead, so that a checkpoint that was moved is not
    locked."""
    machine, process, begun = owner
    found = _stat(process)
    return machine == socket.gethostname() and found is not None and found[2] == begun


def _stat(process: int) -> tuple[str, int, int] | None:
    """Return name, parent and start time of a process, or None if it has ended."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    return (name, int(rest[1]), int(rest[19])) if rest[0] not in "ZX" else None


def _read(data: bytes) -> Owner | None:
    try:
        machine, process, begun = json.loads(data)
        return str(machine), int(process), int(begun)
    except (ValueError, TypeError):
        return None
