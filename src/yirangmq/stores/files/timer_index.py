"""Timer index of the files store: time buckets with the folders in which messages are due.

``TimerIndex`` is the folder ``.index/due``: one text file per bucket (``TimeBucket``), named ``<begin>-<seconds>``,
with one folder per line. A bucket is 1 s wide for the next 2 minutes, 1 minute for the next 3 hours, and 1 hour beyond.
When a wide bucket begins, its entries move to narrow ones. A line is written before the message file it refers to, so
no line is ever missing. A line may be stale, so it is compared with the names in the folder. Like the rest of the
index, the buckets are never synced.

``DueMessages`` reads the buckets in one transaction: the due messages, and the next due time. It lists each bucket
once."""

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from yirangmq.core.message import Message
from yirangmq.fsio.permissions import access_in, open_file
from yirangmq.stores.files.names import FileRow, due_in

# -- time buckets on disk ----------------------------------------------------------------------------------------------

SECOND_BUCKETS_MS = 120_000
MINUTE_BUCKETS_MS = 10_800_000
SECOND, MINUTE, HOUR = 1, 60, 3600


class TimeBucket(NamedTuple):
    """A time bucket: ``begin`` in seconds since 1970, and its width in seconds."""

    begin: int
    seconds: int

    @property
    def begin_ms(self) -> int:
        return self.begin * 1000

    @property
    def end_ms(self) -> int:
        return (self.begin + self.seconds) * 1000

    def includes(self, moment: int) -> bool:
        return self.begin_ms <= moment < self.end_ms


class TimerEntry(NamedTuple):
    """An entry of the timer index: a message in this folder is due at this time.

    ``folder``: queue, and the path below it. ``due_at``: in ms."""

    due_at: int
    folder: str


