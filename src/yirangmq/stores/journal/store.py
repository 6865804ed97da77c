"""Journaling store: a decorator that writes accepted messages and their outcomes to files by date.

In each commit the lines come first: written, and synced once for all that share the commit. Then the store commits,
and in that same commit records how far the lines are valid (the note ``files-by-date/position``). After a crash, lines
behind that position are truncated (``JournalFiles.open``). A failed commit truncates its lines. Replies wait for both.

``JournaledTransaction`` wraps a transaction and records which messages it accepts and settles. The lines are built at
the commit and carry its time. A transaction that accepts and settles nothing writes no lines.

At open the store is compared with the position: messages without a line get one. If the last commit of a files store
was interrupted, corrections are appended after its lines.

Several nodes may share a store, of which one leads at a time. Each node then has files and a position of its own, with
the commits of its terms, and the comparison is made at the begin of each term: messages that another leader accepted
and that are still in the store get a line. Their outcomes in another node's term are in that node's files alone."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, tzinfo
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from yirangmq.core.errors import BadInput
from yirangmq.core.journal import (
    SETTLED,
    DeliveryResult,
    JournalRecordKind,
    MessageOutcome,
    Position,
    day_of,
    outcome_of,
)
from yirangmq.core.message import Envelope, Message, MessageRun
from yirangmq.core.ports import (
    AddResult,
    Change,
    CheckProgress,
    Clock,
    Finding,
    MessageRunOperations,
    Store,
    Transaction,
    no_progress,
)
from yirangmq.core.states import STORED_STATES, State
from yirangmq.format import journal_line
from yirangmq.format.journal_line import JournalLineHead
from yirangmq.format.json_codec import dumps, loads
from yirangmq.stores.journal.files import JournalFiles, files, lines

# -- observed transaction ----------------------------------------------------------------------------------------------


class JournaledTransaction:
    """Transaction decorator that records which messages the inner transaction accepts and settles.

    ``line_builders`` are functions that build the lines. They run at the commit, because lines carry the commit's time.
    ``seq`` is the highest number of an accepted message. Methods not defined here are those of the inner
    transaction."""

    def __init__(self, inner: Transaction) -> None:
        self.inner = inner
        self.line_builders: list[Callable[[int], Iterator[bytes]]] = []
        self.seq = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def has_lines(self) -> bool:
        return bool(self.line_builders)

    def lines(self, now: int) -> list[bytes]:
        return [line for work in self.line_builders for line in work(now)]

    # -- accept ---------------------------------------------------------------------------------------------------

    def add(
        self, envelopes: Sequence[Envelope], now: int, dedup_until: int, draft_until: int | None = None
    ) -> list[AddResult]:
        stored = self.inner.add(envelopes, now, dedup_until, draft_until)
        fresh = [(one.seq, sent) for one, sent in zip(stored, envelopes, strict=True) if not one.duplicate]
        if fresh and draft_until is None:
            self._accept(fresh)
        return stored

    def rewrite(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        """Rewrite messages. A draft counts as accepted when it gets its content."""
        self.inner.rewrite(messages, envelopes)
        for is_draft, kind in ((True, JournalRecordKind.ACCEPTED), (False, JournalRecordKind.REWRITTEN)):
            found = [
                (row.seq, sent)
                for row, sent in zip(messages, envelopes, strict=True)
                if (row.state is State.DRAFT) is is_draft
            ]
            if found:
                self._accept(found, kind)

    def _accept(
        self, messages: Sequence[tuple[int, Envelope]], kind: JournalRecordKind = JournalRecordKind.ACCEPTED
    ) -> None:
        self.seq = max(self.seq, *(seq for seq, _ in messages))
        self.line_builders.append(lambda now: journal_line.accepted(now, messages, kind))

    # -- settle ---------------------------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> None:
        self.inner.swap(changes)
        recorded = [outcome for outcome in map(outcome_of, changes) if outcome is not None]
        self.record_outcomes(recorded)

    def record_outcomes(self, recorded: Sequence[MessageOutcome], *, completed: bool = False) -> None:
        if recorded:
            self.line_builders.append(
                lambda now: (journal_line.outcome(now, one, completed=completed) for one in recorded)
            )

    def forget(self, messages: Sequence[Message]) -> None:
        self.inner.forget(messages)
        unsettled = [row for row in messages if row.state not in SETTLED and row.state is not State.DRAFT]
        self.record_outcomes(
            [MessageOutcome(row, State.DROPPED, None, row.attempt, "", 0, "cleared") for row in unsettled]
        )

    def delete_queue(self, queue: str) -> None:
        self.inner.delete_queue(queue)
        place = self.inner.places(1)
        self.line_builders.append(lambda now: iter([journal_line.queue_deleted(now, queue, place)]))

    def run_operations(self) -> MessageRunOperations | None:
        runs = self.inner.run_operations()
        return None if runs is None else cast("MessageRunOperations", JournaledRuns(self, runs))

    # -- complete -------------------------------------------------------------------------------------------------

    def add_missing(self, rows: Sequence[Message]) -> None:
        """Record messages of the store that the journal has no line for, and outcomes of the ended ones."""
        sent = self.inner.envelopes(rows)
        found = [(row.seq, one) for row, one in zip(rows, sent, strict=True) if one is not None]
        if found:
            self.seq = max(self.seq, *(seq for seq, _ in found))
            self.line_builders.append(lambda now: journal_line.accepted(now, found, completed=True))
        ended = [row for row in rows if row.state in (State.DONE, State.DEAD, State.PARKED)]
        self.record_outcomes([_outcome_in_store(row) for row in ended], completed=True)


class JournaledRuns:
    """Decorator of ``MessageRunOperations`` that records the outcome of each message of a run."""

    def __init__(self, journaled: JournaledTransaction, runs: MessageRunOperations) -> None:
        self._journaled = journaled
        self._runs = runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runs, name)

    def swap_run(self, run: MessageRun, after: Message) -> None:
        if after.state is State.DONE:
            row = run.row
            rows = self._journaled.inner.by_seq(range(row.seq, row.seq + run.length))
            self._journaled.record_outcomes([_delivered(one) for one in rows if one is not None])
        self._runs.swap_run(run, after)


def _delivered(row: Message) -> MessageOutcome:
    return MessageOutcome(row, State.DONE, DeliveryResult.DELIVERED, row.attempt, row.consumer, row.changed_at)


def _outcome_in_store(row: Message) -> MessageOutcome:
    delivery = DeliveryResult.DELIVERED if row.state is State.DONE else None
    return MessageOutcome(row, row.state, delivery, row.attempt, row.consumer, 0, str(row.reason))


# -- position, and lines against messages ------------------------------------------------------------------------------

POSITION_NOTE = "files-by-date/position"
"""Store note with the position. A node of a shared store has its own: this name, a slash and the node's name."""


