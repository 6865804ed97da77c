"""Notes beside the messages: a text file each, in ``.notes``, whose path is its key. ``~`` stands in no key, so that a
note and a folder of notes may have the same name.

Knows: paths and texts. Does not know: who keeps them, what for."""

import os

from yirangmq.core.errors import StoreError
from yirangmq.fsio.disk import read_bytes

FOLDER = ".notes"
TEMP = ".temp"
"""Where a note is written before it gets its name."""
SUFFIX = "~.txt"


def note_path(root: str, key: str) -> str:
    return f"{root}/{FOLDER}/{key}{SUFFIX}"


def read_note(root: str, key: str) -> str | None:
    text = read_bytes(note_path(root, key))
    try:
        return None if text is None else text.decode()
    except UnicodeDecodeError as error:
        raise StoreError(f"{note_path(root, key)} is not UTF-8 text: {error}") from None


def note_keys(root: str, prefix: str) -> list[str]:
    """Those that begin so."""
    folder = f"{root}/{FOLDER}"
    found = []
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "."]
        for name in names:
            key = os.path.relpath(f"{path}/{name}", folder)
            if name.endswith(SUFFIX) and key.startswith(prefix):
                found.append(key.removesuffix(SUFFIX))
    return found


def unfinished(root: str) -> list[str]:
    """Files of notes that were never finished."""
    try:
        return sorted(os.listdir(f"{root}/{FOLDER}/{TEMP}"))
    except FileNotFoundError:
        return []
