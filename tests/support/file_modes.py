"""``python -m tests.support.file_modes COMMAND …`` is ``yirangmq COMMAND …`` with a umask of 000. It notes every file,
folder and socket that has a loose mode at the moment it is made, before the program can change it.

Python's calls are seen here; SQLite's own files are found by walking the folder while they are there."""

import builtins
import io
import os
import socket
import stat
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from yirangmq.cli.main import run

LOOSE = 0o077


def watch(root: Path, note: Callable[[str], None]) -> None:
    """From now on, of what is made below ``root``."""
    inside = str(root)

    def seen(call: Callable[..., Any], path: Any) -> Callable[..., Any]:
        """``path`` of the call's arguments."""

        def watched(*values: Any, **more: Any) -> Any:
            name = path(*values, **more)
            name = str(Path(os.fsdecode(name)).absolute()) if isinstance(name, str | bytes | os.PathLike) else ""
            is_new = name.startswith(inside) and not os.path.lexists(name)
            result = call(*values, **more)
            if is_new and os.path.lexists(name):
                mode = stat.S_IMODE(os.lstat(name).st_mode)
                if mode & LOOSE:
                    note(f"{mode:04o} {name}")
            return result

        return watched

    def first(path: Any, *_: Any, **__: Any) -> Any:
        return path

    os.open = seen(os.open, first)
    os.mkdir = seen(os.mkdir, first)
    io.open = builtins.open = seen(builtins.open, first)

    class Socket(socket.socket):
        bind = seen(socket.socket.bind, lambda self, address: address)

    socket.socket = Socket  # type: ignore[misc]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def loose_in(folder: Path) -> list[str]:
    """What others may reach now; links and what vanishes meanwhile are left out."""
    found = []
    for path in (folder, *folder.rglob("*")):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISLNK(mode) and mode & LOOSE:
            found.append(f"{stat.S_IMODE(mode):04o} {path}")
    return found


def _note(log: int, line: str) -> None:
    os.write(log, f"{line}\n".encode())


if __name__ == "__main__":
    log = os.open(os.environ["MODES_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.umask(0)
    os.umask = lambda mask: 0  # a server sets one of its own, which would hide what is to be seen here
    watch(Path(os.environ["MODES_ROOT"]), partial(_note, log))
    sys.exit(run(sys.argv[1:]))
