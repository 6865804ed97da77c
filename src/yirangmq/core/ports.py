"""Ports of the core: clock, ids, store and transaction, as protocols that backends implement.

Implementations do not inherit from a port. A store is used through transactions. Inside one, a caller sees a state that
nothing else changes. If the ``with`` block ends without an error, all of its changes are on disk; if it ends with an
error, none of them is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, cast

from yirangmq.core.message import Counts, Envelope, Message, MessageFailure, MessageRun
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.states import State

# -- clock and ids -----------------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Clock port: two times, both in milliseconds since 1970. Rules use store time; display, schedules and dates use
    the wall clock (docs/decisions/0021-store-time.md)."""

    def now_ms(self) -> int:
        """Return store time, the time base of all stored instants. It never jumps while a process runs."""

    def wall_ms(self) -> int:
        """Return the wall clock as it is set now."""

    def ahead_ms(self) -> int:
        """Return the milliseconds by which the wall clock is ahead of store time; 0 unless it was set. Add it to a
        stored instant to display it."""


class Ids(Protocol):
    """Port of randomness: new message ids, and random fractions from 0 to 1."""

    def new(self, count: int) -> list[str]: ...

    def fraction(self) -> float: ...


# -- values of a transaction -------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """Change of one message: its row before and after. A failure, if any, is stored as its latest one."""

    before: Message
    after: Message
    failure: MessageFailure | None = None


class AddResult(NamedTuple):
    """Result of adding one envelope: its number in the store, and its id.

    ``duplicate``: nothing was stored because the id, or the deduplication key, is already known; ``id`` names the
    existing message. ``refused``: the reason for which it failed its schema and became a dead letter, else ""."""

    seq: int
    id: str
    duplicate: bool
    refused: str = ""


@dataclass(frozen=True, slots=True)
class MoveResult:
    """Result of a change of many messages, or of its dry run: their number, and the ids of the first few."""

    count: int
    ids: list[str]


new_change = cast("Callable[[tuple[Message, Message, MessageFailure | None]], Change]", partial(tuple.__new__, Change))
new_add_result = cast("Callable[[tuple[Any, ...]], AddResult]", partial(tuple.__new__, AddResult))

# Getters for map(), as in ``core.message``; unpacking a named tuple takes longer than getting one of its fields.
before_of: Callable[[Change], Message] = itemgetter(Change._fields.index("before"))
after_of: Callable[[Change], Message] = itemgetter(Change._fields.index("after"))


class Page(NamedTuple):
    """Page of a listing. An empty ``cursor``: this is the last page."""

    messages: list[Message]
    cursor: str


class Finding(NamedTuple):
    """One problem of a store, found by ``check``. ``is_repaired``: ``repair`` has fixed it."""

    kind: str
    where: str
    text: str
    is_repaired: bool = False


# -- store -------------------------------------------------------------------------------------------------------------


