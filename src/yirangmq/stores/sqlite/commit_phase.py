"""Phases of the commits of a server's SQLite store: its redo log, SQLite's open transaction, the background commit.

A phase holds between two transactions of the store::

    CLOSED ──LOG──▶ OPEN ──START──▶ COMMITTING          LOG leaves OPEN and COMMITTING as they are
    CLOSED ◀─VOID── OPEN ◀──JOIN─── COMMITTING
           ◀─EMPTY─

    CLOSED, OPEN ──ROLL_BACK──▶ BEHIND ──REPLAY──▶ OPEN
                                BEHIND ──EMPTY───▶ CLOSED

    CLOSED, OPEN, BEHIND ──ROLL_BACK_IN_DOUBT──▶ IN_DOUBT ──REPLAY──▶ IN_DOUBT_OPEN
                                                 IN_DOUBT ──VOID────▶ CLOSED ◀──VOID── IN_DOUBT_OPEN
                                                 IN_DOUBT ◀──ROLL_BACK_IN_DOUBT── IN_DOUBT_OPEN

RESET leads from every phase without a background commit to CLOSED. The table ``TRANSITIONS`` has every pair; any other
pair is an error of the program, a ``KeyError``."""

from enum import StrEnum


class Phase(StrEnum):
    __hash__ = str.__hash__  # an Enum hashes in Python code; a phase is looked up for every commit

    CLOSED = "closed"
    OPEN = "open"
    COMMITTING = "committing"
    BEHIND = "behind"
    IN_DOUBT = "in doubt"
    IN_DOUBT_OPEN = "in doubt, open"


class CommitEvent(StrEnum):
    __hash__ = str.__hash__

    LOG = "log"
    VOID = "void"
    EMPTY = "empty"
    START = "start"
    JOIN = "join"
    ROLL_BACK = "roll back"
    ROLL_BACK_IN_DOUBT = "roll back in doubt"
    REPLAY = "replay"
    RESET = "reset"


MEANING: dict[Phase, str] = {
    Phase.CLOSED: "no transaction of SQLite is open, and the SQLite file contains every record of the redo log",
    Phase.OPEN: "SQLite's transaction is open and contains every record of the redo log",
    Phase.COMMITTING: "a background commit has the connection; records appended meanwhile are deferred statements",
    Phase.BEHIND: "no transaction of SQLite is open; the records of the redo log have to be replayed",
    Phase.IN_DOUBT: "as BEHIND; a record or commit that failed may be valid after a crash. The next write first voids "
    "all records by a SQLite commit",
    Phase.IN_DOUBT_OPEN: "as IN_DOUBT, but the records are replayed, so that reads see them",
}

TRANSITIONS: dict[tuple[Phase, CommitEvent], Phase] = {
    # A record is on disk.
    (Phase.CLOSED, CommitEvent.LOG): Phase.OPEN,
    (Phase.OPEN, CommitEvent.LOG): Phase.OPEN,
    (Phase.COMMITTING, CommitEvent.LOG): Phase.COMMITTING,
    # SQLite has committed everything, on the thread of the caller; the records are void.
    (Phase.CLOSED, CommitEvent.VOID): Phase.CLOSED,
    (Phase.OPEN, CommitEvent.VOID): Phase.CLOSED,
    (Phase.IN_DOUBT, CommitEvent.VOID): Phase.CLOSED,
    (Phase.IN_DOUBT_OPEN, CommitEvent.VOID): Phase.CLOSED,
    # There is no valid record, and SQLite's transaction has no change.
    (Phase.OPEN, CommitEvent.EMPTY): Phase.CLOSED,
    (Phase.BEHIND, CommitEvent.EMPTY): Phase.CLOSED,
    (Phase.IN_DOUBT, CommitEvent.EMPTY): Phase.CLOSED,
    # A background commit starts, and is joined: the connection is back in its next transaction, or in the same one if
    # the commit failed.
    (Phase.OPEN, CommitEvent.START): Phase.COMMITTING,
    (Phase.COMMITTING, CommitEvent.JOIN): Phase.OPEN,
    # SQLite's transaction was rolled back, by the store or by SQLite.
    (Phase.CLOSED, CommitEvent.ROLL_BACK): Phase.BEHIND,
    (Phase.OPEN, CommitEvent.ROLL_BACK): Phase.BEHIND,
    (Phase.BEHIND, CommitEvent.ROLL_BACK): Phase.BEHIND,
    (Phase.IN_DOUBT, CommitEvent.ROLL_BACK): Phase.BEHIND,
    (Phase.IN_DOUBT_OPEN, CommitEvent.ROLL_BACK): Phase.BEHIND,
    (Phase.CLOSED, CommitEvent.ROLL_BACK_IN_DOUBT): Phase.IN_DOUBT,
    (Phase.OPEN, CommitEvent.ROLL_BACK_IN_DOUBT): Phase.IN_DOUBT,
    (Phase.BEHIND, CommitEvent.ROLL_BACK_IN_DOUBT): Phase.IN_DOUBT,
    (Phase.IN_DOUBT, CommitEvent.ROLL_BACK_IN_DOUBT): Phase.IN_DOUBT,
    (Phase.IN_DOUBT_OPEN, CommitEvent.ROLL_BACK_IN_DOUBT): Phase.IN_DOUBT,
    # The records were executed again, in a new transaction.
    (Phase.BEHIND, CommitEvent.REPLAY): Phase.OPEN,
    (Phase.IN_DOUBT, CommitEvent.REPLAY): Phase.IN_DOUBT_OPEN,
    # The file was salvaged and opened again.
    (Phase.CLOSED, CommitEvent.RESET): Phase.CLOSED,
    (Phase.OPEN, CommitEvent.RESET): Phase.CLOSED,
    (Phase.BEHIND, CommitEvent.RESET): Phase.CLOSED,
    (Phase.IN_DOUBT, CommitEvent.RESET): Phase.CLOSED,
    (Phase.IN_DOUBT_OPEN, CommitEvent.RESET): Phase.CLOSED,
}

HAS_TRANSACTION: frozenset[Phase] = frozenset({Phase.OPEN, Phase.COMMITTING, Phase.IN_DOUBT_OPEN})
"""Phases in which the next transaction continues SQLite's open one."""
