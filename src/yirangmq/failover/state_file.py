"""Durable state of a failover node: its term, and the append-only history of its decisions.

Both files are in one folder. ``term.json`` is replaced as a whole and is on disk before the term is used. A term file
that cannot be read raises ``StoreDamaged``: a node that forgot its term could become active in a term of its peer.

``history.jsonl`` has one JSON document per line with the evidence of a decision. Each line is synced when it is
appended, and never changed. Readers skip a torn tail left by a power cut, and the next append begins on a new
line."""

import os
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from yirangmq.core.errors import BadInput, StoreDamaged, StoreError
from yirangmq.format.json_codec import dumps, loads
from yirangmq.fsio.atomic_file import replace_file, sync_folder
from yirangmq.fsio.permissions import make_folders, open_file

TERM = "term.json"
HISTORY = "history.jsonl"
MAX_LINE_BYTES = 64 * 1024


class FailoverStateFolder:
    """State folder of a failover node: term file and decision history."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            make_folders(folder)
        except OSError as error:
            raise StoreError(f"{folder} cannot be made: {error.strerror}") from None

    # -- the term -------------------------------------------------------------------------------------------------

    def term(self) -> int:
        """Return the highest term that this node has known; 0 if there is no file.

        A file that cannot be read raises ``StoreDamaged``: a node that forgot its term could become active in a term of
        its peer."""
        path = self.folder / TERM
        try:
            found = loads(path.read_bytes())["term"]
        except FileNotFoundError:
            return 0
        except (OSError, BadInput, KeyError, TypeError) as error:
            raise StoreDamaged(f'{path} cannot be read ({error}); write {{"term": N}} with N from the peer') from None
        if type(found) is not int or found < 0:
            raise StoreDamaged(f'{path}: {found!r} is not a term; write {{"term": N}} with N from the peer')
        return found

    def save(self, term: int) -> None:
        """Write the term. It is on disk when this returns."""
        replace_file(self.folder / TERM, dumps({"term": term}) + b"\n")

    # -- the history ----------------------------------------------------------------------------------------------

    def append_history(self, event: str, about: Mapping[str, Any]) -> dict[str, Any]:
        """Append an entry to the history and return it. It is on disk when this returns."""
        line = {"at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z", "event": event, **about}
        with os.fdopen(open_file(self.folder / HISTORY, os.O_RDWR | os.O_APPEND), "a+b") as file:
            size = file.seek(0, os.SEEK_END)
            is_new = size == 0
            is_torn = not is_new and os.pread(file.fileno(), 1, size - 1) != b"\n"
            file.write((b"\n" if is_torn else b"") + dumps(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(self.folder)
        return line

    def history(self, limit: int) -> list[dict[str, Any]]:
        return read_history(self.folder, limit)


def read_history(folder: Path, limit: int) -> list[dict[str, Any]]:
    """Return the latest ``limit`` entries, oldest first. A torn line, left by a power cut, is skipped."""
    last: deque[dict[str, Any]] = deque(maxlen=limit)
    try:
        with (folder / HISTORY).open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                try:
                    last.append(loads(line))
                except BadInput:
                    continue
    except FileNotFoundError:
        pass
    return list(last)
