"""Modes of new files and folders: for the owner alone, or shared with a group.

The system call that creates the file sets its mode, so that other users cannot open it at any moment. The umask can
only tighten the mode; for files shared with a group that is undone.

A folder with the set-group-ID bit and access for its group, but no write access for others (2770), is shared. New files
in it get mode 0660 and new folders 2770. In any other folder they get 0600 and 0700, unless the server's setting
``file_access`` is ``group``. Existing files and folders are never changed; ``describe_wide_mode`` reports the ones that
other users can reach."""

import contextlib
import os
import stat
from typing import NamedTuple


class FileModes(NamedTuple):
    """Modes of new files and folders."""

    file: int
    folder: int


OWNER = FileModes(0o600, 0o700)
GROUP = FileModes(0o660, 0o2770)
BY_NAME = {"owner": OWNER, "group": GROUP}
SHARED, OTHERS_WRITE = 0o2070, 0o002
default = OWNER
"""Access in folders that are not shared. Set once, at the start of a server (``file_access``)."""


def set_default(access: FileModes) -> None:
    global default
    default = access


def access_in(folder: str | os.PathLike[str]) -> FileModes:
    """Return the access for new files in a folder. If it does not exist, the nearest existing parent decides."""
    if default is GROUP:
        return GROUP
    path = os.path.abspath(folder)
    while True:
        try:
            mode = os.stat(path).st_mode
            return GROUP if mode & SHARED == SHARED and not mode & OTHERS_WRITE else OWNER
        except OSError:
            above = os.path.dirname(path)
            if above == path:
                return OWNER
            path = above


def open_file(path: str | os.PathLike[str], flags: int, access: FileModes | None = None) -> int:
    """Open a file like ``os.open`` and create it if necessary. ``access`` defaults to that of the folder."""
    if access is None:
        access = access_in(os.path.dirname(os.path.abspath(path)))
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, access.file)
    if access is not OWNER:
        _widen(fd, access.file)
    return fd


def _widen(fd: int, mode: int) -> None:
    """Restore the group bits of a new file if the umask cleared them."""
    found = os.fstat(fd)
    if found.st_size == 0 and stat.S_IMODE(found.st_mode) != mode and found.st_uid == os.geteuid():
        os.fchmod(fd, mode)


def make_folder(path: str | os.PathLike[str], access: FileModes | None = None) -> None:
    """Create a folder like ``os.mkdir``. Its parents must exist."""
    if access is None:
        access = access_in(os.path.dirname(os.path.abspath(path)))
    os.mkdir(path, access.folder & 0o777)
    if access is not OWNER and stat.S_IMODE(os.stat(path).st_mode) != access.folder:
        os.chmod(path, access.folder)


def make_folders(path: str | os.PathLike[str], access: FileModes | None = None) -> None:
    """Create a folder and its missing parents. Existing folders are not changed."""
    whole = os.path.abspath(path)
    if not os.path.isdir(whole):
        above = os.path.dirname(whole)
        if above != whole:
            make_folders(above, access)
        with contextlib.suppress(FileExistsError):
            make_folder(whole, access)


def describe_wide_mode(path: str | os.PathLike[str]) -> str:
    """Describe which other users can access a file or folder, and the remedy; "" if its mode is tight enough."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    is_folder = stat.S_ISDIR(found.st_mode)
    access = access_in(path if is_folder else os.path.dirname(os.path.abspath(path)))
    wanted = access.folder if is_folder else access.file
    mode = stat.S_IMODE(found.st_mode)
    if not mode & 0o777 & ~wanted:
        return ""
    who = "other users" if mode & 0o007 & ~wanted else f"group {found.st_gid}"
    what = "change" if mode & 0o022 & ~wanted else "read"
    return f"has mode {mode:04o}, so that {who} may {what} it; run: chmod {wanted:04o} {path}"
