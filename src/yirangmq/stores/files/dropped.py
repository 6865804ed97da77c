"""Import of files that a person or another program drops into ``<queue>/inbox``.

Each file becomes a message, in order of arrival, up to 1000 in a call. The file itself is renamed into line, so it is
either still there or a message, never both. An invalid file goes to the quarantine with the reason, but not within 2 s
of its last change: it may still be written."""

import os
import time
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from yirangmq.core.errors import BadInput, TooLarge
from yirangmq.core.message import Envelope
from yirangmq.core.policy import QueuePolicy
from yirangmq.stores.files.message_file import read_dropped
from yirangmq.stores.files.names import SUFFIX, Card
from yirangmq.stores.files.overlay import Pending, Reject

MOST_AT_ONCE = 1000
"""More than that wait for the next call."""
PATIENCE = 2.0
"""Seconds for which a file that makes no sense may still be on its way."""
MAX_ENVELOPE = 131_072
"""Bytes that a file may have beside its payload before it is not even read."""


class Taker(Protocol):
    """What is needed of a transaction."""

    pending: Pending
    now: int | None

    def policy(self, queue: str) -> QueuePolicy: ...

    def add_dropped(self, envelope: Envelope, now: int, dedup_until: int, path: str) -> Card | None: ...


class Dropped(NamedTuple):
    written_ns: int
    name: str
    path: str
    size: int


def collect(taker: Taker, root: str, queue: str) -> Iterator[Card]:
    """Take up what lies in the inbox of a queue, one by one; those that have a group come out."""
    for file in find_dropped(f"{root}/{queue}/inbox")[:MOST_AT_ONCE]:
        card = _take(taker, queue, file)
        if card is not None and card.message.group:
            yield card


def find_dropped(inbox: str) -> list[Dropped]:
    """In order of arrival."""
    found = []
    try:
        with os.scandir(inbox) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and entry.name[0] != "." and entry.is_file(follow_symlinks=False):
                    about = entry.stat(follow_symlinks=False)
                    found.append(Dropped(about.st_mtime_ns, entry.name, entry.path, about.st_size))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found)


def _take(taker: Taker, queue: str, file: Dropped) -> Card | None:
    policy = taker.policy(queue)
    written_at = file.written_ns // 1_000_000
    try:
        envelope = _read(file, queue, policy, written_at)
    except BadInput as error:
        if time.time() - file.written_ns / 1e9 >= PATIENCE:
            taker.pending.rejects.append(Reject(queue, file.path, str(error)))
        return None
    except FileNotFoundError:
        return None
    now = written_at if taker.now is None else taker.now
    if policy.ttl_ms:
        envelope = envelope._replace(expires_at=now + policy.ttl_ms)
    card = taker.add_dropped(envelope, now, now + policy.dedup_ms, file.path)
    if card is None:
        taker.pending.duplicates.append(file.path)
    return card


def _read(file: Dropped, queue: str, policy: QueuePolicy, written_at: int) -> Envelope:
    if file.size > policy.max_body * 2 + MAX_ENVELOPE:
        raise TooLarge(f"the file has {file.size} bytes, this queue takes {policy.max_body}", field="payload")
    with open(file.path, "rb") as content:
        envelope = read_dropped(content.read(), queue, f"dropped-{os.urandom(10).hex()}", written_at)
    if len(envelope.payload) > policy.max_body:
        raise TooLarge(f"{len(envelope.payload)} bytes, this queue takes {policy.max_body}", field="payload")
    return envelope
