"""Parts of a store that other users may reach: for ``check``, ``repair`` and ``health``.

Knows: which files and folders a store is made of. Does not know: who should use it; ``fsio.permissions`` does."""

import stat
from pathlib import Path

from yirangmq.core.ports import Finding
from yirangmq.fsio.permissions import access_in, loose
from yirangmq.stores.holder import lock_path

KIND = "permissions"
BESIDE = ("", "-wal", "-shm", "-redo", ".lock")


def parts_of(url: str) -> list[Path]:
    """What others must not reach. A folder that holds a SQLite file belongs to the store if a server uses it as its
    data folder; any other may be a person's own."""
    scheme, _, place = url.partition(":")
    if scheme == "files" and place:
        return [Path(place).absolute()]
    if scheme != "sqlite" or not place:
        return []
    path, lock = Path(place).absolute(), lock_path(url)
    folder = [path.parent] if lock is not None and lock.exists() else []
    return [*folder, *(one for end in BESIDE if (one := Path(f"{path}{end}")).exists())]


def loose_parts(url: str, *, repair: bool = False) -> list[Finding]:
    """``repair``: take the access away from others."""
    found = []
    for part in parts_of(url):
        text = loose(part)
        if text:
            found.append(Finding(KIND, str(part), text, repair and _tighten(part)))
    return found


def _tighten(part: Path) -> bool:
    try:
        access = access_in(part if part.is_dir() else part.parent)
        wanted = access.folder if part.is_dir() else access.file
        part.chmod(stat.S_IMODE(part.stat().st_mode) & wanted)
    except OSError:
        return False
    return True
