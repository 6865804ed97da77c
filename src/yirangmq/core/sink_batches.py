"""Idempotent batches of a pipeline sink: ledger entries, stages, and the checks at a commit.

A batch has a number within its query, and arrives in stages, one for each task that wrote a part of it. Tasks may run
again, and a batch may be committed again after a lost reply. A commit stores exactly the stages that it names, if the
batch is not in the ledger yet. The ledger is kept in notes of the store and has the latest 1,000 batches of a query.
Pure."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from yirangmq.core import validation
from yirangmq.core.errors import BadInput, WrongState

KEPT_BATCHES = 1000
"""Batches per query that the ledger keeps. A query commits only its latest batch again."""
MAX_BATCH_NUMBER = 10**15
STAGE_AGE_MS = 3_600_000
"""Age in ms at which a stage that was not committed is deleted."""
BATCH_HEADER = "yr-batch"
"""Header of a topic record that a batch published; its value is ``query/batch``."""


class BatchState(StrEnum):
    PENDING = "pending"
    """The batch is stored in the queues, not yet in the topics."""
    DONE = "done"


class BatchEntry(NamedTuple):
    """Ledger entry of a batch. ``behind``: the topics' last sequence when the batch became pending."""

    query: str
    batch: int
    step: BatchState
    queue_rows: int
    dead_rows: int
    topic_rows: int
    behind: int
    at: int
    stages: tuple["BatchStage", ...] = ()
    """Stages with the rows of a pending batch."""
    bad_queue: str = ""
    """Queue that gets invalid rows as dead letters; "": an invalid row refuses the batch."""
    refused: int = 0
    """Number of times that it was committed again after it was stored."""


class BatchStage(NamedTuple):
    """Stage: one task's part of a batch. ``pieces``: the requests in which it was sent; ``rows``: its rows;
    ``checksum``: of all its rows."""

    id: str
    pieces: int
    rows: int
    checksum: int


def check_query(name: object) -> str:
    return validation.check_queue(name, "query")


def check_batch(number: object) -> int:
    return validation.check_count(number, "batch", least=0, most=MAX_BATCH_NUMBER)


def check_stage(name: object) -> str:
    return validation.check_id(name, "stage")


def key_of(query: str, batch: int) -> str:
    """Return the key of the batch's note. Keys sort in the order of batches."""
    return f"ledger/{query}/{batch:016d}"


def prefix_of(query: str = "") -> str:
    """Return the key prefix of the notes of one query, or of all."""
    return f"ledger/{query}/" if query else "ledger/"


def check_new(batch: int, known: Sequence[int]) -> None:
    """Check a batch that is not in the ledger: it is new, unless it is older than the batches that the ledger keeps."""
    if known and batch < max(known) - KEPT_BATCHES:
        raise WrongState(
            f"batch {batch} is older than the ledger: the latest is {max(known)}, and {KEPT_BATCHES} are kept",
            field="batch",
        )


def expired_batches(known: Sequence[int]) -> list[int]:
    """Return the batches that the ledger may delete."""
    return [batch for batch in known if batch < max(known) - KEPT_BATCHES] if known else []


def check_rows(stage: BatchStage, rows: int, checksum: int) -> None:
    """Check that the stored rows of a stage are exactly those that its task sent."""
    if rows != stage.rows:
        raise BadInput(f"stage {stage.id!r} has {rows} rows, its task sent {stage.rows}", field="stages")
    if checksum != stage.checksum:
        raise BadInput(f"stage {stage.id!r} differs from what its task sent: another checksum", field="stages")
