"""State machine of a message: states, verbs, and the table of transitions.

Every change of state in the project is a row of ``TRANSITIONS``. This module has states and verbs only.
``tools/states_docs.py`` prints docs/states.md from the table."""

from enum import StrEnum


class State(StrEnum):
    __hash__ = str.__hash__  # an Enum hashes in Python code; these are looked up for every message

    DRAFT = "draft"
    DELAYED = "delayed"
    HELD = "held"
    READY = "ready"
    CLAIMED = "claimed"
    LEASED = "leased"
    DEAD = "dead"
    PARKED = "parked"
    DONE = "done"
    DROPPED = "dropped"


class Verb(StrEnum):
    __hash__ = str.__hash__

    DRAFT = "draft"
    SET = "set"
    PUBLISH = "publish"
    POSTPONE = "postpone"
    REFUSE = "refuse"
    RIPEN = "ripen"
    HOLD = "hold"
    FREE = "free"
    CLAIM = "claim"
    START = "start"
    LEASE = "lease"
    EXTEND = "extend"
    ACK = "ack"
    RETRY = "retry"
    RELEASE = "release"
    BURY = "bury"
    PARK = "park"
    REDRIVE = "redrive"
    DROP = "drop"


MEANING: dict[State, str] = {
    State.DRAFT: "has an id, and no content yet",
    State.DELAYED: "not ready before a given time: the producer's delay, or the backoff after a failure",
    State.HELD: "waits until an earlier message of its group is finished",
    State.READY: "may be leased; smallest priority first, then order of arrival",
    State.CLAIMED: "a consumer has its id, and has not fetched its content yet",
    State.LEASED: "a consumer has it until the lease ends",
    State.DEAD: "failed finally: out of attempts, rejected, expired or invalid; kept as a dead letter with its reason",
    State.PARKED: "set aside by an operator, or failed finally where dead letters are off; an operator decides",
    State.DONE: "acknowledged; kept as history if the queue keeps history",
    State.DROPPED: "removed without being processed: by a command, its time to live, a quota, retention or a purge",
}

TRANSITIONS: dict[tuple[State | None, Verb], State] = {
    (None, Verb.DRAFT): State.DRAFT,
    (None, Verb.PUBLISH): State.READY,
    (None, Verb.POSTPONE): State.DELAYED,
    (None, Verb.REFUSE): State.DEAD,
    (State.DRAFT, Verb.SET): State.READY,
    (State.DRAFT, Verb.DROP): State.DROPPED,
    (State.DELAYED, Verb.RIPEN): State.READY,
    (State.DELAYED, Verb.BURY): State.DEAD,
    (State.DELAYED, Verb.PARK): State.PARKED,
    (State.DELAYED, Verb.DROP): State.DROPPED,
    (State.DELAYED, Verb.HOLD): State.HELD,
    (State.HELD, Verb.FREE): State.READY,
    (State.HELD, Verb.POSTPONE): State.DELAYED,
    (State.HELD, Verb.BURY): State.DEAD,
    (State.HELD, Verb.PARK): State.PARKED,
    (State.HELD, Verb.DROP): State.DROPPED,
    (State.READY, Verb.HOLD): State.HELD,
    (State.READY, Verb.CLAIM): State.CLAIMED,
    (State.READY, Verb.LEASE): State.LEASED,
    (State.READY, Verb.BURY): State.DEAD,
    (State.READY, Verb.PARK): State.PARKED,
    (State.READY, Verb.DROP): State.DROPPED,
    (State.CLAIMED, Verb.START): State.LEASED,
    (State.CLAIMED, Verb.RELEASE): State.READY,
    (State.CLAIMED, Verb.BURY): State.DEAD,
    (State.CLAIMED, Verb.PARK): State.PARKED,
    (State.CLAIMED, Verb.DROP): State.DROPPED,
    (State.LEASED, Verb.EXTEND): State.LEASED,
    (State.LEASED, Verb.ACK): State.DONE,
    (State.LEASED, Verb.RETRY): State.DELAYED,
    (State.LEASED, Verb.RELEASE): State.READY,
    (State.LEASED, Verb.BURY): State.DEAD,
    (State.LEASED, Verb.PARK): State.PARKED,
    (State.LEASED, Verb.DROP): State.DROPPED,
    (State.DEAD, Verb.REDRIVE): State.READY,
    (State.DEAD, Verb.PARK): State.PARKED,
    (State.DEAD, Verb.DROP): State.DROPPED,
    (State.PARKED, Verb.REDRIVE): State.READY,
    (State.PARKED, Verb.DROP): State.DROPPED,
}

UNFINISHED: frozenset[State] = frozenset({State.DELAYED, State.HELD, State.READY, State.CLAIMED, State.LEASED})
"""Unfinished states: while a message of a group is in one of them, later messages of the group wait."""

STORED_STATES: tuple[State, ...] = tuple([state for state in State if state is not State.DROPPED])
"""States of a stored message; of a dropped message only the tombstone is stored."""


def next_state(state: State | None, verb: Verb) -> State | None:
    """Return the next state, or None if the verb does not apply."""
    return TRANSITIONS.get((state, verb))
