"""A server on a store whose lock another process holds."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from tests.support.session import Client, Server
from yirangmq.stores.files.store import FilesStore
from yirangmq.stores.sqlite.server_store import open_served_store
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind

BUSY_SECONDS = 2.0


STEP_MS = 50
"""No pause between two attempts is longer."""


class Shared:
    """A server on a real store, and the lock of that store in other hands."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder
        self.store: SqliteStore | FilesStore
        if kind == "files":
            self.store = FilesStore(folder / "queues", durability="os")
        else:
            self.store = open_served_store(folder / "queue.db", durability="os", seconds=None)
        self.store.never_wait()
        self.server = Server(self.store, busy_seconds=BUSY_SECONDS)
        self.client = self.server.client()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """As by ``BEGIN IMMEDIATE`` in another program, or a process in the midst of a commit."""
        if isinstance(self.store, FilesStore):
            fd = os.open(self.folder / "queues" / ".lock", os.O_RDWR)
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                os.close(fd)
            return
        self.store.commit_pending()
        with closing(apsw.Connection(str(self.folder / "queue.db"))) as db:
            db.execute("BEGIN IMMEDIATE")
            yield

    def begin_publish(self, payload: bytes, client: Client | None = None) -> int:
        number = (client or self.client).send(
            FrameKind.PUBLISH, messages.Publish("mail", [messages.OutgoingMessageBody(payload, False)])
        )
        self.server.turn()
        return number

    def pass_seconds(self, seconds: float) -> None:
        for _ in range(round(seconds * 1000 / STEP_MS)):
            self.server.turns.advance(STEP_MS)

    def payloads(self) -> list[bytes]:
        return [bytes(message.payload) for message in self.client.lease("mail", 100)]
