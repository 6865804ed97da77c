"""Messages with stored bytes that no longer decode: text that is not UTF-8, JSON that does not parse.

A disk can damage values in a file that passes SQLite's own check. Such a message goes to the dead letters with the
reason CORRUPT, so that it does not block its queue. Its payload is the bytes that are left.

Rows are read as BLOBs, which cannot fail. The caller provides the transaction and corrects the counters."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from yirangmq.core.errors import BadInput
from yirangmq.core.message import Envelope, new_envelope
from yirangmq.core.validation import IDENTIFIER
from yirangmq.format.json_codec import loads, members
from yirangmq.stores.sqlite import statements
from yirangmq.stores.sqlite.payloads import Contents
from yirangmq.stores.sqlite.runs import Runs
from yirangmq.stores.sqlite.statements import Statement, StatementExecutor

RAW = """
m.seq, m.queue, CAST(m.id AS BLOB), m.rank, m.published_at, m.available_at, m.expires_at, CAST(m.dedup_key AS BLOB),
CAST(m.header AS BLOB), iif(typeof(m.payload) = 'integer', m.payload, CAST(m.payload AS BLOB)), m.grp, m.target,
typeof(m.payload)"""
"""The columns of ``message`` as bytes: reading them cannot fail. A payload may be packed in a row of ``content``
(``stores.sqlite.payloads``)."""
ALL = Statement(f"SELECT {RAW} FROM message m")
ONE = Statement(f"{ALL} WHERE m.seq = ?")
_SAME_NAME = Statement("SELECT id FROM name WHERE queue = ? AND id = ? AND seq = ?")


Find = Callable[[int, int], bytes | None]
"""Lookup of a packed payload by the number of its message and the integer in the column ``payload``. It returns the
bytes, or None if they are missing."""


class DecodedRow(NamedTuple):
    """A row of ``message``, decoded as far as possible. ``damage`` describes the damage; "" if there is none."""

    row: tuple[Any, ...]
    damage: str

    @property
    def seq(self) -> int:
        return int(self.row[0])

    @property
    def id(self) -> str:
        return str(self.row[2])


def read_raw(raw: tuple[Any, ...], find: Find) -> DecodedRow:
    """Decode the columns ``RAW`` to a row of ``message`` with its payload unpacked. In a damaged row the payload is
    bytes, also if it was JSON."""
    seq, queue, id, *numbers, key, header, payload, group, target, kind = raw
    wrong: list[str] = []
    if kind == "integer":
        kind, payload = "text" if payload & 1 else "blob", find(seq, payload)
        if payload is None:
            wrong, kind, payload = ["payload"], "blob", b""
    name = _text(id, "id", wrong)
    if not IDENTIFIER.fullmatch(name):
        wrong = wrong or ["id"]
        name = f"unreadable-{seq}"
    dedup_key = None if key is None else _text(key, "deduplicationKey", wrong) or None
    head = _json(header, "header", wrong) if header else ""
    body: str | bytes = _json(payload, "payload", wrong) if kind == "text" else payload
    damage = f"its stored {' and '.join(wrong)} cannot be read" if wrong else ""
    return DecodedRow((seq, queue, name, *numbers, dedup_key, head, payload if wrong else body, group, target), damage)


def unreadable(
    db: StatementExecutor, statement: Statement = ALL, bindings: tuple[Any, ...] = ()
) -> Iterator[DecodedRow]:
    """Yield the damaged rows among those that ``statement`` selects."""
    find = Contents(db).bytes_of
    return (sent for raw in db.execute(statement, bindings) if (sent := read_raw(raw, find)).damage)


def envelope_as_bytes(db: StatementExecutor, queue: str, seq: int) -> Envelope:
    """Return an envelope with text that does not decode, as far as it can be read."""
    sent = read_raw(next(db.execute(ONE, (seq,))), Contents(db).bytes_of)
    *others, payload, group, target = sent.row[2:]
    is_json = isinstance(payload, str)
    return new_envelope((queue, *others, payload.encode() if is_json else payload, is_json, group, target))


def move_to_dead_letters(db: StatementExecutor, sent: DecodedRow) -> None:
    """Move a damaged message to the dead letters, unless it is dead or finished already. Rewrite its row in any case,
    so that it can be read."""
    seq, queue, id, *_, key, header, payload, _, _ = sent.row
    Runs(db).move_to_single_row(seq)
    if db.execute(_SAME_NAME, (queue, id, seq)).fetchone() is None:
        db.execute(statements.END_NAME_OF, (seq,))
        db.execute(statements.ADD_NAME, (queue, id, seq, seq))
    db.execute(statements.MAKE_READABLE, (id, key, header, payload, seq))
    db.execute(statements.BURY_LIFE, (seq, id))
    db.execute(statements.BURY_READY, (seq, id))
    db.execute(statements.END_READY_OF, (seq,))
    db.execute(statements.SET_CORRUPT_FAILURE, (seq, sent.damage))


def _text(raw: bytes, what: str, wrong: list[str]) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        wrong.append(what)
        return ""


def _json(raw: bytes, what: str, wrong: list[str]) -> str:
    if not _is_json(raw):
        wrong.append(what)
        return ""
    return _text(raw, what, wrong)


def _is_json(raw: bytes) -> bool:
    """Return True for JSON that the protocols accept: as a member of an object, where numbers may be of any size, or as
    a document, which may be nested one level deeper."""
    try:
        found = members(b'{"it":' + raw + b"}")
        if found is not None and len(found) == 1:
            return True
    except BadInput:
        pass
    try:
        loads(raw)
    except BadInput:
        return False
    return True
