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

from yirangmq.client.cursors import CursorFile, Place
from yirangmq.client.topics import Page, each_new
from yirangmq.client.values import Receipt, TopicRecord
from yirangmq.clock import default_consumer
from yirangmq.core.errors import BadInput, NotFound, StoreBusy, WrongEpoch
from yirangmq.core.topic_filter import Filter, make_filter
from yirangmq.core.topics import Cursor, Cursors, TopicState, check_subscriber, check_topic
from yirangmq.format.topic_record import cursor_document, instant
from yirangmq.fsio.atomic_file import make_folder
from yirangmq.stores.cursors import open_cursors
from yirangmq.stores.lock import Holder, StoreLock
from yirangmq.stores.log.check import has_segments
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.stores.log.reader import to_be_trimmed
from yirangmq.stores.log.readonly import SegmentView
from yirangmq.topics.adapters import PageLimits, read_page

# -- subscriptions -----------------------------------------------------------------------------------------------------

POLL_SECONDS = 0.2
"""Poll interval of a log without a server, in seconds."""
BATCH_LIMITS = PageLimits(records=1000)


class Keeping(Protocol):
    """Cursor store of one local subscription: the last confirmed sequence, kept on disk."""

    @property
    def is_alone(self) -> bool:
        """True if the store holds the lock of the log. No publisher can append then, so no further record will come."""

    def get(self) -> Place | None: ...

    def put(self, sequence: int) -> None: ...

    def close(self) -> None: ...


class InFile:
    """Cursor in a file of the user's choice."""

    is_alone = False

    def __init__(self, file: CursorFile, epoch: str) -> None:
        self._file = file
        self._epoch = epoch

    def get(self) -> Place | None:
        return self._file.read()

    def put(self, sequence: int) -> None:
        self._file.write(Place(self._epoch, sequence))

    def close(self) -> None:
        """Do nothing: no file is open."""


class UnderName:
    """Durable cursor under a subscriber name, in the cursor file that a server of this log uses."""

    is_alone = True

    def __init__(self, cursors: Cursors, cursor: Cursor) -> None:
        self._cursors = cursors
        self._cursor = cursor

    def get(self) -> Place | None:
        found = self._cursors.get(self._cursor.name)
        return None if found is None else Place(found.epoch, found.sequence)

    def put(self, sequence: int) -> None:
        self._cursors.put([self._cursor._replace(sequence=sequence, at_ns=time.time_ns())])

    def close(self) -> None:
        self._cursors.close()


def following(
    view: SegmentView, filter: Filter, sequence: int, keeping: Keeping | None, *, resume: bool
) -> "LocalSubscription":
    """Start a subscription after the stored cursor if ``resume`` and there is one; otherwise at ``sequence``.

    Closes ``keeping`` on failure."""
    try:
        found = keeping.get() if keeping is not None and resume else None
        if found is not None and found.epoch != view.epoch:
            raise WrongEpoch(f"what was followed is of the epoch {found.epoch}, this log of {view.epoch}")
        if found is None and keeping is not None:
            keeping.put(sequence - 1)
        return LocalSubscription(view, filter, sequence if found is None else found.sequence + 1, keeping)
    except BaseException:
        if keeping is not None:
            keeping.close()
        raise


class LocalSubscription:
    """Subscription that polls the segment files of a log; not thread-safe."""

    def __init__(self, view: SegmentView, filter: Filter, sequence: int, keeping: Keeping | None) -> None:
        self._view = view
        self._filter = filter
        self._next = sequence
        self._keeping = keeping

    def __enter__(self) -> "LocalSubscription":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeping is not None:
            self._keeping.close()

    def next_batch(self, wait: float | None = None) -> list[TopicRecord]:
        until = None if wait is None else time.monotonic() + wait
        while True:
            page = read_page(self._view.reader(), self._filter, self._next, BATCH_LIMITS)
            self._next = page.last + 1
            if page.records:
                return [TopicRecord(*one) for one in page.records]
            is_alone = self._keeping is not None and self._keeping.is_alone
            if is_alone or (until is not None and time.monotonic() >= until):
                return []
            time.sleep(POLL_SECONDS)
            self._view.refresh()

    def confirm(self, sequence: int) -> None:
        if self._keeping is not None:
            self._keeping.put(sequence)


