"""A disk's content as a value: which names there are, and what is in them. Knows: how to lay it out in a folder.
Does not know: how it came about."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

Tree = Mapping[str, bytes | None]
"""Paths below one folder, parents first, to a file's bytes; None is a folder."""


def lay_out(tree: Tree, folder: Path) -> None:
    """Make these files and folders, and nothing else, in an empty folder."""
    for path, content in tree.items():
        place = f"{folder}/{path}"
        if content is None:
            os.mkdir(place)  # noqa: PTH102 — thousands of trees are laid out, and paths as text take half the time
        else:
            with open(place, "xb", buffering=0) as file:  # noqa: PTH123
                file.write(content)


def read_tree(folder: Path) -> dict[str, bytes | None]:
    """What ``lay_out`` would need to make this folder again."""
    found: dict[str, bytes | None] = {}
    for place in sorted(folder.rglob("*")):
        found[place.relative_to(folder).as_posix()] = None if place.is_dir() else place.read_bytes()
    return found


def digest(tree: Tree) -> bytes:
    """The same for the same names and contents, and practically never else."""
    total = hashlib.blake2b(digest_size=16)
    for path in sorted(tree):
        content = tree[path]
        size = -1 if content is None else len(content)
        total.update(f"{path}\0{size}\0".encode(errors="surrogateescape"))
        total.update(content or b"")
    return total.digest()
