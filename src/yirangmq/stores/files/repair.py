"""Repair actions of the files store: moves, removals and quarantine; the order of groups; duplicate files.

``ProblemBuilder`` builds each ``Problem`` that ``stores.files.fsck`` finds, with its repair action.
``stores.files.recovery`` runs the actions.

``GroupOrderCheck`` collects the members of groups from the names. Invariant: the first member of a group is not held,
all others are. A batch interrupted by a power cut may have released the next member without finishing the one before
it, or finished one without releasing the next. The batch was never confirmed, so both repairs are correct.

``state_order_key`` and ``id_claim_key`` decide which of two files for one message, or for one id, is kept. After a
power cut a message may exist under its old name too. The later state is kept: more leases, then the later change, then
the order of ``STATE_ORDER``. Only an unconfirmed change can leave two names, so both choices are correct.

``LostKeyRestore`` restores lost deduplication keys: a power cut may keep a new message and lose its key. The publish of
that message was never confirmed, and a producer that repeats it must get a duplicate."""

import os
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from yirangmq.core import transitions
from yirangmq.core.errors import BadPolicy
from yirangmq.core.message import Message, MessageFailure, Reason
from yirangmq.core.policy import read_policy
from yirangmq.core.states import UNFINISHED, State
from yirangmq.fsio.disk import read_bytes
from yirangmq.stores.files.index import IndexRecord, KeyRecord, key_print
from yirangmq.stores.files.index_update import IndexBuilder
from yirangmq.stores.files.layout import KeyFile
from yirangmq.stores.files.message_file import FailureOrigin, UnreadableContent, read_envelope, write_failure
from yirangmq.stores.files.metadata import Policies
from yirangmq.stores.files.names import STATE_FOLDERS, FileRow
from yirangmq.stores.files.undo_log import FileBatch, quarantine
from yirangmq.stores.files.view import failure_path

# -- problems and their repair -----------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """A problem found by the check, with its repair action. The action is None if the problem must be fixed by hand."""

    kind: str
    where: str
    text: str
    repair: Callable[[], object] | None


class ProblemBuilder:
    """Builder of problems with their repair actions, for one queue. Paths are relative to the queue's folder.

    Nothing changes on disk before an action is called."""

    def __init__(self, root: str, queue: str, batch: FileBatch) -> None:
        self._root = root
        self.queue = queue
        self._batch = batch

    def where(self, path: str) -> str:
        return f"{self.queue}/{path}"

    def unlinked(self, kind: str, path: str, text: str) -> Problem:
        full = self._full(path)
        return Problem(kind, self.where(path), text, lambda: self._batch.unlink(full))

    def rejected(self, kind: str, path: str, text: str) -> Problem:
        full, why = self._full(path), f"{kind}: {text}"
        quarantine_file = partial(quarantine, self._root, self._batch, self.queue, full, why)
        return Problem(kind, self.where(path), text, quarantine_file)

    def moved(self, path: str, row: FileRow) -> Problem:
        source, target = self._full(path), self._full(path_of(row))
        return Problem(
            "misplaced", self.where(path), f"belongs to {row.folder}", lambda: self._batch.rename(source, target)
        )

    def changed(
        self, problem: tuple[str, str], row: FileRow, after: FileRow, after_repair: Callable[[], object]
    ) -> Problem:
        """Build the problem of a message that is in the wrong state.

        ``problem``: kind and text. ``after_repair`` is called after the rename."""
        source, target = self._full(path_of(row)), self._full(path_of(after))

        def repair() -> None:
            self._batch.rename(source, target)
            after_repair()

        kind, text = problem
        return Problem(kind, self.where(path_of(row)), text, repair)

    def _full(self, path: str) -> str:
        return f"{self._root}/{self.queue}/{path}"

    def rewrite_failure(self, row: FileRow) -> None:
        """Write a new failure file with the facts in the message's name. The text of the failure is lost."""
        message = row.message
        text = "the text of this failure was lost"
        failure = MessageFailure(
            message.reason or Reason.CORRUPT, text, message.changed_at, message.attempt, message.consumer
        )
        path = failure_path(self._root, message, row.failure)
        origin = FailureOrigin(message.id, message.queue, read_policy({}, message.queue).dlq.queue)
        self._batch.folder(os.path.dirname(path))
        self._batch.write_files([(path, write_failure(failure, origin))])


def repaired_by_recovery() -> None:
    """Repair of the number counter: no action, because recovery rewrites the counter at its end."""


def path_of(row: FileRow) -> str:
    """Return the path of a message file, relative to the queue's folder."""
    return f"{row.folder}/{row.name}"