def accepted_in(root: Path) -> frozenset[tuple[int, str]]:
    found = set()
    for name in files(root):
        for line in lines(root / name):
            with contextlib.suppress(BadInput):
                head = journal_line.head_of(line)
                if head.kind == JournalRecordKind.ACCEPTED:
                    found.add((head.seq, head.id))
    return frozenset(found)


def last_recorded(found: Iterable[bytes]) -> list[JournalLineHead]:
    """Return the last line of each message."""
    recorded = {}
    for line in found:
        head = journal_line.head_of(line)
        if head.kind != JournalRecordKind.QUEUE_DELETED:
            recorded[head.seq] = head
    return list(recorded.values())


def correction_of(head: JournalLineHead, row: Message | None) -> MessageOutcome | None:
    """Compare the last line of a message with the store, and return the correction to append.

    ``row`` is the message in the store, or None if it is not there. Return None if both agree."""
    is_there = row is not None and row.id == head.id
    if head.kind == JournalRecordKind.OUTCOME and head.state in SETTLED:
        is_wrong = is_there and row is not None and row.state not in SETTLED
    else:
        is_wrong = not is_there
    if not is_wrong:
        return None
    if row is None or not is_there:
        gone = Message(head.seq, head.queue, head.id, State.DROPPED, 0, 0, 0, 0, 0, 0, 0, "", "", 0, False)
        return MessageOutcome(gone, State.DROPPED, None, 0, "", 0, "not_stored")
    return MessageOutcome(row, row.state, None, row.attempt, "", 0, "not_stored")


