"""Topics of a folder without a server, with the methods of ``client.topics``; subscriptions that poll the log.

Reading needs no lock and disturbs no writer. Publishing, trimming and durable names need the lock of the log. A
subscription reads the existing records, then polls. Its cursor is kept in a file or under a durable name."""

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from yirangmq.client.cursors import CursorFile, CursorPosition
from yirangmq.client.topics import TopicPage, each_new
from yirangmq.client.values import Receipt, TopicRecord
from yirangmq.clock import default_consumer
from yirangmq.core.errors import BadInput, NotFound, StoreBusy, WrongEpoch
from yirangmq.core.topic_filter import Filter, filter_of_text, listed, make_filter
from yirangmq.core.topics import Cursor, Cursors, KnownPositions, TopicState, check_subscriber, check_topic
from yirangmq.format.topic_record import cursor_document, instant
from yirangmq.fsio.atomic_file import make_folder
from yirangmq.stores.cursors import open_cursors
from yirangmq.stores.lock import Holder, StoreLock
from yirangmq.stores.log.check import has_segments
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.stores.log.readonly import SegmentView
from yirangmq.stores.log.segment import plan_trim
from yirangmq.topics.adapters import PageLimits, read_page
from yirangmq.topics.cursors import count_after, lag_in_log, positions_of

# -- subscriptions -----------------------------------------------------------------------------------------------------

POLL_SECONDS = 0.2
"""Poll interval of a log without a server, in seconds."""
BATCH_LIMITS = PageLimits(records=1000)


class LocalCursor(Protocol):
    """Cursor store of one local subscription: the last confirmed sequence, kept on disk."""

    @property
    def holds_log_lock(self) -> bool:
        """True if the store holds the lock of the log. No publisher can append then, so no further record will come."""

    def get(self) -> CursorPosition | None: ...

    def put(self, sequence: int) -> None: ...

    def close(self) -> None: ...


class LocalFileCursor:
    """Cursor in a file of the user's choice."""

    holds_log_lock = False

    def __init__(self, file: CursorFile, epoch: str) -> None:
        self._file = file
        self._epoch = epoch

    def get(self) -> CursorPosition | None:
        return self._file.read()

    def put(self, sequence: int) -> None:
        self._file.write(CursorPosition(self._epoch, sequence))

    def close(self) -> None:
        """Do nothing: no file is open."""


class LocalNamedCursor:
    """Durable cursor under a subscriber name, in the cursor file that a server of this log uses."""

    holds_log_lock = True

    def __init__(self, cursors: Cursors, cursor: Cursor) -> None:
        self._cursors = cursors
        self._cursor = cursor

    def get(self) -> CursorPosition | None:
        found = self._cursors.get(self._cursor.name)
        return None if found is None else CursorPosition(found.epoch, found.sequence)

    def put(self, sequence: int) -> None:
        self._cursors.put([self._cursor._replace(sequence=sequence, at_ns=time.time_ns())])

    def close(self) -> None:
        self._cursors.close()


def start_subscription(
    view: SegmentView, filter: Filter, sequence: int, cursor_store: LocalCursor | None, *, resume: bool
) -> "LocalSubscription":
    """Start a subscription after the stored cursor if ``resume`` and there is one; otherwise at ``sequence``.

    Closes ``cursor_store`` on failure."""
    try:
        found = cursor_store.get() if cursor_store is not None and resume else None
        if found is not None and found.epoch != view.epoch:
            raise WrongEpoch(f"what was followed is of the epoch {found.epoch}, this log of {view.epoch}")
        if found is None and cursor_store is not None:
            cursor_store.put(sequence - 1)
        return LocalSubscription(view, filter, sequence if found is None else found.sequence + 1, cursor_store)
    except BaseException:
        if cursor_store is not None:
            cursor_store.close()
        raise