class Transaction(Protocol):
    """Transaction of a store. Methods take and return batches; the end of the ``with`` block commits."""

    def policy(self, queue: str) -> QueuePolicy: ...

    def add(
        self, envelopes: Sequence[Envelope], now: int, dedup_until: int, draft_until: int | None = None
    ) -> list[AddResult]:
        """Store new envelopes of ONE queue as ready or delayed (see ``transitions.fresh``), in the order given. With
        ``draft_until`` store them as drafts (``transitions.draft``), which become messages when their content is set.

        An id that the queue already has (also a finished one within its tombstone window), or a deduplication key
        seen within its window, stores nothing, and the result names the existing message."""

    def rewrite(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        """Replace the stored envelopes by these: header and payload may differ, all else is the same."""

    def heads(self, queue: str, limit: int, target: int = 0) -> list[tuple[Message, Envelope]]:
        """Return the first ready messages in order of rank, then place, without a target or for ``target``."""

    def group_first(self, queue: str, groups: Sequence[int]) -> list[Message | None]:
        """Return the earliest unfinished message (``states.WAITING``) of each group."""

    def key_holders(self, queue: str, keys: Sequence[str], now: int) -> list[tuple[int, str] | None]:
        """Return (seq, id) of the message that holds each deduplication key."""

    def hold_keys(self, queue: str, holders: Mapping[str, tuple[int, str]], until: int) -> None:
        """Assign deduplication keys to messages, replacing the present holders."""

    def free_keys(self, queue: str, keys: Sequence[str]) -> None: ...

    def by_seq(self, seqs: Sequence[int]) -> list[Message | None]: ...

    def by_id(self, queue: str, ids: Sequence[str]) -> list[Message | None]: ...

    def envelopes(self, messages: Sequence[Message]) -> list[Envelope | None]:
        """Return their envelopes; None for a message of which only the id is kept."""

    def failures(self, messages: Sequence[Message]) -> list[MessageFailure | None]:
        """Return the latest failure of each message."""

    def swap(self, changes: Sequence[Change]) -> None: ...

    def forget(self, messages: Sequence[Message]) -> None:
        """Delete the messages completely: envelope, failure, tombstone."""

    def places(self, count: int) -> int:
        """Allocate ``count`` new places and return the first; each is larger than any allocated before."""

    def due(self, now: int, limit: int) -> list[Message]:
        """Return messages with ``due_at`` up to ``now``, the longest overdue first."""

    def next_due(self, before: int | None = None) -> int | None:
        """Return the earliest ``due_at``; None if there is none, or none earlier than ``before``."""

    def forget_keys(self, now: int, limit: int) -> int:
        """Delete deduplication keys with an expired window, and return their number."""

    def trim(self, limit: int) -> int:
        """Delete the envelopes of done messages beyond the history that their queue's policy keeps, the oldest first,
        and return their number.

        Their ids are kept until the tombstone window, counted from the ack, ends: then ``due`` returns them."""

    def scan(self, queue: str, state: State, limit: int, cursor: str = "") -> "Page":
        """Return a page of the messages of one state.

        Ready messages are in order of delivery, those with a target after those without; dead and parked ones are
        oldest first; others have any stable order. The cursor "" starts the listing. For ready messages the cursor
        ``rank.place`` starts after that place, ``target.rank.place`` after that place among one consumer's messages."""

    def queues(self, after: str = "", limit: int | None = None, prefix: str = "") -> list[str]:
        """Return names in order: those after ``after`` that start with ``prefix``, at most ``limit`` (None: all)."""

    def queue_count(self) -> int:
        """Return the number of queues."""

    def has_queue(self, queue: str) -> bool: ...

    def queues_with_policy(self) -> list[str]:
        """Return the queues that have a policy document, in order. If there are many queues, the files store finds a
        document that was put there by hand only after several calls."""

    def counts(self, queue: str) -> Counts: ...

    def totals(self) -> Counts:
        """Return the counts of all queues together. Commits keep them up to date; a call does not sum them."""

    def policy_text(self, queue: str) -> str | None:
        """Return the policy document as it was set; None if the queue has only defaults."""

    def set_policy(self, queue: str, text: str | None) -> None: ...

    def note(self, key: str) -> str | None:
        """Return a note: text kept beside the messages, in the same commits, such as the ledger of a pipeline."""

    def notes(self, prefix: str) -> dict[str, str]:
        """Return the notes with keys that start with ``prefix``, in order of key."""

    def set_note(self, key: str, text: str | None) -> None:
        """Set a note; None deletes it. A key is up to four names with slashes between them (``check_note``)."""

    def delete_queue(self, queue: str) -> None:
        """Delete everything of a queue, including its policy and counters."""

    def run_operations(self) -> "MessageRunOperations | None":
        """Return this transaction if it supports runs of messages; None if it does not."""


class MessageRunOperations(Protocol):
    """Run operations of a transaction: a run of messages is read and changed as one. Callers use ``Transaction`` for
    everything that these methods return None for."""

    def head_runs(self, queue: str, limit: int, target: int) -> list[tuple[MessageRun, list[Envelope]]] | None:
        """Return the same as ``Transaction.heads`` if all of them are in runs and none expires; otherwise None."""

    def leased_run(self, first: int, last: int) -> MessageRun | None:
        """Return the messages with these numbers if all are leased and in one run; otherwise None."""

    def swap_run(self, run: MessageRun, after: Message) -> None:
        """Change all messages of a run alike: from ready to leased, or from leased to leased or done. ``after``: the
        new row of the first message."""


CheckProgress = Callable[[str, int, int], None]
"""Callback of a check: the phase, how much of it is done, and its total; 0 is an unknown one."""


def no_progress(phase: str, done: int, total: int) -> None:
    """Report nothing."""


class Store(Protocol):
    """Store of messages: transactions, and maintenance."""

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Transaction]: ...

    def wait(self, timeout: float) -> None:
        """Sleep until another process may have changed something, or ``timeout`` seconds have passed."""

    def check(self, *, repair: bool, progress: CheckProgress = no_progress) -> Iterator[Finding]: ...

    def durability(self) -> str: ...

    def close(self) -> None: ...
