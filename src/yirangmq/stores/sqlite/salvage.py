"""Rebuild of a damaged SQLite store: readable rows go into a new file, which takes the place of the damaged one.

The damaged file is kept as ``queue.db.damaged``, with its WAL and redo log. During the rebuild this process holds an
exclusive lock on SQLite's shared-lock bytes; a process that waits for it has to open the store again afterwards.

Where the tables cannot be found, the copy gets the first page of a new store, whose tables begin at the same pages.
Redo log records that still fit are replayed, and the new file is checked and repaired. If nothing can be read, the
file stays as it is and ``StoreDamaged`` is raised. The rows are read by ``stores.sqlite.salvage_rows``."""

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import apsw

from yirangmq.core.errors import StoreBusy, StoreDamaged
from yirangmq.core.ports import Finding
from yirangmq.fsio.permissions import GROUP, open_file
from yirangmq.stores.sqlite.check import check
from yirangmq.stores.sqlite.connection import APPLICATION_ID, PAGE_SIZE, open_connection, sqlite_errors_translated
from yirangmq.stores.sqlite.redo_format import RedoPosition
from yirangmq.stores.sqlite.redo_replay import read_position, redo_path, replay_fitting
from yirangmq.stores.sqlite.salvage_rows import TABLES, UNREADABLE, SalvageResult, copy_readable_rows

MAGIC = b"SQLite format 3\0"
PAGE_BYTES, PAGE_COUNT, FREE_PAGES, COUNT_VALID_FOR, IDENTITY = 16, 28, 32, 92, 68
"""Offsets in the header of a SQLite file, its first 100 bytes (sqlite.org/fileformat.html)."""
PAGE_SIZES = (PAGE_SIZE, 8192)
"""Page sizes that released versions created stores with, in bytes."""
SMALLEST_PAGE = 512
SHARED_LOCK = 0x40000002, 510
"""Start and length of SQLite's shared-lock bytes. Every process that has the file open holds a lock on them."""

REBUILT = ("miscounted", "nameless")
"""Findings in the new file that are not reported, because salvage always rebuilds counters and names."""


def salvage(path: Path) -> list[Finding]:
    """Replace a damaged store by a new one with its readable rows, and return the findings. Raise ``StoreDamaged`` if
    nothing can be read; the file then stays as it is."""
    with sqlite_errors_translated(None, path), path.open("r+b") as damaged:
        _refuse_foreign(damaged, path)
        _lock_exclusively(damaged, path)
        damaged_copy = _free_name(path)
        work, new = Path(f"{path}.salvaging"), Path(f"{path}.salvaged")
        try:
            _copy(damaged, path, damaged_copy)
            rescued, mended = _build_new_file(damaged_copy, work, new)
        except BaseException:
            _remove(damaged_copy)
            _remove(new)
            raise
        finally:
            _remove(work)
        _put_in_place(damaged, path, new)
    return [_finding(rescued, path, damaged_copy), *mended]


def _build_new_file(damaged_copy: Path, work: Path, new: Path) -> tuple[SalvageResult, list[Finding]]:
    """Fill the new file from ``work``, a copy of the damaged file that may be changed."""
    _remove(new)
    with _readable(damaged_copy, work) as old, closing(open_connection(new, "full", 0)) as db:
        rescued = copy_readable_rows(old, db)
        lost = replay_fitting(db, redo_path(damaged_copy), _mark(old))
        if not rescued.messages and not rescued.queues:
            raise StoreDamaged(
                f"{damaged_copy.name.rpartition('.damaged')[0]}: nothing in it can be read; it is not changed"
            )
        found = list(check(db, repair=True))
    _sync(new)
    kinds = Counter((finding.kind, finding.text) for finding in found if finding.kind not in REBUILT)
    mended = [Finding(kind, f"{many:,} times", text, True) for (kind, text), many in kinds.items()]
    if lost:
        mended.append(
            Finding(
                "unfitting",
                f"{lost:,} times",
                "a change in the redo log or WAL did not apply to the rest of the file",
                True,
            )
        )
    return rescued, mended


def _mark(old: apsw.Connection) -> RedoPosition | None:
    with suppress(*UNREADABLE, StoreDamaged):
        return read_position(old)
    return None


@contextmanager
def _readable(damaged_copy: Path, work: Path) -> Iterator[apsw.Connection]:
    """Open a readable copy of the damaged file, extended to its full length. If its tables cannot be found, the copy
    gets the first page of a new store, whose tables begin at the same pages. Of the possible page sizes, the one that
    finds the most messages is used."""
    best = _found(damaged_copy, work, b"")
    if best < 0:
        grafts = {
            _found(damaged_copy, work, graft): graft for graft in [_first_page(work, size) for size in PAGE_SIZES]
        }
        best = max(grafts)
        if best >= 0:
            _found(damaged_copy, work, grafts[best])
    if best < 0:
        raise StoreDamaged(
            f"{damaged_copy.name.rpartition('.damaged')[0]}: no tables can be found in it; it is not changed"
        )
    with closing(apsw.Connection(str(work))) as old:
        yield old