def bucket_of(due_at: int, now: int) -> TimeBucket:
    ahead = due_at - now
    seconds = SECOND if ahead < SECOND_BUCKETS_MS else MINUTE if ahead < MINUTE_BUCKETS_MS else HOUR
    return TimeBucket(due_at // 1000 // seconds * seconds, seconds)


class TimerIndex:
    """Timer index on disk: the bucket files in ``.index/due``."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._access = access_in(folder)

    def buckets(self) -> list[TimeBucket]:
        """Return all buckets, sorted by begin, then by width."""
        return sorted(TimeBucket(*map(int, name.split("-"))) for name in os.listdir(self._folder))

    def folders(self, bucket: TimeBucket) -> list[str]:
        """Return the distinct folders of a bucket, in the order they were added."""
        try:
            with open(self._path(bucket)) as file:
                return [folder for folder in dict.fromkeys(file.read().splitlines()) if folder]
        except FileNotFoundError:
            return []

    def add_entries(self, timer_entries: Iterable[TimerEntry], now: int) -> None:
        lines: dict[TimeBucket, dict[str, None]] = {}
        for due_at, folder in timer_entries:
            lines.setdefault(bucket_of(due_at, now), {})[folder] = None
        self.write(lines)

    def write(self, lines: Mapping[TimeBucket, Iterable[str]]) -> None:
        for bucket, folders in lines.items():
            fd = open_file(self._path(bucket), os.O_WRONLY | os.O_APPEND, self._access)
            try:
                _append(fd, "".join(f"\n{folder}" for folder in folders).encode())
            finally:
                os.close(fd)

    def remove_bucket(self, bucket: TimeBucket) -> None:
        """Remove a bucket in which no message is due any more."""
        try:
            os.unlink(self._path(bucket))
        except FileNotFoundError:
            pass

    def clear(self) -> None:
        for name in os.listdir(self._folder):
            os.unlink(f"{self._folder}/{name}")

    def _path(self, bucket: TimeBucket) -> str:
        return f"{self._folder}/{bucket.begin}-{bucket.seconds}"


def _append(fd: int, lines: bytes) -> None:
    """Append lines; each begins with its line break, so that a line truncated by a full disk does not join the next."""
    if os.write(fd, lines) < len(lines):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# -- due messages of a transaction -------------------------------------------------------------------------------------


class DueFile(NamedTuple):
    """A message file found by the due time in its name, in ms."""

    due_at: int
    folder: str
    name: str


class DueMessages:
    """Due messages as one transaction sees them. ``names`` lists the files of a folder, ``row_at`` reads one."""

    def __init__(
        self, timer_index: TimerIndex, names: Callable[[str], list[str]], row_at: Callable[[str, str], FileRow | None]
    ) -> None:
        self._timer_index = timer_index
        self._names = names
        self._row_at = row_at
        self._buckets: list[TimeBucket] | None = None
        self._due: dict[TimeBucket, list[DueFile]] = {}

    def due(self, now: int, limit: int, includes: Callable[[Message], bool], *, clean_up: bool) -> list[FileRow]:
        """Return at most ``limit`` due messages for which ``includes`` returns True, the earliest due time first.

        ``clean_up``: also split wide buckets that have started and remove empty ones. Needs the exclusive lock."""
        if clean_up:
            self._split_wide_buckets(now)
        found: dict[int, FileRow] = {}
        for bucket in self._all_buckets():
            if bucket.begin_ms > now or self._have_enough(found, limit, bucket):
                break
            for due_at, folder, name in self._due_files(bucket):
                if due_at > now:
                    break
                row = self._row_at(folder, name)
                if row is not None and includes(row.message):
                    found[row.message.seq] = row
            if clean_up:
                self._remove_if_empty(bucket)
        return sorted(found.values(), key=_due_order)[:limit]

    def _have_enough(self, found: dict[int, FileRow], limit: int, bucket: TimeBucket) -> bool:
        if len(found) < limit:
            return False
        return sorted(row.message.due_at for row in found.values())[limit - 1] < bucket.begin_ms

    def next_due(self, includes: Callable[[Message], bool]) -> int | None:
        best: int | None = None
        for bucket in self._all_buckets():
            if best is not None and bucket.begin_ms > best:
                break
            for due_at, folder, name in self._due_files(bucket):
                row = self._row_at(folder, name)
                if row is not None and includes(row.message):
                    best = due_at if best is None else min(best, due_at)
                    break
        return best

    def _all_buckets(self) -> list[TimeBucket]:
        if self._buckets is None:
            self._buckets = self._timer_index.buckets()
        return list(self._buckets)

    def _due_files(self, bucket: TimeBucket) -> list[DueFile]:
        """Return the message files due in a bucket, sorted by due time. Their names in the listed folders decide."""
        found = self._due.get(bucket)
        if found is None:
            found = []
            for folder in self._timer_index.folders(bucket):
                for name in self._names(folder):
                    due_at = due_in(name)
                    if bucket.includes(due_at):
                        found.append(DueFile(due_at, folder, name))
            found.sort()
            self._due[bucket] = found
        return found

    def _split_wide_buckets(self, now: int) -> None:
        """Split each wide bucket that has started into narrow ones, one folder at a time."""
        for bucket in self._all_buckets():
            if bucket.begin_ms > now:
                return
            if bucket.seconds > 1:
                for folder in self._timer_index.folders(bucket):
                    dues = {due_in(name) for name in self._names(folder)}
                    self._timer_index.add_entries(
                        [TimerEntry(due_at, folder) for due_at in dues if bucket.includes(due_at)], now
                    )
                self._timer_index.remove_bucket(bucket)
                self._buckets = None

    def _remove_if_empty(self, bucket: TimeBucket) -> None:
        """Remove a bucket if no message is due in it."""
        if not self._due_files(bucket) and self._buckets is not None:
            self._timer_index.remove_bucket(bucket)
            self._buckets.remove(bucket)


def _due_order(row: FileRow) -> tuple[int, int]:
    return row.message.due_at, row.message.seq
