"""A store around another one that writes down what is accepted and what becomes of it, in files by date.

In each commit the lines come first: written, synced once for all that share the commit, then the store commits, and in
that very commit remembers how far the files reach. So after a crash the store knows which lines are true, and those
behind them are cut off (``DayFiles.open``); a commit that fails takes its lines back. Replies wait for both.

Knows: which methods of a transaction accept or settle messages. Does not know: verbs, doors, days that may go."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, cast

from yirangmq.core.journal import Position, day_of
from yirangmq.core.ports import Clock, Finding, Store, Transaction
from yirangmq.core.states import KEPT, State
from yirangmq.stores.dayfiles import DayFiles, lines
from yirangmq.stores.journal_observed import Observed
from yirangmq.stores.journal_told import NOTE, accepted_in, contradicted, last_told, read_position, write_position

PER_PAGE = 500
COMPLETED = tuple(state for state in KEPT if state is not State.DRAFT)


class JournaledStore:
    """``core.ports.Store``; everything that is not said here is the inner store's."""

    def __init__(self, store: Store, day_files: DayFiles, clock: Clock) -> None:
        self._store = store
        self.files = day_files
        self._clock = clock
        self._known = Position()
        self.findings = self._open()
        """What was mended at the start, or could not be."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Transaction]:
        inner = self._store.transaction(write=write)
        if not write:
            return inner
        return cast("AbstractContextManager[Transaction]", _Commit(self, inner))

    def begin_day(self) -> None:
        """Today has a file, if only an empty one: it was lived through, and the day before is done with."""
        with self.transaction() as transaction:
            cast("Observed", transaction).works.append(lambda now: iter(()))

    def close(self) -> None:
        with contextlib.suppress(Exception):  # it only spares the next start some looking
            self._all_seen()
        self.files.close()
        self._store.close()

    def wait(self, timeout: float) -> None:
        self._store.wait(timeout)

    def check(self, *, repair: bool) -> Iterator[Finding]:
        return self._store.check(repair=repair)

    def durability(self) -> str:
        return self._store.durability()

    # -- the start ------------------------------------------------------------------------------------------------

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
        """No message that is there now has to be looked for at the next start."""
        with self._store.transaction() as transaction:
            self._known = self._known._replace(seq=transaction.places(1))
            transaction.set_note(NOTE, write_position(self._known))

    def _completed(self, count: int) -> list[Finding]:
        where = str(self.files.root)
        return [Finding("completed", where, f"{count} messages of the store were not there", True)] if count else []

    def _complete_since(self, seq: int, place: int) -> int:
        """Somebody worked on the store without us, or a commit of the files store was cut in the middle."""
        count = 0
        for begin in range(seq + 1, place, PER_PAGE):
            with self.transaction() as transaction:
                found = transaction.by_seq(range(begin, min(begin + PER_PAGE, place)))
                cards = [card for card in found if card is not None and card.state is not State.DRAFT]
                cast("Observed", transaction).complete(cards)
            count += len(cards)
        return count

    def _complete_all(self) -> int:
        """Whatever stands in the store and not in the files."""
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
        """The latest commit once more: a store whose commits are many renames may have been cut in the middle of it,
        and then some of its lines tell of what never came to be."""
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

    # -- the commit -----------------------------------------------------------------------------------------------

    def _write(self, inner: Transaction, told: "Observed") -> Position:
        """With the lock of the files held, just before the commit."""
        now = self._clock.wall_ms()
        mark = self.files.append(day_of(now), told.lines(now))
        begin = self._known.size if mark.file == self._known.file else 0
        known = Position(mark.file, mark.size, max(self._known.seq, told.seq), begin)
        inner.set_note(NOTE, write_position(known))
        return known


class _Commit:
    """One transaction as a ``with`` block."""

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
