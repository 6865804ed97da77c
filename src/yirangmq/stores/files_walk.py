"""Every file of a queue, folder by folder. Knows: the layout. Does not know: what names mean."""

import os
from collections.abc import Iterator

from yirangmq.format.filenames import DEPTH
from yirangmq.fsio.disk import listdir
from yirangmq.stores.files_keys import KEY_FOLDER as KEYS
from yirangmq.stores.files_spares import SPARE_FOLDER as SPARES

FAILURES = "meta/failures"
TEMP = "meta/temp"


def walk(folder: str) -> Iterator[tuple[str, str, list[str]]]:
    """Of the queue in this folder: each state's folder, the folder below it, and the names of the files there."""
    for top, depth in DEPTH.items():
        for below, names in _at_depth(f"{folder}/{top}", "", depth):
            yield top, below, names


def strays(folder: str) -> Iterator[str]:
    """Files that lie too high for what they could be, below the queue's folder. In an inbox itself that is fine: they
    were dropped there."""
    for top, depth in DEPTH.items():
        for level in range(depth):
            if (top, level) == ("inbox", 0):
                continue
            for below, names in _at_depth(f"{folder}/{top}", "", level):
                for name in names:
                    if (top, name) != ("archive", "results.jsonl"):
                        yield "/".join(part for part in (top, below, name) if part)


def walk_keys(folder: str) -> Iterator[tuple[str, list[str]]]:
    return _at_depth(f"{folder}/{KEYS}", "", 1)


def walk_failures(folder: str) -> Iterator[tuple[str, list[str]]]:
    return _at_depth(f"{folder}/{FAILURES}", "", 1)


def temps(folder: str) -> list[str]:
    return sorted(listdir(f"{folder}/{TEMP}"))


def spares(folder: str) -> list[str]:
    return sorted(listdir(f"{folder}/{SPARES}"))


def _at_depth(base: str, below: str, depth: int) -> Iterator[tuple[str, list[str]]]:
    folders, names = _entries(f"{base}/{below}" if below else base)
    if depth == 0:
        yield below, names
        return
    for name in folders:
        yield from _at_depth(base, f"{below}/{name}" if below else name, depth - 1)


def _entries(path: str) -> tuple[list[str], list[str]]:
    folders: list[str] = []
    names: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name[0] != ".":
                    (folders if entry.is_dir() else names).append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        pass
    return sorted(folders), sorted(names)


def folder_number(folder: str) -> int:
    """Of a folder that goes by places or numbers; -1: it goes by time."""
    name = os.path.basename(folder)
    by_time = os.path.basename(os.path.dirname(folder)) == "keys"
    return int(name) if len(name) == 10 and name.isdecimal() and not by_time else -1