def read_position(transaction: Transaction, note: str = POSITION_NOTE) -> Position | None:
    """Read the position up to which the files are valid. Return None if there is none, or it cannot be parsed."""
    text = transaction.note(note)
    if text is None:
        return None
    try:
        found = loads(text.encode())
        return Position(str(found["file"]), *(int(found[name]) for name in ("size", "seq", "begin")))
    except (BadInput, KeyError, TypeError, ValueError):
        return None


def write_position(known: Position) -> str:
    return dumps(known._asdict()).decode()


# -- store -------------------------------------------------------------------------------------------------------------

PER_PAGE = 500
COMPLETED = tuple(state for state in STORED_STATES if state is not State.DRAFT)


class JournaledStore:
    """Store decorator (``core.ports.Store``) that journals each commit.

    Members not defined here are those of the inner store. ``zone``: the time zone of the day folders; None is that of
    the system. ``node``: the name of this node if several share the store; ``begin_term`` then opens the files, each
    time that this node begins to lead. ``_known`` is the last position written."""

    def __init__(
        self, store: Store, day_files: JournalFiles, clock: Clock, zone: tzinfo | None = UTC, node: str = ""
    ) -> None:
        self.inner_store = store
        self._store = store
        self.files = day_files
        self._clock = clock
        self._zone = zone
        self._note = f"{POSITION_NOTE}/{node}" if node else POSITION_NOTE
        self._known = Position()
        self.findings = [] if node else self._open()
        """Faults found at the start, repaired or not."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Transaction]:
        inner = self._store.transaction(write=write)
        if not write:
            return inner
        return cast("AbstractContextManager[Transaction]", _JournaledCommit(self, inner))

    def start_day(self) -> None:
        """Create today's file, even if it stays empty.

        It shows that the server ran today and that the day before is complete."""
        with self.transaction() as transaction:
            cast("JournaledTransaction", transaction).line_builders.append(lambda now: iter(()))

    def close(self) -> None:
        with contextlib.suppress(Exception):  # it only shortens the comparison at the next start
            self._advance_position()
        self.files.close()
        self._store.close()

    def wait(self, timeout: float) -> None:
        self._store.wait(timeout)

    def check(self, *, repair: bool, progress: CheckProgress = no_progress) -> Iterator[Finding]:
        return self._store.check(repair=repair, progress=progress)

    def durability(self) -> str:
        return self._store.durability()

    # -- recovery at open -----------------------------------------------------------------------------------------

    def _open(self) -> list[Finding]:
        with self._store.transaction() as transaction:
            known, place = read_position(transaction, self._note), transaction.places(1)
        findings = self.files.open(known)
        self._known = known or Position()
        if known is None or any(finding.kind == "lost" for finding in findings):
            findings += self._completed(self._complete_all())
        else:
            findings += self._completed(self._complete_since(known.seq, place))
            findings += self._correct_last_commit(known)
        self._advance_position()
        return findings

    def begin_term(self) -> list[Finding]:
        """Open the files at the begin of a leader term of this node; return the findings.

        The last commit is not compared: other leaders may have changed its messages since, and a shared store commits
        as a whole."""
        with self._store.transaction(write=False) as transaction:
            known = read_position(transaction, self._note)
        with self.files.lock:
            findings = self.files.open(known)
        self._known = known or Position()
        is_lost = any(finding.kind == "lost" for finding in findings)
        recorded = 0 if known is None or is_lost else known.seq
        findings += self._completed(self._complete_all(recorded))
        self._advance_position()
        return findings

    def _advance_position(self) -> None:
        """Advance the position past all messages in the store, so that the next start does not compare them again."""
        with self._store.transaction() as transaction:
            self._known = self._known._replace(seq=transaction.places(1))
            transaction.set_note(self._note, write_position(self._known))

    def _completed(self, count: int) -> list[Finding]:
        where = str(self.files.root)
        return [Finding("completed", where, f"{count} messages of the store were not there", True)] if count else []

    def _complete_since(self, seq: int, place: int) -> int:
        """Add lines for messages stored since the position.

        They exist if another process used the store without the journal, or a commit of the files store was
        interrupted."""
        count = 0
        for begin in range(seq + 1, place, PER_PAGE):
            with self.transaction() as transaction:
                found = transaction.by_seq(range(begin, min(begin + PER_PAGE, place)))
                rows = [row for row in found if row is not None and row.state is not State.DRAFT]
                cast("JournaledTransaction", transaction).add_missing(rows)
            count += len(rows)
        return count

    def _complete_all(self, recorded: int = 0) -> int:
        """Add lines for all messages that are in the store and not in the files.

        ``recorded``: messages up to this number are in the files; with 0 the files are read to find out."""
        with self._store.transaction(write=False) as transaction:
            queues = [queue for queue in transaction.queues() if any(transaction.counts(queue))]
        known = accepted_in(self.files.root) if queues and not recorded else frozenset()
        return sum(self._complete_state(queue, state, known, recorded) for queue in queues for state in COMPLETED)

    def _complete_state(self, queue: str, state: State, known: frozenset[tuple[int, str]], recorded: int) -> int:
        count, cursor, is_first = 0, "", True
        while cursor or is_first:
            with self.transaction() as transaction:
                page = transaction.scan(queue, state, PER_PAGE, cursor)
                rows = [row for row in page.messages if row.seq > recorded and (row.seq, row.id) not in known]
                cast("JournaledTransaction", transaction).add_missing(rows)
            count, cursor, is_first = count + len(rows), page.cursor, False
        return count

    def _correct_last_commit(self, known: Position) -> list[Finding]:
        """Compare the lines of the last commit with the store, and append corrections.

        A commit of the files store is many renames. If it was interrupted, some lines describe changes that did not
        happen."""
        if not known.file or known.begin >= known.size:
            return []
        recorded = last_recorded(lines(self.files.root / known.file, known.begin))
        with self.transaction() as transaction:
            rows = transaction.by_seq([head.seq for head in recorded])
            wrong = [
                correction
                for head, row in zip(recorded, rows, strict=True)
                if (correction := correction_of(head, row)) is not None
            ]
            cast("JournaledTransaction", transaction).record_outcomes(wrong, completed=True)
        text = "the latest commit was not finished for {} messages; their lines are followed by what is so"
        return [Finding("unfinished", known.file, text.format(len(wrong)), True)] if wrong else []

    # -- commit ---------------------------------------------------------------------------------------------------

    def _write(self, inner: Transaction, recorded: "JournaledTransaction") -> Position:
        """Append the lines and put the new position into the transaction. Requires the lock of the files."""
        now = self._clock.wall_ms()
        mark = self.files.append(day_of(now, self._zone), recorded.lines(now))
        begin = self._known.size if mark.file == self._known.file else 0
        known = Position(mark.file, mark.size, max(self._known.seq, recorded.seq), begin)
        inner.set_note(self._note, write_position(known))
        return known


class _JournaledCommit:
    """Write transaction as a context manager: lines first, then the store commit.

    A failure of either truncates the lines."""

    def __init__(self, store: JournaledStore, inner: AbstractContextManager[Transaction]) -> None:
        self._store = store
        self._inner = inner

    def __enter__(self) -> "JournaledTransaction":
        self._transaction = self._inner.__enter__()
        self._journaled = JournaledTransaction(self._transaction)
        return self._journaled

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if error is not None or not self._journaled.has_lines:
            return self._inner.__exit__(kind, error, trace)
        store, files = self._store, self._store.files
        with files.lock:
            before = files.end
            try:
                known = store._write(self._transaction, self._journaled)
            except BaseException as problem:
                files.truncate_to(before)
                self._inner.__exit__(type(problem), problem, problem.__traceback__)
                raise
            try:
                self._inner.__exit__(None, None, None)
            except BaseException:
                files.truncate_to(before)
                raise
            store._known = known
        return None
