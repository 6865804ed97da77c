"""Ports of the core: clock, ids, store and transaction, as protocols that backends implement.

Implementations do not inherit from a port. A store is used through transactions. Inside one, a caller sees a state that
nothing else changes. When the ``with`` block ends without an error, all of its changes are on disk; when it ends with
one, none of them has happened."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from yirangmq.core.message import Counts, Envelope, Failure, Message, Run
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.states import State

# -- clock and ids -----------------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Two times, both in milliseconds since 1970. Rules go by store time; people, schedules and dates by the wall clock
    (docs/decisions/0021-store-time.md)."""

    def now_ms(self) -> int:
        """Store time: the line on which all stored instants lie. It never jumps while a process runs."""

    def wall_ms(self) -> int:
        """The wall clock, as it is set now."""

    def ahead_ms(self) -> int:
        """How far the wall clock is ahead of store time; 0 unless it was set. Add it to a stored instant to show it."""


class Ids(Protocol):
    def new(self, count: int) -> list[str]: ...

    def fraction(self) -> float: ...


# -- values of a transaction -------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """One message, before and after. A failure, if any, is stored with it as the latest one."""

    before: Message
    after: Message
    failure: Failure | None = None


class Stored(NamedTuple):
    """What became of one envelope: its number in the store, and the id that holds its place.

    ``duplicate``: nothing was stored because this id, or this deduplication key, is already known; ``id`` names the
    message that is there. ``refused``: it failed its schema and lies among the dead letters, for this reason."""

    seq: int
    id: str
    duplicate: bool
    refused: str = ""


new_change = cast("Callable[[tuple[Message, Message, Failure | None]], Change]", partial(tuple.__new__, Change))
new_stored = cast("Callable[[tuple[Any, ...]], Stored]", partial(tuple.__new__, Stored))


class Page(NamedTuple):
    """Part of a listing; an empty ``cursor`` says that this was the last part."""

    messages: list[Message]
    cursor: str


class Finding(NamedTuple):
    """One thing wrong in a store, found by ``check``; ``mended`` once ``repair`` has dealt with it."""

    kind: str
    where: str
    text: str
    mended: bool = False


# -- store -------------------------------------------------------------------------------------------------------------


