"""Large writes and reads past the page cache: the bytes are the same, wherever they begin, whatever the system can."""

import errno
import fcntl
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.page_cache import is_in_memory, on_disk
from yirangmq.fsio import disk
from yirangmq.fsio.disk import BLOCK, CHUNK, LARGE, FileReadBuffer, write_at

DATA = os.urandom(LARGE + 2 * CHUNK + 4321)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.fixture
def fd(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    yield handle
    assert not fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT
    os.close(handle)


@pytest.mark.parametrize("offset", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 77])
@pytest.mark.parametrize("size", [0, 1, LARGE - 1, LARGE, LARGE + 1, LARGE + BLOCK, CHUNK + LARGE, len(DATA)])
def test_direct_io_writes_at_the_offset_and_changes_nothing_else(path: Path, fd: int, offset: int, size: int) -> None:
    before = b"x" * (offset + size + 5000)
    os.pwrite(fd, before, 0)
    write_at(fd, DATA[:size], offset)
    assert path.read_bytes() == before[:offset] + DATA[:size] + before[offset + size :]


@pytest.mark.parametrize("offset", [0, 1, BLOCK])
def test_direct_io_grows_the_file_exactly_as_far_as_written(path: Path, fd: int, offset: int) -> None:
    write_at(fd, DATA, offset)
    assert path.read_bytes() == bytes(offset) + DATA
    write_at(fd, DATA, offset + len(DATA))
    assert path.read_bytes() == bytes(offset) + 2 * DATA


def test_direct_io_write_invalidates_pages_read_before(path: Path, fd: int) -> None:
    """A page in the cache is not what the disk has any more."""
    write_at(fd, bytes(len(DATA)), 0)
    assert path.read_bytes() == bytes(len(DATA))
    write_at(fd, DATA, 0)
    assert path.read_bytes() == DATA
    write_at(fd, b"small", 5)
    write_at(fd, DATA[::-1], 3)
    write_at(fd, b"small", 5000)
    expected = bytearray(DATA[:3] + DATA[::-1])
    expected[5000:5005] = b"small"
    assert path.read_bytes() == expected


def test_direct_io_leaves_only_the_ends_of_a_large_write_in_the_page_cache(tmp_path: Path, path: Path, fd: int) -> None:
    on_disk(tmp_path)
    write_at(fd, DATA, 100)
    assert [is_in_memory(path, at) for at in (0, BLOCK, LARGE, 100 + len(DATA) - 100)] == [True, False, False, True]
    write_at(fd, DATA[: LARGE - 1], 100)
    assert is_in_memory(path, BLOCK)


def refuse(*arguments: object) -> int:
    raise OSError(errno.EINVAL, "no")


def refuse_past_cache(fd: int, data: memoryview, offset: int, write: Callable[..., int] = os.pwrite) -> int:
    return refuse() if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT else write(fd, data, offset)


def write_less(fd: int, data: memoryview, offset: int, write: Callable[..., int] = os.pwrite) -> int:
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
        return write(fd, data[: len(data) // 2 // BLOCK * BLOCK], offset)
    return write(fd, data[: max(1, len(data) // 2)], offset)


@pytest.mark.parametrize("instead", [refuse_past_cache, write_less])
def test_direct_io_that_is_refused_or_short_is_completed_through_the_page_cache(
    path: Path, fd: int, monkeypatch: pytest.MonkeyPatch, instead: Callable[..., int]
) -> None:
    monkeypatch.setattr(os, "pwrite", instead)
    write_at(fd, DATA, 7)
    assert path.read_bytes() == bytes(7) + DATA


@pytest.mark.parametrize("past_cache", [0, disk.PAST_CACHE])
def test_direct_io_unsupported_by_the_system_falls_back_to_usual_reads_and_writes(
    path: Path, fd: int, monkeypatch: pytest.MonkeyPatch, past_cache: int
) -> None:
    """It has no such flag, or its file system refuses it."""
    change = fcntl.fcntl

    def refuse_flag(handle: int, what: int, flags: int = 0) -> int:
        return refuse() if flags & disk.PAST_CACHE else change(handle, what, flags)

    monkeypatch.setattr(disk, "PAST_CACHE", past_cache)
    monkeypatch.setattr(fcntl, "fcntl", refuse_flag)
    write_at(fd, DATA, 7)
    assert FileReadBuffer().read(path) == bytes(7) + DATA


def test_direct_io_on_a_full_disk_raises_the_error(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="full"):
        write_at(fd, DATA, 0)


def test_direct_io_without_memory_for_a_chunk_falls_back_to_a_usual_write(
    path: Path, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(size: int) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    disk._spare.clear()
    monkeypatch.setattr(disk, "_memory", none_left)
    write_at(fd, DATA, 7)
    write_at(fd, b"small", 0)  # which a descriptor that goes past the cache would refuse
    assert path.read_bytes() == b"small" + bytes(2) + DATA


def test_direct_io_write_that_is_interrupted_leaves_a_writable_file(
    path: Path, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(handle: int, data: memoryview, offset: int) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_at(fd, DATA, 0)
    write_at(fd, b"small", 1)
    write_at(fd, DATA, 7)
    assert path.read_bytes() == b"\0small\0" + DATA


def test_direct_io_by_many_threads_writes_correct_bytes(tmp_path: Path) -> None:
    def write(number: int) -> bool:
        path = tmp_path / str(number)
        handle = os.open(path, os.O_RDWR | os.O_CREAT)
        data = DATA[number:] + DATA[:number]
        try:
            write_at(handle, data, number)
        finally:
            os.close(handle)
        return FileReadBuffer().read(path)[number:] == data

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(write, range(24)))


def test_direct_io_buffers_are_not_shared_with_a_forked_child(path: Path, fd: int) -> None:
    write_at(fd, DATA, 0)
    assert disk._spare
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other tests of this process may have left threads
        child = os.fork()
    if not child:
        os._exit(len(disk._spare))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, LARGE - 1, LARGE, LARGE + 1, LARGE + BLOCK, len(DATA)])
def test_direct_io_reads_a_file_of_any_size_completely(path: Path, size: int) -> None:
    path.write_bytes(DATA[:size])
    assert FileReadBuffer().read(path) == DATA[:size]


def test_direct_io_read_buffer_is_reused_and_grows(path: Path) -> None:
    place = FileReadBuffer()
    path.write_bytes(DATA[:LARGE])
    first = place.read(path)
    path.write_bytes(DATA[1 : LARGE - 5])
    second = place.read(path)
    assert second == DATA[1 : LARGE - 5]
    assert first[: len(second)] == second  # that is what "used again" means
    path.write_bytes(DATA)
    assert place.read(path) == DATA
    assert second == DATA[1 : LARGE - 5]  # in other memory now


@pytest.mark.parametrize("share", [0, 1, BLOCK, LARGE // 2])
def test_direct_io_short_reads_are_completed(path: Path, monkeypatch: pytest.MonkeyPatch, share: int) -> None:
    read = os.preadv
    path.write_bytes(DATA)

    def some(fd: int, buffers: list[memoryview], offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            return min(share, read(fd, buffers, offset)) if share else refuse()
        return read(fd, [buffers[0][: 1 + len(buffers[0]) // 2]], offset)

    monkeypatch.setattr(os, "preadv", some)
    assert FileReadBuffer().read(path) == DATA


def test_direct_io_read_errors_are_raised(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> int:
        raise OSError(errno.EIO, "broken")

    with pytest.raises(FileNotFoundError):
        FileReadBuffer().read(path)
    path.write_bytes(DATA)
    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(OSError, match="broken"):
        FileReadBuffer().read(path)
