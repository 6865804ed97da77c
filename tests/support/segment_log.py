"""What the tests of the log are made of: small segments, time that moves when told, and eyes for the folder."""

import os
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.clock import START_NS
from yirangmq.core.topics import FileRange, NewRecord, Record, RecordFrames
from yirangmq.fsio.disk import Disk
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.stores.log.readonly import SegmentView
from yirangmq.stores.log.segment_files import SegmentFileOperations, SegmentHeadValues
from yirangmq.stores.log.segment_format import State, TopicNumbers, first_of
from yirangmq.wire.records import RecordReader

SMALL = LogSettings(segment_bytes=4096, ahead=False)
"""Segments that fill after a few records, and everything done in the caller's own thread."""
SECOND = 1_000_000_000


class CarelessDisk(Disk):
    """Syncs nothing: where no power is cut, nobody can tell, and tests are done sooner."""

    def fsync(self, fd: int) -> None:
        pass

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_folder(self, path: str) -> None:
        pass


class Killed(BaseException):
    """Not an error: the process is gone."""


class MortalDisk(CarelessDisk):
    """Dies at one of its calls; of a write, the first part is done."""

    def __init__(self, at: int, share: float) -> None:
        super().__init__()
        self._left = at
        self._share = share

    def _step(self) -> bool:
        self._left -= 1
        if self._left < 0:
            raise Killed
        return self._left == 0

    def write_at(self, fd: int, data: bytes, offset: int) -> None:
        if self._step():
            super().write_at(fd, data[: int(len(data) * self._share)], offset)
            raise Killed
        super().write_at(fd, data, offset)

    def rename(self, source: str, target: str) -> None:
        self._step()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._step()
        super().unlink(path)

    def truncate(self, path: str, size: int) -> None:
        self._step()
        super().truncate(path, size)

    def fdatasync(self, fd: int) -> None:
        self._step()

    def fsync_folder(self, path: str) -> None:
        self._step()


def open_log(folder: Path, settings: LogSettings = SMALL, **options: Any) -> SegmentLog:
    return SegmentLog(folder, settings, **{"disk": CarelessDisk(), **options})


def new(count: int, topic: str = "trades", size: int = 300, begin: int = 0) -> list[NewRecord]:
    """Records that can be told apart."""
    return [NewRecord(topic, f"{topic} {number} ".encode().ljust(size, b".")) for number in range(begin, begin + count)]


def fill(log: SegmentLog, count: int, *, batch: int = 1, size: int = 300) -> list[Record]:
    """Append so many records of two topics, and say how they must read."""
    for begin in range(0, count, batch):
        many = min(batch, count - begin)
        log.append([one for n in range(begin, begin + many) for one in new(1, ("trades", "quotes")[n % 2], size, n)])
    return list(log.reader().records(log.first))


def sequences(records: Iterable[Record]) -> list[int]:
    return [record.sequence for record in records]


def segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if first_of(path.name) is not None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def cut_tail(folder: Path, records: int = 1) -> str:
    """Take the last records away, as a power cut does to what was not synced. Return the epoch."""
    view = SegmentView(folder)
    end = view.chain[-1]
    [begin] = [piece.offset for piece in view.reader().pieces(end.tail.last - records + 1)]
    with Path(end.path).open("r+b") as file:
        file.truncate(begin)
    return view.epoch


def make_log(folder: Path, first: int, topics: dict[str, int]) -> None:
    """A log that has come so far, without the work of getting there."""
    folder.mkdir()
    workshop = SegmentFileOperations(str(folder), Disk())
    spare = workshop.new_spare(4096)
    state: State = {name: TopicNumbers(number, first - 1, START_NS, 0) for name, number in topics.items()}
    workshop.begin(spare, SegmentHeadValues(b"e" * 16, b"e" * 16, first, START_NS), state)
    os.close(spare.fd)


def sent_bytes(parts: Iterator[FileRange | RecordFrames]) -> bytes:
    """What arrives at the other end of a socket: of ranges by ``sendfile``, of frames as they are."""
    here, there = socket.socketpair()
    received = bytearray()

    def receive() -> None:
        while data := there.recv(1 << 16):
            received.extend(data)

    thread = threading.Thread(target=receive)
    thread.start()
    try:
        for piece in parts:
            if isinstance(piece, RecordFrames):
                here.sendall(piece.data)
                continue
            done = 0
            while done < piece.length:
                done += os.sendfile(here.fileno(), piece.file, piece.offset + done, piece.length - done)
    finally:
        here.close()
        thread.join()
        there.close()
    return bytes(received)


def sent(parts: Iterator[FileRange | RecordFrames]) -> list[Record]:
    """The records that arrive at the other end of a socket."""
    reader = RecordReader()
    found = list(reader.feed(sent_bytes(parts)))
    assert reader.held == 0
    return found
