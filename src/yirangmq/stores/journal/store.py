"""Journaling store: a decorator that writes accepted messages and their outcomes to files by date.

In each commit the lines come first: written, and synced once for all that share the commit. Then the store commits,
and in that same commit records how far the lines are valid (the note ``files-by-date/position``). After a crash, lines
behind that position are truncated (``DayFiles.open``). A failed commit truncates its lines. Replies wait for both.

``Observed`` wraps a transaction and records which messages it accepts and settles. The lines are built at the commit
and carry its time. A transaction that accepts and settles nothing writes no lines.

At open the store is compared with the position: messages without a line get one. If the last commit of a files store
was interrupted, corrections are appended after its lines."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from yirangmq.core.errors import BadInput
from yirangmq.core.journal import SETTLED, Delivery, Kind, Outcome, Position, day_of, outcome_of
from yirangmq.core.message import Envelope, Message, Run
from yirangmq.core.ports import Change, Clock, Finding, InRuns, Store, Stored, Transaction
from yirangmq.core.states import KEPT, State
from yirangmq.format import journal_line
from yirangmq.format.journal_line import Head
from yirangmq.format.json_codec import dumps, loads
from yirangmq.stores.journal.files import DayFiles, files, lines

# -- observed transaction ----------------------------------------------------------------------------------------------


class Observed:
    """Transaction decorator that records which messages the inner transaction accepts and settles.

    ``works`` are functions that build the lines. They run at the commit, because lines carry the commit's time. ``seq``
    is the highest number of an accepted message. Methods not defined here are those of the inner transaction."""

    def __init__(self, inner: Transaction) -> None:
        self.inner = inner
        self.works: list[Callable[[int], Iterator[bytes]]] = []
        self.seq = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def is_news(self) -> bool:
        return bool(self.works)

    def lines(self, now: int) -> list[bytes]:
        return [line for work in self.works for line in work(now)]

    # -- accept ---------------------------------------------------------------------------------------------------

    def add(
        self, envelopes: Sequence[Envelope], now: int, dedup_until: int, draft_until: int | None = None
    ) -> list[Stored]:
        stored = self.inner.add(envelopes, now, dedup_until, draft_until)
        fresh = [(one.seq, sent) for one, sent in zip(stored, envelopes, strict=True) if not one.duplicate]
        if fresh and draft_until is None:
            self._accept(fresh)
        return stored

    def rewrite(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        """Rewrite messages. A draft counts as accepted when it gets its content."""
        self.inner.rewrite(messages, envelopes)
        for is_draft, kind in ((True, Kind.ACCEPTED), (False, Kind.REWRITTEN)):
            found = [
                (card.seq, sent)
                for card, sent in zip(messages, envelopes, strict=True)
                if (card.state is State.DRAFT) is is_draft
            ]
            if found:
                self._accept(found, kind)

    def _accept(self, messages: Sequence[tuple[int, Envelope]], kind: Kind = Kind.ACCEPTED) -> None:
        self.seq = max(self.seq, *(seq for seq, _ in messages))
        self.works.append(lambda now: journal_line.accepted(now, messages, kind))

    # -- settle ---------------------------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> None:
        self.inner.swap(changes)
        told = [outcome for outcome in map(outcome_of, changes) if outcome is not None]
        self.settle(told)

    def settle(self, told: Sequence[Outcome], *, completed: bool = False) -> None:
        if told:
            self.works.append(lambda now: (journal_line.outcome(now, one, completed=completed) for one in told))

    def forget(self, messages: Sequence[Message]) -> None:
        self.inner.forget(messages)
        going = [card for card in messages if card.state not in SETTLED and card.state is not State.DRAFT]
        self.settle([Outcome(card, State.DROPPED, None, card.attempt, "", 0, "cleared") for card in going])

    def delete_queue(self, queue: str) -> None:
        self.inner.delete_queue(queue)
        place = self.inner.places(1)
        self.works.append(lambda now: iter([journal_line.queue_deleted(now, queue, place)]))

    def in_runs(self) -> InRuns | None:
        runs = self.inner.in_runs()
        return None if runs is None else cast("InRuns", ObservedRuns(self, runs))

    # -- complete -------------------------------------------------------------------------------------------------

    def complete(self, cards: Sequence[Message]) -> None:
        """Record messages of the store that the journal has no line for, and outcomes of the ended ones."""
        sent = self.inner.envelopes(cards)
        found = [(card.seq, one) for card, one in zip(cards, sent, strict=True) if one is not None]
        if found:
            self.seq = max(self.seq, *(seq for seq, _ in found))
            self.works.append(lambda now: journal_line.accepted(now, found, completed=True))
        over = [card for card in cards if card.state in (State.DONE, State.DEAD, State.PARKED)]
        self.settle([_as_found(card) for card in over], completed=True)


class ObservedRuns:
    """Decorator of ``InRuns`` that records the outcome of each message of a run."""

    def __init__(self, observed: Observed, runs: InRuns) -> None:
        self._observed = observed
        self._runs = runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runs, name)

    def swap_run(self, run: Run, after: Message) -> None:
        if after.state is State.DONE:
            card = run.card
            cards = self._observed.inner.by_seq(range(card.seq, card.seq + run.length))
            self._observed.settle([_delivered(one) for one in cards if one is not None])
        self._runs.swap_run(run, after)


def _delivered(card: Message) -> Outcome:
    return Outcome(card, State.DONE, Delivery.DELIVERED, card.attempt, card.consumer, card.changed_at)


def _as_found(card: Message) -> Outcome:
    delivery = Delivery.DELIVERED if card.state is State.DONE else None
    return Outcome(card, card.state, delivery, card.attempt, card.consumer, 0, str(card.reason))


# -- position, and lines against messages ------------------------------------------------------------------------------

NOTE = "files-by-date/position"


def accepted_in(root: Path) -> frozenset[tuple[int, str]]:
    found = set()
    for name in files(root):
        for line in lines(root / name):
            with contextlib.suppress(BadInput):
                head = journal_line.head_of(line)
                if head.kind == Kind.ACCEPTED:
                    found.add((head.seq, head.id))
    return frozenset(found)


def last_told(found: Iterable[bytes]) -> list[Head]:
    """Return the last line of each message."""
    told = {}
    for line in found:
        head = journal_line.head_of(line)
        if head.kind != Kind.QUEUE_DELETED:
            told[head.seq] = head
    return list(told.values())


def contradicted(head: Head, card: Message | None) -> Outcome | None:
    """Compare the last line of a message with the store, and return the correction to append.

    ``card`` is the message in the store, or None if it is not there. Return None if both agree."""
    is_there = card is not None and card.id == head.id
    if head.kind == Kind.OUTCOME and head.state in SETTLED:
        is_wrong = is_there and card is not None and card.state not in SETTLED
    else:
        is_wrong = not is_there
    if not is_wrong:
        return None
    if card is None or not is_there:
        gone = Message(head.seq, head.queue, head.id, State.DROPPED, 0, 0, 0, 0, 0, 0, 0, "", "", 0, False)
        return Outcome(gone, State.DROPPED, None, 0, "", 0, "not_stored")
    return Outcome(card, card.state, None, card.attempt, "", 0, "not_stored")


def read_position(transaction: Transaction) -> Position | None:
    """Read the position up to which the files are valid. Return None if there is none, or it cannot be parsed."""
    text = transaction.note(NOTE)
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
COMPLETED = tuple(state for state in KEPT if state is not State.DRAFT)


class JournaledStore:
    """Store decorator (``core.ports.Store``) that journals each commit.

    Members not defined here are those of the inner store. ``_known`` is the last position written."""

    def __init__(self, store: Store, day_files: DayFiles, clock: Clock) -> None:
        self._store = store
        self.files = day_files
        self._clock = clock
        self._known = Position()
        self.findings = self._open()
        """Faults found at the start, repaired or not."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Transaction]:
        inner = self._store.transaction(write=write)
        if not write:
            return inner
        return cast("AbstractContextManager[Transaction]", _Commit(self, inner))

    def begin_day(self) -> None:
        """Create today's file, even if it stays empty.

        It shows that the server ran today and that the day before is complete."""
        with self.transaction() as transaction:
            cast("Observed", transaction).works.append(lambda now: iter(()))

    def close(self) -> None:
        with contextlib.suppress(Exception):  # it only shortens the comparison at the next start
            self._all_seen()
        self.files.close()
        self._store.close()

    def wait(self, timeout: float) -> None:
        self._store.wait(timeout)

    def check(self, *, repair: bool) -> Iterator[Finding]:
        return self._store.check(repair=repair)

    def durability(self) -> str:
        return self._store.durability()

    # -- recovery at open -----------------------------------------------------------------------------------------

    def _open(self) -> list[Finding]:
        with self._store.transaction() as transaction:
            known, place = read_position(transaction), transaction.places(1)
        findings = self.files.open(known)
        self._known = known or Position()
        if known is None or any(finding.kind == "lost" for finding in findings):
            findings += self._completed(self._complete_all())
        else:
            findings += self._completed(self._complete_since(known.seq, place))
            findings += self._mend_last(known)
        self._all_seen()
        return findings

    def _all_seen(self) -> None:
        """Advance the position past all messages in the store, so that the next start does not compare them again."""
        with self._store.transaction() as transaction:
            self._known = self._known._replace(seq=transaction.places(1))
            transaction.set_note(NOTE, write_position(self._known))

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
                cards = [card for card in found if card is not None and card.state is not State.DRAFT]
                cast("Observed", transaction).complete(cards)
            count += len(cards)
        return count

    def _complete_all(self) -> int:
        """Add lines for all messages that are in the store and not in the files."""
        with self._store.transaction(write=False) as transaction:
            queues = [queue for queue in transaction.queues() if any(transaction.counts(queue))]
        known = accepted_in(self.files.root) if queues else frozenset()
        return sum(self._complete_state(queue, state, known) for queue in queues for state in COMPLETED)

    def _complete_state(self, queue: str, state: State, known: frozenset[tuple[int, str]]) -> int:
        count, cursor, is_first = 0, "", True
        while cursor or is_first:
            with self.transaction() as transaction:
                page = transaction.scan(queue, state, PER_PAGE, cursor)
                cards = [card for card in page.messages if (card.seq, card.id) not in known]
                cast("Observed", transaction).complete(cards)
            count, cursor, is_first = count + len(cards), page.cursor, False
        return count

    def _mend_last(self, known: Position) -> list[Finding]:
        """Compare the lines of the last commit with the store, and append corrections.

        A commit of the files store is many renames. If it was interrupted, some lines describe changes that did not
        happen."""
        if not known.file or known.begin >= known.size:
            return []
        told = last_told(lines(self.files.root / known.file, known.begin))
        with self.transaction() as transaction:
            cards = transaction.by_seq([head.seq for head in told])
            wrong = [
                not_so
                for head, card in zip(told, cards, strict=True)
                if (not_so := contradicted(head, card)) is not None
            ]
            cast("Observed", transaction).settle(wrong, completed=True)
        text = "the latest commit was not finished for {} messages; their lines are followed by what is so"
        return [Finding("unfinished", known.file, text.format(len(wrong)), True)] if wrong else []

    # -- commit ---------------------------------------------------------------------------------------------------

    def _write(self, inner: Transaction, told: "Observed") -> Position:
        """Append the lines and put the new position into the transaction. Requires the lock of the files."""
        now = self._clock.wall_ms()
        mark = self.files.append(day_of(now), told.lines(now))
        begin = self._known.size if mark.file == self._known.file else 0
        known = Position(mark.file, mark.size, max(self._known.seq, told.seq), begin)
        inner.set_note(NOTE, write_position(known))
        return known


class _Commit:
    """Write transaction as a context manager: lines first, then the store commit.

    A failure of either truncates the lines."""

    def __init__(self, store: JournaledStore, inner: AbstractContextManager[Transaction]) -> None:
        self._store = store
        self._inner = inner

    def __enter__(self) -> "Observed":
        self._transaction = self._inner.__enter__()
        self._told = Observed(self._transaction)
        return self._told

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if error is not None or not self._told.is_news:
            return self._inner.__exit__(kind, error, trace)
        store, files = self._store, self._store.files
        with files.lock:
            before = files.end
            try:
                known = store._write(self._transaction, self._told)
            except BaseException as problem:
                files.take_back(before)
                self._inner.__exit__(type(problem), problem, problem.__traceback__)
                raise
            try:
                self._inner.__exit__(None, None, None)
            except BaseException:
                files.take_back(before)
                raise
            store._known = known
        return None
