"""The words in which a pair of nodes is spoken of: roles, what is known, what is decided. Values only; what follows
from them is in ``core.role``. All instants are milliseconds of one clock that never goes back."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Role(StrEnum):
    ACTIVE = "ACTIVE"
    STANDBY = "STANDBY"


class Status(StrEnum):
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"


class Probe(StrEnum):
    """What the test of the peer's TCP port said."""

    NONE = "none"
    """Not tested since it fell silent."""
    REACHED = "reached"
    """It answered. (What it said counts as heard, so that this is seen only until then.)"""
    SILENT = "silent"
    """Nobody there, or nobody who answers."""


class Witness(StrEnum):
    """What the third party says of this node."""

    NONE = "none"
    """There is none in these settings."""
    OURS = "ours"
    FREE = "free"
    """Nobody has renewed it for the whole time-out: it can be asked for."""
    THEIRS = "theirs"
    AWAY = "away"
    """It cannot be read."""


class Verdict(StrEnum):
    STAY = "stay"
    PROBE = "probe"
    """Test the peer's TCP port, then decide again."""
    CLAIM = "claim"
    """Ask the peer for consent to a term."""
    GRANT = "grant"
    """Consent to the peer's claim."""
    ASK_WITNESS = "ask-witness"
    TAKE_OVER = "take-over"
    HAND_OVER = "hand-over"
    """Finish what is in work, then stand down and consent to the peer's next term."""
    STAND_DOWN = "stand-down"


class Pace(NamedTuple):
    """The numbers of a pair, in milliseconds. Both nodes should have the same."""

    interval: int = 5000
    misses: int = 3
    cooldown: int = 30_000
    has_witness: bool = False

    @property
    def timeout(self) -> int:
        """A peer is silent after this long: by default 15 seconds."""
        return self.interval * self.misses

    @property
    def lease(self) -> int:
        """With a witness an active node works no longer than this after it last had somebody's word: one interval
        less than the time after which anybody may take its place."""
        return self.timeout - self.interval


@dataclass(frozen=True, slots=True)
class Own:
    """This node at this moment."""

    node: str
    role: Role = Role.STANDBY
    status: Status = Status.RUNNING
    term: int = 0
    started_at: int = 0
    switched_at: int | None = None
    """When its role last changed, not by order."""
    active_since: int = 0
    looked_at: int = 0
    """When it last came to decide: long ago means that it was frozen."""
    assured_at: int | None = None
    """With a witness: the latest moment at which it, or the peer as standby, is known to have had nobody but us."""
    order: bool = False
    """Somebody ordered this node to take over."""
    granted: int = 0
    """The highest term to which this node has consented."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other node, as last heard."""

    node: str
    role: Role
    status: Status
    term: int
    running: int
    """How long its process had run, when it said so."""
    active: int
    """How long it had been active, when it said so; 0 if it was not."""
    at: int
    """When it was heard."""
    claim: int = 0
    grant: int = 0
    wish: bool = False
    """It was ordered to take over."""


class Step(NamedTuple):
    """One line of evidence: which question, what was found."""

    step: str
    found: str


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    term: int
    """The term that goes with it: the new one of a takeover, claim or consent, else the highest known."""
    steps: tuple[Step, ...]
