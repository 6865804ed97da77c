"""Import of files that a person or another program drops into ``<queue>/inbox``.

Each file becomes a message, in order of modification time, at most 1000 per call. The commit renames the file into the
queue, so it is either still a dropped file or a message, never both. An invalid file is quarantined with the reason,
but not within 2 s of its last change, because its writer may not have finished it."""

import os
import time
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from yirangmq.core.errors import BadInput, TooLarge
from yirangmq.core.message import Envelope
from yirangmq.core.policy import QueuePolicy
from yirangmq.stores.files.message_file import read_dropped
from yirangmq.stores.files.names import SUFFIX, FileRow
from yirangmq.stores.files.overlay import PendingChanges, RejectedFile

MAX_FILES_PER_IMPORT = 1000
"""Upper bound of files imported per call. The next call imports the rest."""
QUARANTINE_AFTER_SECONDS = 2.0
"""Time after its last change, in seconds, before an invalid file is quarantined: it may be written in several
steps."""
MAX_ENVELOPE_BYTES = 131_072
"""Bytes that a file may have beyond twice the queue's payload limit. A larger file is rejected unread."""


class ImportTransaction(Protocol):
    """The part of a transaction that the import uses."""

    pending: PendingChanges
    now: int | None

    def policy(self, queue: str) -> QueuePolicy: ...

    def add_dropped(self, envelope: Envelope, now: int, dedup_until: int, path: str) -> FileRow | None: ...


class DroppedFile(NamedTuple):
    """A file found in an inbox. Sorts by modification time, then by name."""

    written_ns: int
    name: str
    path: str
    size: int


def import_dropped(transaction: ImportTransaction, root: str, queue: str) -> Iterator[FileRow]:
    """Import the files dropped into the queue's inbox. Yield each new message that belongs to a group, before the next
    file is imported."""
    for file in find_dropped(f"{root}/{queue}/inbox")[:MAX_FILES_PER_IMPORT]:
        row = _import_file(transaction, queue, file)
        if row is not None and row.message.group:
            yield row


def find_dropped(inbox: str) -> list[DroppedFile]:
    """Return the dropped files in order of modification time, then of name."""
    found = []
    try:
        with os.scandir(inbox) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and entry.name[0] != "." and entry.is_file(follow_symlinks=False):
                    about = entry.stat(follow_symlinks=False)
                    found.append(DroppedFile(about.st_mtime_ns, entry.name, entry.path, about.st_size))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found)


def _import_file(transaction: ImportTransaction, queue: str, file: DroppedFile) -> FileRow | None:
    policy = transaction.policy(queue)
    written_at = file.written_ns // 1_000_000
    try:
        envelope = _read(file, queue, policy, written_at)
    except BadInput as error:
        if time.time() - file.written_ns / 1e9 >= QUARANTINE_AFTER_SECONDS:
            transaction.pending.rejects.append(RejectedFile(queue, file.path, str(error)))
        return None
    except FileNotFoundError:
        return None
    now = written_at if transaction.now is None else transaction.now
    if policy.ttl_ms:
        envelope = envelope._replace(expires_at=now + policy.ttl_ms)
    row = transaction.add_dropped(envelope, now, now + policy.dedup_ms, file.path)
    if row is None:
        transaction.pending.duplicates.append(file.path)
    return row


def _read(file: DroppedFile, queue: str, policy: QueuePolicy, written_at: int) -> Envelope:
    if file.size > policy.max_body * 2 + MAX_ENVELOPE_BYTES:
        raise TooLarge(f"the file has {file.size} bytes, this queue takes {policy.max_body}", field="payload")
    with open(file.path, "rb") as content:
        envelope = read_dropped(content.read(), queue, f"dropped-{os.urandom(10).hex()}", written_at)
    if len(envelope.payload) > policy.max_body:
        raise TooLarge(f"{len(envelope.payload)} bytes, this queue takes {policy.max_body}", field="payload")
    return envelope
