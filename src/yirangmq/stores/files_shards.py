"""A set of short records on disk, found by a text: 64 small files, each a row of fixed-width records beginning with
the text's fingerprint. To look one up is to read one file; to add is to write at its end.

Part of the index (files_index.py): it may be lost at any time and is never synced."""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b

from yirangmq.fsio.permissions import OWNER, Access, open_file

PRINT = 8
"""Bytes of a fingerprint. Two texts may share one: who looks something up checks what was found."""


SHARDS = 64
"""At 100 000 messages each has some 25 kB: a few microseconds to read, and a batch opens most of them once."""


def fingerprint(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=PRINT).digest()


def shard_of(record: bytes | bytearray) -> int:
    return record[0] % SHARDS


class Shards:
    """``width`` is the length of a whole record, fingerprint included."""

    def __init__(self, folder: str, width: int, access: Access = OWNER) -> None:
        self._folder = folder
        self._access = access
        self._width = width

    def find(self, prints: Iterable[bytes]) -> dict[bytes, list[bytes]]:
        """For each fingerprint that is there, its records."""
        found: dict[bytes, list[bytes]] = {}
        for shard, wanted in _by_shard(prints).items():
            data = self._read(shard)
            if data:
                for one in wanted:
                    records = self._find_in(data, one)
                    if records:
                        found[one] = records
        return found

    def _find_in(self, data: bytes, one: bytes) -> list[bytes]:
        records = []
        at = data.find(one)
        while at >= 0:
            if at % self._width == 0:
                records.append(data[at : at + self._width])
            at = data.find(one, at + 1)
        return records

    def add(self, records: Sequence[bytes]) -> None:
        for shard, new in _by_shard(records).items():
            fd = open_file(self._path(shard), os.O_WRONLY, self._access)
            try:
                self._append(fd, b"".join(new))
            finally:
                os.close(fd)

    def _append(self, fd: int, new: bytes) -> None:
        """Behind the last whole record: where a write failed and its truncation too, a torn record is overwritten, or
        all that follow it would be out of step."""
        size = os.fstat(fd).st_size
        end = size - size % self._width
        try:
            _write_all(fd, new, end)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, end)
            raise

    def change(self, changes: Mapping[bytes, bytes]) -> None:
        """Records by what takes their place, under the same fingerprint."""
        for shard, old in _by_shard(changes).items():
            data = self._read(shard)
            with writing(self._path(shard), self._access) as fd:
                for record in old:
                    at = self._at(data, record)
                    if at >= 0:
                        os.pwrite(fd, changes[record], at)

    def remove(self, records: Sequence[bytes]) -> None:
        """The last record takes the place of one that goes: what is written does not grow with what is there."""
        for shard, old in _by_shard(records).items():
            data = bytearray(self._read(shard))
            size, places = len(data), set()
            for record in old:
                while (at := self._at(data, record)) >= 0:
                    data[at : at + self._width] = data[-self._width :]
                    del data[-self._width :]
                    places.add(at)
            if len(data) < size:
                with writing(self._path(shard), self._access) as fd:
                    for at in places:
                        os.pwrite(fd, data[at : at + self._width], at)
                    os.ftruncate(fd, len(data))

    def _at(self, data: bytes | bytearray, record: bytes) -> int:
        """Where this very record begins; -1: it is not there."""
        at = data.find(record)
        while at >= 0 and at % self._width:
            at = data.find(record, at + 1)
        return at

    def replace_all(self, shards: Mapping[int, bytearray]) -> None:
        """Files that are there are written over: making new ones costs more than all the rest."""
        kept = {self._name(shard) for shard in shards}
        for name in os.listdir(self._folder):
            if name not in kept:
                os.unlink(f"{self._folder}/{name}")
        for shard, data in shards.items():
            self._write(shard, bytes(data))

    def _path(self, shard: int) -> str:
        return f"{self._folder}/{self._name(shard)}"

    def _name(self, shard: int) -> str:
        return f"{shard:02d}"

    def _read(self, shard: int) -> bytes:
        """The whole records."""
        try:
            fd = os.open(self._path(shard), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            data = os.read(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        torn = len(data) % self._width
        return data[:-torn] if torn else data

    def _write(self, shard: int, data: bytes) -> None:
        with writing(self._path(shard), self._access) as fd:
            _write_all(fd, data, 0)
            os.ftruncate(fd, len(data))


class writing:
    """A file of the index open for writing."""

    def __init__(self, path: str, access: Access) -> None:
        self._fd = open_file(path, os.O_RDWR, access)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _by_shard(records: Iterable[bytes]) -> dict[int, list[bytes]]:
    grouped: defaultdict[int, list[bytes]] = defaultdict(list)
    for record in records:
        grouped[shard_of(record)].append(record)
    return grouped


def _write_all(fd: int, data: bytes, at: int) -> None:
    done = os.pwrite(fd, data, at)
    while done < len(data):
        done += os.pwrite(fd, data[done:], at + done)