def _first_page(work: Path, page_size: int) -> bytes:
    """Return the first page of a new store."""
    _remove(work)
    with closing(open_connection(work, "os", 0, page_size=page_size)):
        pass  # closing copies the WAL into the file
    return work.read_bytes()[:page_size]


def _found(damaged_copy: Path, work: Path, graft: bytes) -> int:
    """Make the copy, with ``graft`` as its first page if it is not empty. Return the number of messages found with a
    graft, 0 without one, or -1 if the tables cannot be found."""
    with damaged_copy.open("rb") as damaged:
        _copy(damaged, damaged_copy, work)
    _patch(work, graft)
    count = -1
    with closing(apsw.Connection(str(work))) as old, suppress(*UNREADABLE):
        for table, columns in TABLES.items():
            old.execute(f"SELECT {', '.join(columns)} FROM {table} LIMIT 0")
        count = 0
        if graft:
            for _ in old.execute("SELECT seq FROM message"):
                count += 1
    return count


def _patch(work: Path, graft: bytes) -> None:
    """Extend the copy to the length in its header, because SQLite does not open a shorter file. The pages cut off are
    lost either way."""
    with work.open("r+b") as file:
        head = bytearray(graft or file.read(100))
        page_size = int.from_bytes(head[PAGE_BYTES : PAGE_BYTES + 2], "big")
        if not head.startswith(MAGIC) or page_size.bit_count() != 1 or page_size < SMALLEST_PAGE:
            return
        pages = -(-max(work.stat().st_size, len(graft)) // page_size)
        if graft:
            head[PAGE_COUNT : PAGE_COUNT + 4] = pages.to_bytes(4, "big")
            head[FREE_PAGES : FREE_PAGES + 8] = bytes(8)
            head[COUNT_VALID_FOR : COUNT_VALID_FOR + 4] = head[24:28]
            file.seek(0)
            file.write(head)
        else:
            recorded_pages = int.from_bytes(head[PAGE_COUNT : PAGE_COUNT + 4], "big")
            pages = max(pages, min(recorded_pages, 4 * pages))  # the number itself may be damaged
        file.truncate(pages * page_size)


def _refuse_foreign(file: BinaryIO, path: Path) -> None:
    head = file.read(100)
    if len(head) < 100:
        raise StoreDamaged(f"{path} has {len(head)} bytes: nothing in it can be read; it is not changed")
    if head.startswith(MAGIC) and int.from_bytes(head[IDENTITY : IDENTITY + 4], "big") not in (APPLICATION_ID, 0):
        raise StoreDamaged(f"{path} is an SQLite database of another program; use another file")


def _lock_exclusively(file: BinaryIO, path: Path) -> None:
    """Lock the file exclusively until it is closed. A process that opens it waits, and then does not find a database:
    the file is no longer the store."""
    start, length = SHARED_LOCK
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except OSError:
        raise StoreBusy(f"{path} is open in another process; stop it first") from None


def _free_name(path: Path) -> Path:
    for number in range(1, 1000):
        name = Path(f"{path}.damaged" + (f"-{number}" if number > 1 else ""))
        if not name.exists():
            return name
    raise StoreDamaged(f"{path}.damaged and a thousand more exist already; remove some")


def _copy(file: BinaryIO, path: Path, to: Path) -> None:
    """Copy the file with its WAL and redo log. The file is not opened a second time: closing it would release the
    lock."""
    _remove(to)
    file.seek(0)
    with os.fdopen(open_file(to, os.O_WRONLY | os.O_EXCL), "wb") as copy:
        shutil.copyfileobj(file, copy, 1 << 20)
    for end in ("-wal", "-redo"):
        if os.path.exists(f"{path}{end}"):
            copy_fd = open_file(f"{to}{end}", os.O_WRONLY | os.O_TRUNC)
            with open(f"{path}{end}", "rb") as source, os.fdopen(copy_fd, "wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
            _sync(Path(f"{to}{end}"))
    _sync(to)


def _put_in_place(damaged: BinaryIO, path: Path, new: Path) -> None:
    """Move the new file to the path of the store. The old WAL is deleted first, because SQLite would replay it into the
    new file."""
    for end in ("-wal", "-shm", "-redo"):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{end}")
    _sync(path.parent)
    os.chmod(new, path.stat().st_mode & GROUP.file)  # never readable by other users
    new.replace(path)
    _sync(path.parent)
    damaged.seek(0)
    damaged.write(b"This store was repaired while you waited for it: open it again.".ljust(100))


def _remove(path: Path) -> None:
    for end in ("", "-wal", "-shm", "-redo"):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{end}")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _finding(rescued: SalvageResult, path: Path, damaged_copy: Path) -> Finding:
    text = (
        f"read into a new file: {rescued.messages:,} messages, {rescued.queues:,} queues; "
        f"the damaged one is kept as {damaged_copy.name}"
    )
    if rescued.missing > 0:
        text += f"; by its counters it had {rescued.missing:,} messages more"
    if rescued.corrupt > 0:
        text += f"; {rescued.corrupt:,} are not whole: see the dead letters"
    return Finding("salvaged", path.name, text, True)