# -- topics ------------------------------------------------------------------------------------------------------------

BYTES_PER_PAGE = 1 << 20
NOBODY = "opened directly"


class LocalTopics:
    """Topics of a log folder, opened directly; same methods as ``client.topics``.

    The log is opened for writing, with its lock, only when an operation needs it, and stays open until the end."""

    def __init__(self, folder: Path, durability: str) -> None:
        self._folder = folder
        self._settings = LogSettings(durability="os" if durability == "os" else "full")
        self._opened: SegmentLog | None = None
        self._seen: SegmentView | None = None

    def __enter__(self) -> "LocalTopics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def is_there(self) -> bool:
        return self._folder.is_dir() and has_segments(str(self._folder))

    def _log(self) -> SegmentLog:
        """Open the log for writing once. Its lock is held until the command ends."""
        if self._opened is None:
            make_folder(self._folder.absolute().parent)
            self._opened = SegmentLog(self._folder, self._settings)
        return self._opened

    def _view(self) -> SegmentView:
        """Return the view of the log, refreshed from disk."""
        if self._seen is None:
            self._seen = SegmentView(self._folder)
        else:
            self._seen.refresh()
        return self._seen

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
            return dict(to_be_trimmed(self._view().chain, before)._asdict())
        self._view()  # raises if there is no log, so that none is created
        return dict(self._log().trim(before)._asdict())

    # -- reading -------------------------------------------------------------------------------------------------------

    def list(self) -> dict[str, Any]:
        about: dict[str, Any] = {"state": "", "reason": NOBODY, "gaps": [], "topics": []}
        if not self.is_there:
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
        if not (self._folder / "cursors").exists() or not self.is_there:
            return []
        lock = None
        try:
            if self._opened is None:
                lock = StoreLock(f"log:{self._folder}", Holder(os.getpid(), "", default_consumer(), ""))
            cursors = open_cursors(self._cursors_url)
            with closing(cursors):
                view = self._view()
                return [{**cursor_document(one, view.last, view.epoch), "state": "offline"} for one in cursors.all()]
        except StoreBusy:
            return []  # the process that holds the lock has the current cursors
        finally:
            if lock is not None:
                lock.close()

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
    ) -> Page:
        view = self._view()
        reader = view.reader()
        if sequence is None:
            sequence = view.first if time is None else max(reader.sequence_at(_nanoseconds(time)), view.first)
        found = read_page(reader, make_filter(_listed(topics)), sequence, PageLimits(limit, BYTES_PER_PAGE))
        records = [TopicRecord(*one) for one in found.records]
        return Page(view.epoch, view.first, view.last, found.last + 1, records)

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
        filter = make_filter(_listed(topics))
        keeping = self._keeping(name, cursor_file, view.epoch, filter.text)
        return following(view, filter, sequence, keeping, resume=resume)

    def _keeping(self, name: str, file: str | None, epoch: str, text: str) -> Keeping | None:
        if name and file is not None:
            raise BadInput("stands beside --name; one of them keeps the cursor", field="--cursor")
        if file is not None:
            return InFile(CursorFile(file), epoch)
        if not name:
            return None
        self._log()  # take the lock: a server started meanwhile would write the cursors too
        return UnderName(open_cursors(self._cursors_url), Cursor(check_subscriber(name), epoch, 0, text, 0))


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


def _listed(topics: str | Sequence[str]) -> list[str]:
    return [topics] if isinstance(topics, str) else [*topics]


def _nanoseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000) * 1000
