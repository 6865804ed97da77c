"""Witness of a failover pair: the interface, its selection by URL, and a witness in a shared file.

A witness is a third party that at most one node holds. The shared file is on storage that both nodes can access. It
keeps one record (holder, term, number of the renewal), which is read and rewritten under a file lock and synced. The
rules for renewal, acquisition and release are in ``core.failover``.

An exchange that fails, or that does not get the lock within a second, returns ``Witness.UNREACHABLE``. Every witness
blocks, so the node uses it from one thread that is not the loop's. The etcd client is loaded only if the settings
name it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from yirangmq.core.errors import BadInput
from yirangmq.core.failover import FailoverTiming
from yirangmq.core.failover_witness import Witness, WitnessRecord, WitnessRequest, WitnessView
from yirangmq.format.json_codec import dumps, loads
from yirangmq.fsio.lock import lock_within
from yirangmq.fsio.permissions import open_file

# -- witness in a shared file ------------------------------------------------------------------------------------------

MAX_RECORD_BYTES = 4096
LOCK_SECONDS = 1.0


class FileWitness:
    """Witness in a shared file. ``now`` is the node's monotonic clock, in ms."""

    def __init__(self, path: Path, watching: WitnessView, now: Callable[[], int]) -> None:
        self._path = path
        self._watching = watching
        self._now = now

    def exchange(self, wish: WitnessRequest, term: int) -> tuple[Witness, int, int]:
        """Read the witness, and renew, acquire or release it as requested.

        Return its state, the instant before the exchange in ms, and the highest term of another node."""
        begun_at = self._now()
        try:
            found = self._exchange(wish, term)
        except (OSError, BadInput, KeyError, TypeError, ValueError):
            return Witness.UNREACHABLE, begun_at, 0
        return found, begun_at, self._watching.term

    def close(self) -> None:
        """No effect: the file is open only during an exchange."""

    def _exchange(self, wish: WitnessRequest, term: int) -> Witness:
        handle = open_file(self._path, os.O_RDWR)
        try:
            if not lock_within(handle, LOCK_SECONDS):
                return Witness.UNREACHABLE
            text = os.pread(handle, MAX_RECORD_BYTES, 0)
            found, after = self._watching.exchange(_read(text), wish, term, self._now())
            if after is not None:
                data = dumps({"holder": after.holder, "term": after.term, "renewal": after.renewal}) + b"\n"
                os.pwrite(handle, data.ljust(len(text), b" "), 0)
                os.fsync(handle)
            return found
        finally:
            os.close(handle)


def _read(text: bytes) -> WitnessRecord | None:
    if not text.strip():
        return None
    document = loads(text)
    return WitnessRecord(str(document["holder"]), int(document["term"]), int(document["renewal"]))


# -- interface, and selection by URL -----------------------------------------------------------------------------------

FILE = "file:"


class WitnessBackend(Protocol):
    """Witness of a pair. It may block, so it is used from one thread that is not the loop's."""

    def exchange(self, wish: WitnessRequest, term: int) -> tuple[Witness, int, int]:
        """Read the witness, and renew, acquire or release it as requested.

        Return its state, the instant before the exchange in ms, and the highest term of another node."""

    def close(self) -> None: ...


def open_witness(url: str, watching: WitnessView, pace: FailoverTiming, now: Callable[[], int]) -> WitnessBackend:
    """Open the witness of ``pair_witness``. Raise ``BadInput`` if it names a folder, where no record can be kept."""
    if url.startswith(FILE):
        path = Path(url.removeprefix(FILE))
        if path.is_dir():
            raise BadInput(f"{path} is a folder; name a file in it, such as {FILE}{path}/gateway", field="pair_witness")
        return FileWitness(path, watching, now)
    from yirangmq.failover.witness_etcd import EtcdWitness

    return EtcdWitness(url, watching, pace, now)