class LocalSubscription:
    """Subscription that polls the segment files of a log; not thread-safe."""

    def __init__(self, view: SegmentView, filter: Filter, sequence: int, cursor_store: LocalCursor | None) -> None:
        self._view = view
        self._filter = filter
        self._next_sequence = sequence
        self._cursor_store = cursor_store

    def __enter__(self) -> "LocalSubscription":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cursor_store is not None:
            self._cursor_store.close()

    def next_batch(self, wait: float | None = None) -> list[TopicRecord]:
        until = None if wait is None else time.monotonic() + wait
        while True:
            page = read_page(self._view.reader(), self._filter, self._next_sequence, BATCH_LIMITS)
            self._next_sequence = page.last + 1
            if page.records:
                return [TopicRecord(*one) for one in page.records]
            holds_log_lock = self._cursor_store is not None and self._cursor_store.holds_log_lock
            if holds_log_lock or (until is not None and time.monotonic() >= until):
                return []
            time.sleep(POLL_SECONDS)
            self._view.refresh()

    def confirm(self, sequence: int) -> None:
        if self._cursor_store is not None:
            self._cursor_store.put(sequence)


def cursor_positions(folder: Path) -> KnownPositions:
    """Return a reader of the cursors in the folder of a log: what the durable subscribers have confirmed."""

    def known(epoch: str, since_ns: int) -> dict[str, int]:
        path = folder / "cursors"
        if not path.exists():
            return {}
        with closing(open_cursors(f"file:{path}")) as cursors:
            return positions_of(cursors.all(), epoch)

    return known


# -- topics ------------------------------------------------------------------------------------------------------------

BYTES_PER_PAGE = 1 << 20
DIRECT_REASON = "opened directly"


