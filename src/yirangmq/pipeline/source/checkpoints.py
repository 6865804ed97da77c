"""Ownership of checkpoint folders: a single query per checkpoint.

The owner is written into the folder: machine, process and the process's start time. While the owner lives, another
query is refused before any data moves. Spark by itself notices only after both have worked for a while. Folders that
are not on this machine are left alone. An owner on another machine does not count."""

import fcntl
import json
import os
import re
import socket
from urllib.parse import unquote, urlsplit

from yirangmq.pipeline.source.errors import SourceError

NAME = "yirangmq.owner"


def claim(checkpoint: str | None) -> None:
    """This process, or the Java process it works for, has the checkpoint from now on, for as long as it lives."""
    folder = local_folder(checkpoint or "")
    process = owner_of(os.getpid())
    if folder is None or process is None:
        return
    try:
        handle = os.open(os.path.join(folder, NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return  # not there yet, or not ours to write: Spark says so itself
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        known = _read(os.pread(handle, 4096, 0))
        if known is not None and known != process and is_alive(known):
            raise SourceError(
                f"the checkpoint {folder} is in use by another query, in process {known[1]}; two queries on one "
                "checkpoint would spoil it: stop the other one, or give this one a checkpoint of its own"
            )
        if known != process:
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(process).encode(), 0)
    finally:
        os.close(handle)


def release(folder: str) -> None:
    """Its query has ended, and the Java process that this one began may live on."""
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
    """As a path of this machine; None: it is somewhere else."""
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", checkpoint):
        return checkpoint if os.path.isdir(checkpoint) else None
    parts = urlsplit(checkpoint)
    path = unquote(parts.path)
    return path if parts.scheme == "file" and os.path.isdir(path) else None


Owner = tuple[str, int, int]
"""Machine, process id, when the process began: an id is given again, the two together are not."""


def owner_of(process: int) -> Owner | None:
    """The Java process above this one, or the process itself; None where that cannot be known."""
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
    """Of another machine nobody can say; a checkpoint that moved is not locked for that."""
    machine, process, begun = owner
    found = _stat(process)
    return machine == socket.gethostname() and found is not None and found[2] == begun


def _stat(process: int) -> tuple[str, int, int] | None:
    """Name, parent, when it began."""
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