class Transaction(Protocol):
    """One batch of work. Every method takes and returns many; none commits by itself."""

    def policy(self, queue: str) -> QueuePolicy: ...

    def add(
        self, envelopes: Sequence[Envelope], now: int, dedup_until: int, draft_until: int | None = None
    ) -> list[Stored]:
        """Store new envelopes of ONE queue as ready or delayed (see ``decide.fresh``), in the order given; with
        ``draft_until`` as drafts (``decide.draft``), which become messages of their queue when their content comes.

        An id the queue already knows (also a finished one within its tombstone window), or a deduplication key
        seen within its window, stores nothing and names the message that is there."""

    def rewrite(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        """Put these envelopes in the place of those stored: another header and payload, all else the same."""

    def heads(self, queue: str, limit: int, target: int = 0) -> list[tuple[Message, Envelope]]:
        """The first ready messages in order of rank, then place, of those for anyone and those for ``target``."""

    def group_first(self, queue: str, groups: Sequence[int]) -> list[Message | None]:
        """Of each group the message that came first of those not done with (``states.WAITING``)."""

    def key_holders(self, queue: str, keys: Sequence[str], now: int) -> list[tuple[int, str] | None]:
        """(seq, id) of the message that holds each deduplication key."""

    def hold_keys(self, queue: str, holders: Mapping[str, tuple[int, str]], until: int) -> None:
        """Give keys to messages, in place of whoever held them."""

    def free_keys(self, queue: str, keys: Sequence[str]) -> None: ...

    def by_seq(self, seqs: Sequence[int]) -> list[Message | None]: ...

    def by_id(self, queue: str, ids: Sequence[str]) -> list[Message | None]: ...

    def envelopes(self, messages: Sequence[Message]) -> list[Envelope | None]:
        """Their envelopes; None where only the id is remembered."""

    def failures(self, messages: Sequence[Message]) -> list[Failure | None]:
        """The latest failure of each."""

    def swap(self, changes: Sequence[Change]) -> None: ...

    def forget(self, messages: Sequence[Message]) -> None:
        """Remove every trace: envelope, failure, remembered id."""

    def places(self, count: int) -> int:
        """The first of ``count`` fresh places in line; each is larger than any given out before."""

    def due(self, now: int, limit: int) -> list[Message]:
        """Messages on which time acts now, the longest overdue first."""

    def next_due(self, before: int | None = None) -> int | None:
        """The earliest moment at which ``due`` will have something; None: never, or not before that."""

    def forget_keys(self, now: int, limit: int) -> int:
        """Drop deduplication keys whose window is over; how many."""

    def trim(self, limit: int) -> int:
        """Forget the envelopes of done messages beyond what their queue's policy keeps, the oldest first; how many.

        Their ids stay remembered until the tombstone window since their ack is over: then ``due`` has them."""

    def scan(self, queue: str, state: State, limit: int, cursor: str = "") -> "Page":
        """Messages of one state, page by page: ready ones in order of delivery (those for one consumer behind those for
        anyone), dead and parked ones oldest first, others in any order that stays the same. "" begins; of ready ones
        ``rank.place`` begins behind that place, ``target.rank.place`` behind that place in the line of one consumer."""

    def queues(self, after: str = "", limit: int | None = None, prefix: str = "") -> list[str]:
        """Names in order; those behind ``after`` that begin with ``prefix``, at most ``limit`` of them (None: all)."""

    def queue_count(self) -> int:
        """How many queues there are."""

    def has_queue(self, queue: str) -> bool: ...

    def policied(self) -> list[str]:
        """Queues with a policy document of their own, in order. A store in files finds a document that a person has
        put there by hand after some calls, if there are many queues."""

    def counts(self, queue: str) -> Counts: ...

    def totals(self) -> Counts:
        """The counts of all queues together. Kept up to date by commits, not summed up at each call."""

    def policy_text(self, queue: str) -> str | None:
        """The policy document as it was set; None where the queue lives on defaults."""

    def set_policy(self, queue: str, text: str | None) -> None: ...

    def note(self, key: str) -> str | None:
        """What somebody keeps beside the messages, in the same commits: which batches of a pipeline are in, say."""

    def notes(self, prefix: str) -> dict[str, str]:
        """Those whose key begins so, in the order of their keys."""

    def set_note(self, key: str, text: str | None) -> None:
        """Keys are names as queues have, with slashes between them; None takes a note away."""

    def delete_queue(self, queue: str) -> None:
        """Everything of a queue, its policy and its counters included."""

    def in_runs(self) -> "InRuns | None":
        """This very transaction, if it can treat many messages as one; None if it cannot."""


class InRuns(Protocol):
    """Messages that share their fate, read and changed as one. What it cannot tell is asked of ``Transaction``."""

    def head_runs(self, queue: str, limit: int, target: int) -> list[tuple[Run, list[Envelope]]] | None:
        """As ``Transaction.heads``, if all of them are in runs and none expires; None if not."""

    def held_run(self, first: int, last: int) -> Run | None:
        """Messages with these numbers, if all are leased and are in one run; None if not."""

    def swap_run(self, run: Run, after: Message) -> None:
        """From ready to leased, from leased to leased or done, all of them alike: ``after`` is what becomes of the
        first one's card."""


class Store(Protocol):
    def transaction(self, *, write: bool = True) -> AbstractContextManager[Transaction]: ...

    def wait(self, timeout: float) -> None:
        """Sleep until another process may have changed something, or the time is over."""

    def check(self, *, repair: bool) -> Iterator[Finding]: ...

    def durability(self) -> str: ...

    def close(self) -> None: ...