class LocalTopics:
    """Topics of a log folder, opened directly; same methods as ``client.topics``.

    The log is opened for writing, with its lock, only when an operation needs it, and stays open until the end."""

    def __init__(self, folder: Path, durability: str) -> None:
        self._folder = folder
        self._settings = LogSettings(durability="os" if durability == "os" else "full")
        self._open_log: SegmentLog | None = None
        self._open_view: SegmentView | None = None

    def __enter__(self) -> "LocalTopics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open_log is not None:
            self._open_log.close()

    @property
    def loss(self) -> str:
        """Why opening the log for writing began a new epoch, or ""."""
        return "" if self._open_log is None else self._open_log.loss

    @property
    def exists(self) -> bool:
        return self._folder.is_dir() and has_segments(str(self._folder))

    def _log(self) -> SegmentLog:
        """Open the log for writing once. Its lock is held until the command ends."""
        if self._open_log is None:
            make_folder(self._folder.absolute().parent)
            self._open_log = SegmentLog(self._folder, self._settings, known=cursor_positions(self._folder))
        return self._open_log

    def _view(self) -> SegmentView:
        """Return the view of the log, refreshed from disk."""
        if self._open_view is None:
            self._open_view = SegmentView(self._folder)
        else:
            self._open_view.refresh()
        return self._open_view

    # -- publishing, trimming ---------------------------------------------------------------------------------------

    def publish_many(self, records: Iterable[Any]) -> Sequence[Receipt]:
        new = [*each_new(records)]
        if not new:
            return []
        log = self._log()
        done = log.append(new)
        latest = {topic: state.topic_sequence for topic, state in log.topics().items()}
        made: list[Receipt] = []
        for back, record in enumerate(reversed(new)):
            made.append(Receipt(log.epoch, done.last - back, latest[record.topic], done.at_ns))
            latest[record.topic] -= 1
        return made[::-1]

    def trim(self, before: int, *, dry_run: bool = False) -> dict[str, Any]:
        if dry_run:
            return dict(plan_trim(self._view().chain, before)._asdict())
        self._view()  # raises if there is no log, so that none is created
        return dict(self._log().trim(before)._asdict())

    # -- reading -------------------------------------------------------------------------------------------------------

    def list(self) -> dict[str, Any]:
        about: dict[str, Any] = {"state": "", "reason": DIRECT_REASON, "gaps": [], "topics": []}
        if not self.exists:
            return about
        view = self._view()
        about |= {"epoch": view.epoch, "first": view.first, "last": view.last, "subscribers": 0}
        rows = [_row(topic, state) for topic, state in sorted(view.topics().items())]
        return {**about, "gaps": [[*gap] for gap in view.gaps()], "topics": rows}

    def show(self, topic: str) -> dict[str, Any]:
        check_topic(topic)
        rows: Iterable[dict[str, Any]] = self.list()["topics"]
        for row in rows:
            if row["topic"] == topic:
                return row
        raise NotFound(f"there is no topic {topic!r}", field="topic")

    def subscribers(self) -> Sequence[dict[str, Any]]:
        """Return the durable subscribers; without a server there are no connected ones.

        Return an empty list if another process holds the lock of the log."""
        if not (self._folder / "cursors").exists() or not self.exists:
            return []
        lock = None
        try:
            if self._open_log is None:
                lock = StoreLock(f"log:{self._folder}", Holder(os.getpid(), "", default_consumer(), ""))
            cursors = open_cursors(self._cursors_url)
            with closing(cursors):
                view = self._view()
                return [{**cursor_document(one, _lag(view, one)), "state": "offline"} for one in cursors.all()]
        except StoreBusy:
            return []  # the process that holds the lock has the current cursors
        finally:
            if lock is not None:
                lock.close()

    def drop_subscriber(self, name: str, *, dry_run: bool = False) -> None:
        """Forget a durable subscriber. Takes the lock of the log, so that no server uses the cursors meanwhile."""
        check_subscriber(name)
        self._view()  # raises if there is no log, so that none is created
        self._log()
        with closing(open_cursors(self._cursors_url)) as cursors:
            if cursors.get(name) is None:
                raise NotFound(f"there is no durable subscriber {name!r}", field="name")
            if not dry_run:
                cursors.drop(name)

    @property
    def _cursors_url(self) -> str:
        return f"file:{self._folder / 'cursors'}"

    def read(
        self,
        topics: str | Sequence[str] = (),
        *,
        sequence: int | None = None,
        time: datetime | None = None,
        limit: int = 100,
    ) -> TopicPage:
        view = self._view()
        reader = view.reader()
        if sequence is None:
            sequence = view.first if time is None else max(reader.sequence_at(_nanoseconds(time)), view.first)
        found = read_page(reader, make_filter(listed(topics)), sequence, PageLimits(limit, BYTES_PER_PAGE))
        records = [TopicRecord(*one) for one in found.records]
        return TopicPage(view.epoch, view.first, view.last, found.last + 1, records)

    # -- subscribing ---------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: str | Sequence[str] = (),
        *,
        mask: int = 0,
        name: str = "",
        start: str = "new",
        sequence: int | None = None,
        time: datetime | None = None,
        epoch: str = "",
        resume: bool = True,
        cursor_file: str | None = None,
        **others: Any,
    ) -> LocalSubscription:
        """Start a subscription. ``others`` are options of connections, ignored here."""
        if mask:
            raise BadInput("is of a server: its setting topic_masks says what the bits mean", field="--mask")
        view = SegmentView(self._folder, epoch=epoch or None)
        if time is not None:
            sequence = max(view.reader().sequence_at(_nanoseconds(time)), view.first)
        elif sequence is None:
            sequence = view.first if start == "beginning" else view.last + 1
        if sequence > view.last + 1:
            raise BadInput(f"is {sequence}, and the last one there is {view.last}", field="sequence")
        filter = make_filter(listed(topics))
        cursor_store = self._cursor_store(name, cursor_file, view.epoch, filter.text)
        return start_subscription(view, filter, sequence, cursor_store, resume=resume)

    def _cursor_store(self, name: str, file: str | None, epoch: str, text: str) -> LocalCursor | None:
        if name and file is not None:
            raise BadInput("stands beside --name; one of them keeps the cursor", field="--cursor")
        if file is not None:
            return LocalFileCursor(CursorFile(file), epoch)
        if not name:
            return None
        self._log()  # take the lock: a server started meanwhile would write the cursors too
        return LocalNamedCursor(open_cursors(self._cursors_url), Cursor(check_subscriber(name), epoch, 0, text, 0))


def _row(topic: str, state: TopicState) -> dict[str, Any]:
    return {
        "topic": topic,
        "topicSequence": state.topic_sequence,
        "sequence": state.sequence,
        "at": instant(state.at_ns),
        "records": state.records,
        "bytes": state.size,
        "publishedPerSec": None,
    }


def _lag(view: SegmentView, cursor: Cursor) -> int:
    """Return the number of records after a cursor that match its filter."""
    filter, last = filter_of_text(cursor.filter), view.last
    if filter is None or filter.is_all or cursor.epoch != view.epoch:
        return lag_in_log(cursor, view.epoch, last)
    return count_after(view.reader(), filter, min(cursor.sequence, last), last)


def _nanoseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000) * 1000