# -- order of groups ---------------------------------------------------------------------------------------------------


class GroupOrderCheck:
    """Group members of one queue, as found in the names, and the check of their order. 16 bytes a member."""

    def __init__(self, record_of: Callable[[int], IndexRecord | None]) -> None:
        self._record_of = record_of
        self._members: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))

    def add(self, message: Message) -> None:
        if message.group and message.state in UNFINISHED:
            self._members[message.group].extend((message.place, message.seq))

    def groups(self) -> "Iterator[tuple[int, array[int]]]":
        """Yield each group with its members in order: alternating place and number.

        An added message may have been rejected or moved since, so members without a matching record are skipped."""
        for group, raw in self._members.items():
            pairs = sorted(set(zip(raw[::2], raw[1::2], strict=True)))
            there = [pair for pair in pairs if self._is_there(*pair)]
            if there:
                yield group, array("q", [number for pair in there for number in pair])

    def _is_there(self, place: int, seq: int) -> bool:
        record = self._record_of(seq)
        return record is not None and record.place == place and STATE_FOLDERS[record.top][0] in UNFINISHED

    def misplaced(self, members: "array[int]") -> Iterator[int]:
        """Yield the number of the first member if it is held, and of all other members that are not held."""
        for at, seq in enumerate(members[1::2]):
            record = self._record_of(seq)
            if record is not None and (record.top == "held") == (at == 0):
                yield seq


def freed(message: Message, available_at: int) -> Message:
    """Return a held message as released: delayed if its delay was not over at its last change, else ready.

    If the delay is over by now, the sweep makes it ready."""
    return transitions.free(message, available_at, message.changed_at)


def held(message: Message) -> Message:
    """Return a message as held behind the others. A lease or claim is revoked: it was never confirmed to a consumer."""
    if message.state in (State.LEASED, State.CLAIMED):
        policy = read_policy({}, message.queue)
        message = transitions.release(message, policy, message.changed_at, message.place)
    return transitions.hold(message)


# -- duplicates --------------------------------------------------------------------------------------------------------

STATE_ORDER = (
    State.DRAFT,
    State.CLAIMED,
    State.LEASED,
    State.HELD,
    State.READY,
    State.DELAYED,
    State.PARKED,
    State.DEAD,
    State.DONE,
)


def state_order_key(row: FileRow) -> tuple[int, int, int, int]:
    """Return the sort key for two files with one message number: the larger one is the later state and is kept."""
    message = row.message
    state = STATE_ORDER.index(message.state) if message.state in STATE_ORDER else len(STATE_ORDER)
    return message.leases, message.changed_at, state, message.place


def id_claim_key(row: FileRow) -> tuple[bool, int]:
    """Return the sort key for two messages with one id: the larger one keeps it.

    An unfinished message goes before a finished one, then the older one goes first."""
    is_finished = row.message.state in (State.DONE, State.DROPPED)
    return not is_finished, -row.message.seq


# -- lost deduplication keys -------------------------------------------------------------------------------------------


class LostKeyRestore:
    """Restoration of lost deduplication keys, for messages that were never leased."""

    def __init__(self, root: str, policies: Policies, batch: FileBatch, index_builder: IndexBuilder) -> None:
        self._root = root
        self._policies = policies
        self._batch = batch
        self._index_builder = index_builder
        self._rows: list[FileRow] = []

    def add(self, rows: Iterable[FileRow]) -> None:
        self._rows += [row for row in rows if _is_new(row.message)]

    def restore(self) -> None:
        """Create the key files again, with the keys read from the contents, unless their window is over."""
        for row in self._rows:
            message = row.message
            try:
                window = self._policies.policy(message.queue, self._policies.text(message.queue)).dedup_ms
                text = read_bytes(f"{self._root}/{message.queue}/{path_of(row)}")
                key = read_envelope(text or b"", message, 0).dedup_key
            except (BadPolicy, UnreadableContent):
                continue
            until = message.changed_at + window
            if key is None or self._index_builder.has_key(key_print(message.queue, key)):
                continue  # the key belongs to another message by now
            if until > time.time() * 1000:
                file = KeyFile(KeyRecord(key_print(message.queue, key), message.seq, until), message.id)
                self._batch.create(f"{self._root}/{message.queue}/{file.path}")
                self._index_builder.set_until(message.seq, until)
                self._index_builder.add_key(file.key)


def _is_new(message: Message) -> bool:
    return message.leases == 0 and message.state in (State.READY, State.DELAYED, State.HELD, State.DRAFT)
