"""The ledger of a pipeline's batches: notes of the store, written in the commit that stores the rows.

Knows: notes. What they mean is ``core.sink_batches``."""

from typing import Any

from yirangmq.core.errors import StoreDamaged
from yirangmq.core.ports import Transaction
from yirangmq.core.sink_batches import Entry, Stage, Step, check_new, key_of, prefix_of, too_old
from yirangmq.format.json_codec import dumps, loads


def find(transaction: Transaction, query: str, batch: int) -> Entry | None:
    text = transaction.note(key_of(query, batch))
    return None if text is None else _read(key_of(query, batch), text)


def enter(transaction: Transaction, entry: Entry) -> None:
    """A batch that is new; what is older than the ledger remembers is forgotten."""
    known = [int(key.rpartition("/")[2]) for key in transaction.notes(prefix_of(entry.query))]
    check_new(entry.batch, known)
    write(transaction, entry)
    for batch in too_old([*known, entry.batch]):
        transaction.set_note(key_of(entry.query, batch), None)


def write(transaction: Transaction, entry: Entry) -> None:
    transaction.set_note(key_of(entry.query, entry.batch), dumps(entry._asdict()).decode())


def entries(transaction: Transaction, query: str = "") -> list[Entry]:
    """In the order of queries and batches."""
    found = transaction.notes(prefix_of(query) if query else "ledger/")
    return [_read(key, text) for key, text in found.items()]


def _read(key: str, text: str) -> Entry:
    try:
        given: dict[str, Any] = loads(text.encode())
        stages = tuple(Stage(*stage) for stage in given.pop("stages"))
        return Entry(**{**given, "step": Step(given["step"]), "stages": stages})
    except (KeyError, TypeError, ValueError) as error:
        raise StoreDamaged(f"the note {key} cannot be read: {error}") from None
