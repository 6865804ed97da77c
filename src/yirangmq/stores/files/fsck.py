"""Consistency check of a files store, based on the file names. The same pass builds a new index.

``StoreCheck`` walks all queues and yields each problem with its repair (``stores.files.repair``). After all repairs
have run, its attribute ``index_builder`` holds the correct index. ``stores.files.recovery`` decides which repairs run.

``MetadataCheck`` checks the files that belong to a queue's messages, after the messages: failures, deduplication keys,
totals and the policy."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

from yirangmq.core.errors import BadPolicy
from yirangmq.core.message import Counts, Message
from yirangmq.core.states import UNFINISHED, State
from yirangmq.core.validation import QUEUE
from yirangmq.fsio.disk import exists, isdir, listdir, read_bytes, subfolders
from yirangmq.stores.files.commit import TRASH
from yirangmq.stores.files.index_update import IndexBuilder
from yirangmq.stores.files.layout import (
    FAILURES,
    TEMP,
    read_key,
    spares,
    stray_files,
    temps,
    walk,
    walk_failures,
    walk_keys,
)
from yirangmq.stores.files.layout import SPARE_FOLDER as SPARES
from yirangmq.stores.files.message_file import UnreadableContent, fill_from_content, read_envelope, read_failure
from yirangmq.stores.files.metadata import COUNTER, Policies, read_counter, unfinished_notes
from yirangmq.stores.files.metadata import FOLDER as NOTES
from yirangmq.stores.files.metadata import TEMP as NOTE_TEMP
from yirangmq.stores.files.names import (
    OMITTED,
    FileRow,
    folder_for,
    leading_number,
    needs_content,
    read_name,
    state_folder_of,
)
from yirangmq.stores.files.overlay import is_counted, weight
from yirangmq.stores.files.repair import (
    GroupOrderCheck,
    LostKeyRestore,
    Problem,
    ProblemBuilder,
    freed,
    held,
    id_claim_key,
    path_of,
    repaired_by_recovery,
    state_order_key,
)
from yirangmq.stores.files.timer_index import TimeBucket, bucket_of
from yirangmq.stores.files.totals import FOLDER as TOTALS_FOLDER
from yirangmq.stores.files.totals import (
    TOTALS,
    ZERO,
    Numbers,
    TotalsBase,
    base_of,
    interrupted_shares,
    latest,
    minus,
    plus,
    share_of,
    shares_of,
)
from yirangmq.stores.files.undo_log import FileBatch, StoreRoot, is_blank
from yirangmq.stores.files.view import failure_path

# -- failures, keys, totals, policy ------------------------------------------------------------------------------------

_FAILURE_NAME = re.compile(r"([0-9]{12,16})[ab]\.json")


class MetadataCheck:
    """Check of a queue's metadata files, to run after the check of its messages.

    ``row_of``: return the message of a number as found on disk, or None."""

    def __init__(
        self,
        folder: str,
        index_builder: IndexBuilder,
        problem_builder: ProblemBuilder,
        row_of: Callable[[int], FileRow | None],
    ) -> None:
        self._folder = folder
        self._index_builder = index_builder
        self._problem_builder = problem_builder
        self._row_of = row_of

    def _has(self, seq: int) -> bool:
        record = self._index_builder.record(seq)
        return record is not None and record.queue == self._problem_builder.queue

    def failures(self, contents: bool) -> Iterator[Problem]:
        for below, names in walk_failures(self._folder):
            for name in names:
                path = f"{FAILURES}/{below}/{name}"
                found = _FAILURE_NAME.fullmatch(name)
                seq = int(found[1]) if found else 0
                if not self._has(seq):
                    yield self._problem_builder.unlinked("orphan", path, "a failure without its message")
                elif contents:
                    try:
                        read_failure(read_bytes(f"{self._folder}/{path}") or b"")
                    except UnreadableContent as error:
                        yield self._with_new_failure(
                            self._problem_builder.rejected("broken", path, str(error)), seq, name[-6]
                        )

    def _with_new_failure(self, problem: Problem, seq: int, which: str) -> Problem:
        """Extend the quarantine of an unreadable failure file: if the message refers to that file, write a new one from
        the facts in the message's name."""
        row = self._row_of(seq)
        quarantine_file = problem.repair

        def repair() -> None:
            if quarantine_file is not None:
                quarantine_file()
            if row is not None and row.failure == which:
                self._problem_builder.rewrite_failure(row)

        return problem._replace(repair=repair)

    def keys(self, keyed: dict[int, FileRow]) -> Iterator[Problem]:
        """Check the key files. ``keyed``: messages with the key mark in their names; those with a key file are removed
        from it."""
        for below, names in walk_keys(self._folder):
            for name in names:
                path = f"meta/keys/{below}/{name}"
                file = read_key(name)
                if file is None or file.path != path:
                    yield self._problem_builder.unlinked("wrong name", path, "is not the name of a key")
                    continue
                is_here = self._has(file.key.seq)
                if not is_here and not file.outlived:
                    yield self._problem_builder.unlinked("orphan", path, "a key whose message never was")
                    continue
                if not file.is_endless:
                    keyed.pop(file.key.seq, None)
                    if is_here:
                        self._index_builder.set_until(file.key.seq, file.key.until)
                self._index_builder.add_key(file.key)
                self._index_builder.last = max(self._index_builder.last, file.key.seq)

    def totals(self) -> Iterator[Problem]:
        names = listdir(f"{self._folder}/{TOTALS_FOLDER}")
        in_force = latest(names)
        for name in sorted(names):
            if name != in_force:
                yield self._problem_builder.unlinked("totals", f"{TOTALS_FOLDER}/{name}", "is not the latest")

    def policy(self, policies: Policies) -> Iterator[Problem]:
        queue = self._problem_builder.queue
        try:
            policies.policy(queue, policies.text(queue))
        except BadPolicy as error:
            yield Problem("policy", self._problem_builder.where("config/policy.json"), str(error), None)


