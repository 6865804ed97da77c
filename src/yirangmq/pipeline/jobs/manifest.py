"""Manifest of an archive: ``_archive.json`` lists every Parquet file with its rows and checksum.

Files are in ``date=YYYY-MM-DD/``. Only listed files are part of the archive, and the manifest is replaced atomically. A
job that was interrupted leaves unlisted files, which the next job removes. The folder must be on a disk of this
machine; a lock file allows a single job at a time. Needs no Spark."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from yirangmq.core.errors import BadInput, NotFound, StoreBusy, StoreDamaged
from yirangmq.fsio.lock import try_lock

MANIFEST_NAME = "_archive.json"
LOCK = "_lock"
STAGING = "_staging"
VERSION = 1


@dataclass(frozen=True, slots=True)
class RowSummary:
    """Summary of a set of rows: number, first and last sequence, and a checksum that does not depend on their order."""

    rows: int
    first: int
    last: int
    checksum: str

    @staticmethod
    def combine(parts: Iterable["RowSummary"]) -> "RowSummary":
        parts = [part for part in parts if part.rows]
        if not parts:
            return RowSummary(0, 0, 0, "0")
        checksum = sum(int(part.checksum) for part in parts)
        first, last = min(part.first for part in parts), max(part.last for part in parts)
        return RowSummary(sum(part.rows for part in parts), first, last, str(checksum))


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """File of the archive; ``name`` is relative to the archive's folder."""

    name: str
    sums: RowSummary


@dataclass(frozen=True, slots=True)
class Manifest:
    """List of the archive's files by day. ``of`` names the source, such as ``topic:orders``; ``last`` is the last
    archived sequence."""

    of: str
    last: int = 0
    days: Mapping[str, tuple[ArchiveFile, ...]] = field(default_factory=dict)

    def files(self, day: str | None = None) -> list[ArchiveFile]:
        return [file for at, files in sorted(self.days.items()) if day in (None, at) for file in files]

    def with_day(self, day: str, files: Iterable[ArchiveFile]) -> "Manifest":
        return replace(self, days={**self.days, day: tuple(files)})

    def without(self, days: Iterable[str]) -> "Manifest":
        gone = set(days)
        return replace(self, days={day: files for day, files in self.days.items() if day not in gone})


def load(folder: Path) -> Manifest:
    """Read the manifest. ``NotFound`` if there is no archive."""
    try:
        value = json.loads((folder / MANIFEST_NAME).read_bytes())
        days = {day: tuple(_file(one) for one in files) for day, files in value["days"].items()}
        return Manifest(value["of"], value["last"], days)
    except FileNotFoundError:
        raise NotFound(f"there is no archive in {folder}; 'yirangmq pipeline archive' makes one") from None
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(f"{folder / MANIFEST_NAME} cannot be read: {error}") from None


def _file(value: dict[str, Any]) -> ArchiveFile:
    return ArchiveFile(value["name"], RowSummary(**value["sums"]))


def load_or_create(folder: Path, of: str) -> Manifest:
    try:
        found = load(folder)
    except NotFound:
        return Manifest(of)
    if found.of != of:
        raise BadInput(f"{folder} is the archive of {found.of}, not of {of}; each has a folder of its own", field="to")
    return found


def save(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest atomically; it is on disk when the function returns."""
    days = {day: [asdict(file) for file in files] for day, files in sorted(manifest.days.items())}
    value = {"version": VERSION, "of": manifest.of, "last": manifest.last, "days": days}
    fresh = folder / f"{MANIFEST_NAME}.new"
    with fresh.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(folder / MANIFEST_NAME)
    sync_folder(folder)


@contextmanager
def archive_lock(folder: Path) -> Iterator[None]:
    """Lock the archive. ``StoreBusy`` if another job holds the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        if not try_lock(lock.fileno()):
            raise StoreBusy(f"another job works on {folder}")
        yield


def remove_unlisted(folder: Path, manifest: Manifest) -> int:
    """Remove unlisted files: the leftovers of an interrupted job, or files replaced by compaction."""
    shutil.rmtree(folder / STAGING, ignore_errors=True)
    listed = {file.name for file in manifest.files()}
    gone = [path for path in folder.glob("date=*/*") if str(path.relative_to(folder)) not in listed]
    for path in gone:
        path.unlink()
    for day in folder.glob("date=*"):
        if not any(day.iterdir()):
            day.rmdir()
    return len(gone)


def move_staged(folder: Path, staged: Path, day: str, name: str) -> str:
    """Move a staged file to its day and sync it to disk; it is not listed yet."""
    home = folder / f"date={day}"
    home.mkdir(exist_ok=True)
    with staged.open("rb") as file:
        os.fsync(file.fileno())
    staged.replace(home / name)
    sync_folder(home)
    return f"date={day}/{name}"


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
