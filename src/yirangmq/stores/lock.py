"""Store lock of a server: a lock file beside the store that names the server's process and address.

The lock on ``queue.db.lock`` is an ``flock``, which the system releases when the process dies. A lock file left behind
is therefore harmless. Its content is a JSON ``Holder``; the address is empty while the server starts.

``memory:`` and ``etcd:`` stores have no lock file: etcd stores use leader election."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from yirangmq.core.errors import BadInput, StoreBusy, StoreError, StoreReadOnly
from yirangmq.format.json_codec import loads, plain
from yirangmq.fsio.errors import as_store_error
from yirangmq.fsio.lock import lock_within, try_lock
from yirangmq.fsio.permissions import open_file

LOCK_TIMEOUT_SECONDS = 0.5
"""Timeout for the lock in seconds. ``find_holder`` in another process takes a shared lock for a moment."""
MAX_LOCK_FILE_BYTES = 4096


class Holder(NamedTuple):
    """Server that holds a store lock. ``address`` is "" while it is starting."""

    pid: int
    address: str
    node: str
    since: str


def lock_path(url: str) -> Path | None:
    """Return the path of the lock file, or None for stores without one (``memory:``, ``etcd:``)."""
    scheme, _, place = url.partition(":")
    return None if scheme in ("memory", "etcd") or not place else Path(f"{place.rstrip('/')}.lock")


class StoreLock:
    """Exclusive lock of a store, held from construction until ``close``."""

    def __init__(self, url: str, holder: Holder) -> None:
        self._fd = -1
        path = lock_path(url)
        if path is None:
            return
        try:
            self._fd = open_file(path, os.O_RDWR)
        except OSError as error:
            wrong = StoreReadOnly if error.errno in (errno.EROFS, errno.EACCES) else StoreError
            raise wrong(f"{path} cannot be made: {error.strerror}") from None
        try:
            if not lock_within(self._fd, LOCK_TIMEOUT_SECONDS):
                raise StoreBusy(_busy_text(url, _read(self._fd)))
            self.write_holder(holder)
        except OSError as error:
            self._release()
            raise as_store_error(error, path) from error
        except BaseException:
            self._release()
            raise

    def write_holder(self, holder: Holder) -> None:
        """Write the holder into the lock file."""
        if self._fd >= 0:
            text = plain.dumps(holder._asdict()) + b"\n"
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text, 0)

    def close(self) -> None:
        """Never fails: a lock that is not released would keep this process from opening the store again."""
        if self._fd >= 0:
            with suppress(OSError):  # the holder is only information
                os.ftruncate(self._fd, 0)
            self._release()

    def _release(self) -> None:
        fd, self._fd = self._fd, -1
        with suppress(OSError):
            os.close(fd)


def _busy_text(url: str, found: Holder | None) -> str:
    if found is None:
        return f"{url} is held by another server"
    where = f"; reach it at {found.address}" if found.address else ""
    return f"{url} is held by a server, process {found.pid} ({found.node}) since {found.since}{where}"


def find_holder(url: str) -> Holder | None:
    """Return the live server of a store, or None if there is none or it has no address yet."""
    path = lock_path(url)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path is not None else -1
    except OSError:
        return None
    if fd < 0:
        return None
    try:
        if try_lock(fd, shared=True):
            return None  # no server holds it
        found = _read(fd)
        return found if found is not None and found.address else None
    finally:
        os.close(fd)


def _read(fd: int) -> Holder | None:
    try:
        document = loads(os.pread(fd, MAX_LOCK_FILE_BYTES, 0))
        return Holder(int(document["pid"]), str(document["address"]), str(document["node"]), str(document["since"]))
    except (BadInput, OSError, KeyError, TypeError, ValueError):
        return None