# -- messages of all queues --------------------------------------------------------------------------------------------

STUCK = ("stuck", "is held, and no message of its group is before it")
OUT_OF_ORDER = ("out of turn", "is not held, and other messages of its group are before it")


class StoreCheck:
    """Consistency check of the whole store. An instance is used once, under the store's lock.

    ``index_builder`` is the correct index after every repair has run."""

    def __init__(self, store_root: StoreRoot, progress: Callable[[int], None] = lambda done: None) -> None:
        """``progress`` gets the number of files that were checked, after each folder."""
        self._root = store_root.root
        self._progress = progress
        self._checked_files = 0
        self._policies = Policies(store_root.root)
        self.batch = FileBatch(store_root)
        self.index_builder = IndexBuilder()
        self.due: defaultdict[TimeBucket, dict[str, None]] = defaultdict(dict)
        self.empty_folders: list[str] = []
        """Message folders that hold no files."""
        self.spares: list[str] = []
        """Paths of spare files."""
        self.lost_keys = LostKeyRestore(store_root.root, self._policies, self.batch, self.index_builder)
        self.reserved = 0
        self.bases: dict[str, TotalsBase] = {}
        """New base of the totals, for each queue with a wrong stored base."""
        self._counts: dict[str, int] = {}
        self._states: defaultdict[State, int] = defaultdict(int)
        """Number of messages of the current queue by state, including those without content."""
        self._quarantined_share: Numbers = ZERO
        """Share of the current queue's quarantined messages in its totals, to be added to the base."""
        self._interrupted_shares = interrupted_shares(store_root.root)
        self._keyed: dict[int, FileRow] = {}
        self._group_check = GroupOrderCheck(self.index_builder.record)
        self._queue = ""
        self._problem_builder = ProblemBuilder(store_root.root, "", self.batch)

    def problems(self, *, contents: bool) -> Iterator[Problem]:
        """Yield all problems. ``contents``: read and check the content of every file too."""
        for name in sorted(listdir(f"{self._root}/{TRASH}")):
            path = f"{self._root}/{TRASH}/{name}"
            repair = partial(self.batch.discard_tree, path)
            yield Problem("trash", f"{TRASH}/{name}", "left of a deleted queue", repair)
        for queue in sorted(filter(QUEUE.fullmatch, subfolders(self._root))):
            if isdir(f"{self._root}/{queue}/inbox"):
                yield from self._check_queue(queue, contents)
            else:
                yield from self._check_unfinished_queue(queue)
        for name in unfinished_notes(self._root):
            path = f"{NOTES}/{NOTE_TEMP}/{name}"
            repair = partial(self.batch.discard, f"{self._root}/{path}")
            yield Problem("temp", path, "a note that was never finished", repair)
        yield from self._check_counter()

    def _check_unfinished_queue(self, queue: str) -> Iterator[Problem]:
        """Check a queue of which a power cut interrupted the creation. It has no messages, but its temporary files must
        be removed, because their names are used again."""
        self._queue, self._problem_builder = queue, ProblemBuilder(self._root, queue, self.batch)
        yield from self._check_temps(f"{self._root}/{queue}")

    def _check_queue(self, queue: str, contents: bool) -> Iterator[Problem]:
        self._queue, self._problem_builder = queue, ProblemBuilder(self._root, queue, self.batch)
        self._counts = dict.fromkeys(Counts._fields, 0)
        self._states.clear()
        self._quarantined_share = ZERO
        self._keyed = {}
        self._group_check = GroupOrderCheck(self.index_builder.record)
        self.index_builder.add_queue(queue)
        folder = f"{self._root}/{queue}"
        for name in spares(folder):
            path = f"{self._root}/{queue}/{SPARES}/{name}"
            self.spares.append(path)
            if contents and not is_blank(path):
                yield self._problem_builder.unlinked("temp", f"{SPARES}/{name}", "a spare file that is not blank")
        for path in stray_files(folder):
            yield self._problem_builder.rejected("stray", path, "is not in a folder of messages")
        for top, below, names in walk(folder):
            if not names:
                self.empty_folders.append(f"{folder}/{top}/{below}")
            for name in names:
                row = self._read(top, f"{top}/{below}", name)
                if row is None:
                    yield self._problem_builder.rejected(
                        "wrong name", f"{top}/{below}/{name}", "is not the name of a message"
                    )
                elif row.message.group == OMITTED:
                    yield self._reject(row, "broken", f"{top}/{below}/{name}", "has not what its name leaves to it")
                elif contents or not self._is_plain(row, f"{top}/{below}"):
                    yield from self._check_row(row, top, f"{top}/{below}", contents)
                else:
                    self._add_row(row, top)
            self._checked_files += len(names)
            self._progress(self._checked_files)
        yield from self._check_groups()
        yield from self._check_temps(folder)
        metadata_check = MetadataCheck(folder, self.index_builder, self._problem_builder, self._row_of)
        yield from metadata_check.failures(contents)
        yield from metadata_check.keys(self._keyed)
        self.lost_keys.add(self._keyed.values())
        yield from metadata_check.totals()
        self._count_totals()
        if contents:
            yield from metadata_check.policy(self._policies)
        self.index_builder.counts[queue] = Counts(**self._counts)

    def _count_totals(self) -> None:
        """Compute the totals: the counts from the names plus the base. Add to the base the share of quarantined
        messages, and of an interrupted batch (``stores.files.totals``)."""
        queue, named = self._queue, shares_of(self._states)
        name, base = base_of(self._root, queue)
        if base.version == 0 and name is not None:  # format 2: whole totals, which may lag behind the names
            base = TotalsBase(1, tuple(max(0, step) for step in minus(base.numbers, named)))
        begun, share = self._interrupted_shares.get(queue, ("", ZERO))
        if queue in self._interrupted_shares and begun == (name or "") and any(share):
            base = base.plus(share)
        if any(self._quarantined_share):
            base = base.plus(self._quarantined_share)
        if base.name != name and (name is not None or any(base.numbers)):
            self.bases[queue] = base
        self._counts.update(zip(TOTALS, plus(base.numbers, named), strict=True))

    # -- messages -------------------------------------------------------------------------------------------------

    def _read(self, top: str, folder: str, name: str) -> FileRow | None:
        """Parse a name, and read the fields it omits from the content if the check needs them.

        The group of the card is ``OMITTED`` if the content should have it and cannot be read."""
        row = read_name(self._queue, top, name)
        if row is None or not needs_content(row) or (row.message.group == 0 and row.message.state not in UNFINISHED):
            return row
        known = fill_from_content(row, read_bytes(f"{self._root}/{self._queue}/{folder}/{name}") or b"")
        if known is None:
            return row
        return known if known.name == name else None

    def _is_plain(self, row: FileRow, folder: str) -> bool:
        """Fast path: return True if the file is in the right folder, has no failure, and shares neither number nor id
        with another message. This holds for nearly all messages; they need no further check."""
        message = row.message
        return (
            not row.failure
            and row.folder == folder
            and self.index_builder.record(message.seq) is None
            and self.index_builder.add_new_id(self._queue, message.id, message.seq)
        )

    def _check_row(self, row: FileRow, top: str, folder: str, contents: bool) -> Iterator[Problem]:
        path = f"{folder}/{row.name}"
        if row.folder != folder:
            yield self._problem_builder.moved(path, row)
        there = self.index_builder.record(row.message.seq)
        if there is not None:
            other = self._row_of(row.message.seq)
            if other == row:
                return  # a repair has just moved it to the right folder
            if other is None or there.queue != self._queue:
                yield self._problem_builder.rejected(
                    "same number", path, f"queue {there.queue} has a message of this number"
                )
                return
            winner, loser = sorted((other, row), key=state_order_key, reverse=True)
            yield self._problem_builder.unlinked(
                "twice", path_of(loser), f"is also {winner.message.state}, which is later"
            )
            if winner is other:
                return
            self._count(other.message, -1)
        else:
            duplicate = self._find_duplicate(row)
            if duplicate is not None:
                winner, loser = sorted((duplicate, row), key=id_claim_key, reverse=True)
                yield self._problem_builder.rejected(
                    "same id", path_of(loser), f"message {winner.message.seq} has the same id"
                )
                if winner is duplicate:
                    return
                self._count(duplicate.message, -1)
                self.index_builder.remove(duplicate.message.seq)
            self.index_builder.add_id(self._queue, row.message.id, row.message.seq)
        if contents:
            here = path if exists(f"{self._root}/{self._queue}/{path}") else path_of(row)
            if reason := self._broken(row, here):
                yield self._reject(row, "broken", here, reason)
                return
        yield from self._add_checked_row(row, top)

    def _add_row(self, row: FileRow, top: str) -> None:
        message = row.message
        self._add_to_index(row, top)
        self._group_check.add(message)
        if row.keyed:
            self._keyed[message.seq] = row

    def _add_to_index(self, row: FileRow, top: str) -> None:
        message = row.message
        self.index_builder.put(row, top)
        self._count(message, 1)
        if message.due_at:
            self.due[bucket_of(message.due_at, message.changed_at)][f"{self._queue}/{row.folder}"] = None

    def _add_checked_row(self, row: FileRow, top: str) -> Iterator[Problem]:
        self._add_row(row, top)
        message = row.message
        if row.failure and not exists(failure_path(self._root, message, row.failure)):
            repair = partial(self._problem_builder.rewrite_failure, row)
            yield Problem("no reason", self._problem_builder.where(path_of(row)), "its failure is lost", repair)

    def _reject(self, row: FileRow, kind: str, path: str, text: str) -> Problem:
        """Build the problem that quarantines a message of the queue. The message stays in the totals."""
        self._quarantined_share = plus(self._quarantined_share, share_of(row.message))
        return self._problem_builder.rejected(kind, path, text)

    def _count(self, message: Message, step: int) -> None:
        self._states[message.state] += step
        if is_counted(message):
            self._counts[message.state.value] += step
            self._counts["bytes"] += step * weight(message)

    def _row_of(self, seq: int) -> FileRow | None:
        """Return the first card found with this number in the current queue, or None."""
        record = self.index_builder.record(seq)
        if record is None or record.queue != self._queue:
            return None
        folder = folder_for(record.top, seq, record.rank, record.place, record.changed_at, record.target)
        begin = leading_number(record.top, seq, record.place, record.changed_at)
        for name in listdir(f"{self._root}/{record.queue}/{folder}"):
            if name.startswith(begin):
                row = self._read(record.top, folder, name)
                if row is not None and row.message.seq == seq and row.message.changed_at == record.changed_at:
                    return row
        return None

    def _find_duplicate(self, row: FileRow) -> FileRow | None:
        """Return another message of the queue with the same id, or None."""
        for seq in self.index_builder.seqs_of(self._queue, row.message.id):
            other = self._row_of(seq)
            if other is not None and other.message.id == row.message.id and other.message.queue == self._queue:
                return other
        return None

    def _broken(self, row: FileRow, path: str) -> str:
        if not row.message.body or row.message.state is State.DROPPED:
            return ""
        try:
            text = read_bytes(f"{self._root}/{self._queue}/{path}")
            read_envelope(b"" if text is None else text, row.message, 0)
        except UnreadableContent as error:
            return str(error)
        return ""

    def _check_groups(self) -> Iterator[Problem]:
        for group, members in self._group_check.groups():
            self.index_builder.add_group(group, members)
            for seq in self._group_check.misplaced(members):
                row = self._row_of(seq)
                if row is not None:
                    yield self._correct_group_state(row)

    def _correct_group_state(self, row: FileRow) -> Problem:
        is_first = row.message.state is State.HELD
        after = row._replace(message=freed(row.message, self._available_at(row)) if is_first else held(row.message))

        def after_repair() -> None:
            self._count(row.message, -1)
            self._add_to_index(after, state_folder_of(after.message))
            if row.keyed:
                self._keyed[row.message.seq] = after

        return self._problem_builder.changed(STUCK if is_first else OUT_OF_ORDER, row, after, after_repair)

    def _available_at(self, row: FileRow) -> int:
        try:
            text = read_bytes(f"{self._root}/{self._queue}/{path_of(row)}")
            return read_envelope(text or b"", row.message, 0).available_at
        except UnreadableContent:
            return 0

    def _check_temps(self, folder: str) -> Iterator[Problem]:
        """Check the temporary files. Quarantine one that holds a message which is not in the queue; remove all others:
        old versions of existing messages, and unfinished metadata files."""
        for name in temps(folder):
            number, text = name.removesuffix(".tmp"), "a file that was never finished"
            record = self.index_builder.record(int(number)) if number.isdecimal() else None
            is_message = number.isdecimal() and (record is None or record.queue != self._queue)
            yield (self._problem_builder.rejected if is_message else self._problem_builder.unlinked)(
                "temp", f"{TEMP}/{name}", text
            )

    def _check_counter(self) -> Iterator[Problem]:
        temp = f"{COUNTER}.tmp"
        if exists(f"{self._root}/{temp}"):
            repair = partial(self.batch.discard, f"{self._root}/{temp}")
            yield Problem("temp", temp, "a file that was never finished", repair)
        counter = read_counter(self._root)
        self.reserved = counter.reserved if counter else 0
        if counter is None and exists(f"{self._root}/{COUNTER}"):
            yield Problem("counter", COUNTER, "cannot be read", repaired_by_recovery)
        elif self.reserved < self.index_builder.last:
            text = f"is at {self.reserved}, the names are at {self.index_builder.last}"
            yield Problem("counter", COUNTER, text, repaired_by_recovery)
