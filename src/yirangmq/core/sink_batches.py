"""Idempotent batches of a pipeline sink: ledger entries, stages, and the checks at a commit.

A batch has a number within its query, and comes in stages, one for each task that made a part of it. Tasks may run
again, and a batch may be committed again after a lost reply. What counts is which stages the commit names, and that
the batch is not in the ledger yet. The ledger is kept in notes of the store; it remembers 1,000 batches of a query.
Pure."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from yirangmq.core import validation
from yirangmq.core.errors import BadInput, WrongState

KEPT = 1000
"""Batches of a query that the ledger remembers; only the latest is ever committed again."""
LARGEST_BATCH = 10**15
STAGE_AGE_MS = 3_600_000
"""After which a stage that nobody committed is swept away."""
MARK = "yr-batch"
"""The header of a record that a batch brought to a topic: ``query/batch``."""


class Step(StrEnum):
    PENDING = "pending"
    """The queues have it, the topics not yet."""
    DONE = "done"


class Entry(NamedTuple):
    """What the ledger says of a batch. ``behind``: the topics' last sequence when it became pending."""

    query: str
    batch: int
    step: Step
    queue_rows: int
    dead_rows: int
    topic_rows: int
    behind: int
    at: int
    stages: tuple["Stage", ...] = ()
    """Of one that is pending: where its rows lie."""
    bad_queue: str = ""
    """Where rows are buried that cannot be taken; none: such a row refuses the batch."""
    refused: int = 0
    """How often it was committed again after it was in."""


class Stage(NamedTuple):
    """One task's part: how many pieces it was sent in, how many rows they hold, and the checksum over all of them."""

    id: str
    pieces: int
    rows: int
    checksum: int


def check_query(name: object) -> str:
    return validation.check_queue(name, "query")


def check_batch(number: object) -> int:
    return validation.check_count(number, "batch", least=0, most=LARGEST_BATCH)


def check_stage(name: object) -> str:
    return validation.check_id(name, "stage")


def key_of(query: str, batch: int) -> str:
    """Its note's; in the order of the batches."""
    return f"ledger/{query}/{batch:016d}"


def prefix_of(query: str = "") -> str:
    """Of the notes of one query, or of all."""
    return f"ledger/{query}/" if query else "ledger/"


def check_new(batch: int, known: Sequence[int]) -> None:
    """A batch that is not in the ledger is new, unless it is older than the ledger remembers."""
    if known and batch < max(known) - KEPT:
        raise WrongState(
            f"batch {batch} is older than the ledger remembers: the latest is {max(known)}, and {KEPT} are kept",
            field="batch",
        )


def too_old(known: Sequence[int]) -> list[int]:
    """Those the ledger may forget."""
    return [batch for batch in known if batch < max(known) - KEPT] if known else []


def check_rows(stage: Stage, rows: int, checksum: int) -> None:
    """What lies there is what the task sent, no more and no less."""
    if rows != stage.rows:
        raise BadInput(f"stage {stage.id!r} has {rows} rows, its task sent {stage.rows}", field="stages")
    if checksum != stage.checksum:
        raise BadInput(f"stage {stage.id!r} does not hold what its task sent: the checksum differs", field="stages")
