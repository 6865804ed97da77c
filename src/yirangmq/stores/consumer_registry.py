"""Consumer registry in a folder beside a store that several processes open directly.

``queue.db.consumers/ID.json`` is the consumer's last heartbeat. ``ID.wish`` is an operator's request to that process;
the consumer receives it with its next heartbeat.

Files are renamed into place and never synced: a lost file is written again within seconds. An unchanged heartbeat is
rewritten at most every 4 s. The folder is created with the first file and removed with the last."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yirangmq.core import validation
from yirangmq.core.consumer_registry import (
    ConsumerEntry,
    ConsumerState,
    check_wish,
    is_forgotten,
    merge_report,
    read_entry,
    show_entry,
)
from yirangmq.core.errors import BadInput, NotFound, StoreError
from yirangmq.core.ports import Clock
from yirangmq.format.json_codec import dumps, loads
from yirangmq.fsio.permissions import make_folder, open_file

REFRESH_MS = 4_000
"""Interval in ms at which an unchanged card is rewritten; well below the time after which a consumer is silent."""


class ConsumerRegistryFolder:
    """Consumer registry (``core.consumer_registry.ConsumerRegistry``) in a folder.

    The folder is created with the first card and removed with the last."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._written: dict[str, ConsumerEntry] = {}

    def report(self, values: Mapping[str, Any]) -> str:
        card = read_entry(values, self._clock.now_ms())
        try:
            if card.state is ConsumerState.STOPPED:
                self._remove(card.id)
                return ""
            card = merge_report(self._read_request(card.id), card)
            if not card.wish:
                self._path(card.id, "wish").unlink(missing_ok=True)
            self._write_if_changed(card)
        except OSError as error:
            raise StoreError(f"{self._folder} cannot be written: {error.strerror}") from None
        return card.wish

    def entries(self) -> list[dict[str, Any]]:
        now = self._clock.now_ms()
        found: list[dict[str, Any]] = []
        for path in sorted(self._folder.glob("*.json")):
            card = self._read(path)
            if card is None:
                continue
            if is_forgotten(card, now):
                with contextlib.suppress(OSError):  # another process with write permission removes it
                    self._remove(card.id)
                continue
            wished = self._read_request(card.id)
            found.append(show_entry(card if wished is None else merge_report(wished, card), now))
        return found

    def wish(self, id: str, wish: str) -> dict[str, Any]:
        path = self._path(validation.check_consumer(id), "json")
        check_wish(wish)
        card = self._read(path)
        if card is None:
            raise NotFound(f"there is no consumer {id!r} here", field="consumerId")
        card = card._replace(wish=wish)
        try:
            self._write(self._path(id, "wish"), _document(card))
        except OSError as error:
            raise StoreError(f"{self._folder} cannot be written: {error.strerror}") from None
        return show_entry(card, self._clock.now_ms())

    # -- files ----------------------------------------------------------------------------------------------------

    def _path(self, id: str, kind: str) -> Path:
        return self._folder / f"{id}.{kind}"

    def _read_request(self, id: str) -> ConsumerEntry | None:
        """Read an operator's request with the card it was made for, which identifies the process."""
        return self._read(self._path(id, "wish"))

    def _read(self, path: Path) -> ConsumerEntry | None:
        try:
            document = loads(path.read_bytes())
            card = read_entry(document, int(document["seenAt"]))
            wish = document.get("wish", "")
            return card._replace(wish=check_wish(wish) if wish else "")
        except (OSError, BadInput, KeyError, TypeError, ValueError):
            return None

    def _write_if_changed(self, card: ConsumerEntry) -> None:
        before = self._written.get(card.id)
        is_fresh = before is not None and card.seen_at - before.seen_at < REFRESH_MS
        if before is not None and is_fresh and before == card._replace(seen_at=before.seen_at):
            return
        with contextlib.suppress(FileExistsError):
            make_folder(self._folder)
        self._write(self._path(card.id, "json"), _document(card._replace(wish="")))
        self._written[card.id] = card

    def _write(self, path: Path, document: dict[str, Any]) -> None:
        draft = self._folder / f".{path.name}.{os.getpid()}"
        fd = open_file(draft, os.O_WRONLY | os.O_TRUNC)
        with os.fdopen(fd, "wb") as file:
            file.write(dumps(document))
        draft.replace(path)

    def _remove(self, id: str) -> None:
        self._written.pop(id, None)
        for kind in ("json", "wish"):
            self._path(id, kind).unlink(missing_ok=True)
        try:
            self._folder.rmdir()
        except OSError:
            pass  # other files are still there, or the folder does not exist


def _document(card: ConsumerEntry) -> dict[str, Any]:
    return {
        "consumerId": card.id,
        "host": card.host,
        "pid": card.pid,
        "queues": list(card.queues),
        "startedAt": card.started_at,
        "state": card.state.value,
        "inWork": card.in_work,
        "done": card.done,
        "failed": card.failed,
        "lost": card.lost,
        "stuck": card.stuck,
        "seenAt": card.seen_at,
        "wish": card.wish,
    }
