"""Looks at a disk that others may change at the same moment: what is not there is nothing, not an error.

Knows: system calls. Does not know: messages."""

import os
import stat


def exists(path: str) -> bool:
    """As ``os.path.exists``, which takes every error for "no": here one that does not say so is raised, lest what
    cannot be seen be taken for gone."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def isdir(path: str) -> bool:
    """As ``os.path.isdir``, with the same care."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def subfolders(path: str) -> list[str]:
    """Names of the folders in a folder; hidden ones left out."""
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.name[0] != "." and entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_bytes(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def ends_whole(path: str) -> bool:
    """Whether a file of lines ends with a whole one; a power cut may have torn the last."""
    try:
        with open(path, "rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return True
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except FileNotFoundError:
        return True


def read_all(fd: int, size: int) -> bytes:
    data = os.read(fd, size)
    while len(data) < size:
        more = os.read(fd, size - len(data))
        if not more:
            break
        data += more
    return data
