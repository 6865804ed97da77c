"""Dispatch strategies and group membership: which consumer gets which message.

Each strategy is a function of the candidates, the messages' keys and the strategy's state after earlier assignments.
The same input gives the same output: that state includes the random number generator.

Members of a queue's group are the registered consumers and those that wait for messages now. A consumer that has
stopped waiting remains one for the grace time, 60 s by default. Time is an argument. ``broker.dispatch.dispatcher``
applies the strategies."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from yirangmq.core import validation
from yirangmq.core.errors import BadInput, BadPolicy
from yirangmq.core.validation import Fields, kind

MAX_WEIGHT = 1_000
MAX_WEIGHT_ENTRIES = 1_000
MAX_KEY_CHARS = 200
GRACE_SEC = 60
"""Default grace time in seconds: a consumer that stopped waiting stays a member of its queue's group for this long."""


class Strategy(StrEnum):
    FIRST_AVAILABLE = "first_available"
    ORDERED = "ordered"
    ROUND_ROBIN = "round_robin"
    RANDOM = "random"
    PRIORITY = "priority"
    LOAD_BALANCE = "load_balance"
    BROADCAST = "broadcast"
    KEY_HASH = "key_hash"


MEANING: dict[Strategy, str] = {
    Strategy.FIRST_AVAILABLE: "the consumer that has waited longest takes as many as it can",
    Strategy.ORDERED: "one message at a time, in strict order: the next when the previous one is acked or dead",
    Strategy.ROUND_ROBIN: "one message for each consumer, in turn",
    Strategy.RANDOM: "a consumer chosen at random",
    Strategy.PRIORITY: "consumers in proportion to their weights",
    Strategy.LOAD_BALANCE: "the consumer with the fewest leased messages",
    Strategy.BROADCAST: "a copy for each consumer, with its own ack and retries",
    Strategy.KEY_HASH: "messages with the same key go to the same consumer",
}


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Dispatch settings of a queue, from its policy. ``key``: the attribute that ``key_hash`` hashes, "" is the group.
    ``outcomes``: the queue to which the end of each delivery is published, "" is none."""

    strategy: Strategy = Strategy.FIRST_AVAILABLE
    weights: Mapping[str, int] = field(default_factory=dict)
    key: str = ""
    grace_ms: int = GRACE_SEC * 1000
    outcomes: str = ""

    def weight(self, consumer: str) -> int:
        """Return the consumer's weight: by its name, else by the first pattern that matches, else 1."""
        if consumer in self.weights:
            return self.weights[consumer]
        return next((weight for name, weight in self.weights.items() if fnmatchcase(consumer, name)), 1)


# -- document ---------------------------------------------------------------------------------------------------------


def read_dispatch(given: object, queue: str) -> Dispatch | None:
    """Parse the policy's member ``dispatch``. Null is None: messages go to the first consumer that waits, and no
    deliveries are recorded."""
    if given is None:
        return None
    part = Fields(given, "dispatch", BadPolicy)
    dispatch = Dispatch(
        strategy=Strategy(part.choice("strategy", Strategy.FIRST_AVAILABLE, tuple(Strategy))),
        weights=_read_weights(part.take("weights", {}), part.name("weights")),
        key=_read_key(part.take("key", None), part.name("key")),
        grace_ms=round(part.number("graceSec", GRACE_SEC, least=0, most=validation.MAX_SECONDS) * 1000),
        outcomes=_read_outcomes(part.take("outcomes", None), part.name("outcomes"), queue),
    )
    part.done()
    return dispatch


def _read_weights(given: object, field: str) -> Mapping[str, int]:
    if not isinstance(given, Mapping) or len(given) > MAX_WEIGHT_ENTRIES:
        raise BadPolicy(f"must be an object of at most {MAX_WEIGHT_ENTRIES} consumers, not {kind(given)}", field=field)
    for name, weight in given.items():
        where = f"{field}.{str(name)[:60]}"
        if not isinstance(name, str) or not 0 < len(name) <= MAX_KEY_CHARS:
            raise BadPolicy(f"must be the name of a consumer, or a pattern of at most {MAX_KEY_CHARS}", field=where)
        if isinstance(weight, bool) or not isinstance(weight, int) or not 0 <= weight <= MAX_WEIGHT:
            raise BadPolicy(f"must be a whole number from 0 to {MAX_WEIGHT}, not {weight!r}", field=where)
    return dict(given)


def _read_key(given: object, field: str) -> str:
    if given is None:
        return ""
    if not isinstance(given, str) or not 0 < len(given) <= MAX_KEY_CHARS:
        raise BadPolicy(f"must be the name of an attribute, of at most {MAX_KEY_CHARS} characters", field=field)
    return given


def _read_outcomes(given: object, field: str, queue: str) -> str:
    if given is None:
        return ""
    try:
        name = validation.check_queue(given, field)
    except BadInput as error:
        raise BadPolicy(str(error).removeprefix(f"{field}: "), field=field) from None
    if name == queue:
        raise BadPolicy("must not be the queue itself", field=field)
    return name


def show_dispatch(dispatch: Dispatch | None) -> dict[str, Any] | None:
    """Return the document; ``read_dispatch`` of it returns an equal value."""
    if dispatch is None:
        return None
    seconds = dispatch.grace_ms / 1000
    return {
        "strategy": dispatch.strategy.value,
        "weights": dict(dispatch.weights),
        "key": dispatch.key or None,
        "graceSec": int(seconds) if seconds == int(seconds) else seconds,
        "outcomes": dispatch.outcomes or None,
    }


# -- strategies -------------------------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """Candidate consumer of a strategy. ``place`` distinguishes candidates with the same name. ``capacity``: messages
    that it can take; ``in_flight``: messages that it has."""

    name: str
    place: int
    capacity: int
    in_flight: int = 0
    weight: int = 1


class Memory(NamedTuple):
    """State of a strategy between two assignments. ``latest``: the candidate that got the last message;
    ``random_state``: the state of the random number generator; ``credit``: the weight credit of each candidate."""

    latest: tuple[str, int] = ("", 0)
    random_state: int = 0
    credit: Mapping[tuple[str, int], int] = {}


class Assignment(NamedTuple):
    """Result of a strategy: for each message the index of its candidate (None: it stays ready), and the new state."""

    assigned: list[int | None]
    memory: Memory


Keys = Sequence[str]
Assign = Callable[[Sequence[Candidate], Keys, Memory], Assignment]


def first_available(candidates: Sequence[Candidate], keys: Keys, memory: Memory) -> Assignment:
    """Fill the candidates in the order given, each up to its ``capacity``."""
    order = [n for n, one in enumerate(candidates) for _ in range(one.capacity)]
    return Assignment(_padded(order, len(keys)), memory)


def round_robin(candidates: Sequence[Candidate], keys: Keys, memory: Memory) -> Assignment:
    """Assign messages in turn, in order of name, starting after the candidate that was last."""
    ring = sorted(range(len(candidates)), key=lambda n: candidates[n][:2])
    capacities = [one.capacity for one in candidates]
    latest = memory.latest
    assigned: list[int | None] = []
    start = next((at for at, n in enumerate(ring) if candidates[n][:2] > latest), 0)
    ring = ring[start:] + ring[:start]
    while len(assigned) < len(keys) and ring:
        turn = [n for n in ring if capacities[n] > 0]
        for n in turn[: len(keys) - len(assigned)]:
            capacities[n] -= 1
            assigned.append(n)
            latest = candidates[n][:2]
        if not turn:
            break
    return Assignment(_padded(assigned, len(keys)), memory._replace(latest=latest))


def random_choice(candidates: Sequence[Candidate], keys: Keys, memory: Memory) -> Assignment:
    capacities = [one.capacity for one in candidates]
    able = [n for n, capacity in enumerate(capacities) if capacity > 0]
    random_state = memory.random_state
    assigned: list[int | None] = []
    for _ in keys:
        if not able:
            break
        random_state, drawn = next_random(random_state)
        n = able[drawn % len(able)]
        assigned.append(n)
        capacities[n] -= 1
        if not capacities[n]:
            able.remove(n)
    return Assignment(_padded(assigned, len(keys)), memory._replace(random_state=random_state))


def weighted_round_robin(candidates: Sequence[Candidate], keys: Keys, memory: Memory) -> Assignment:
    """Smooth weighted round robin: each candidate is credited its weight per turn, and the one with the highest credit
    gets the message. Candidates of weight 0 are a reserve, used if no other has ``capacity``."""
    capacities = [one.capacity for one in candidates]
    credit = {one[:2]: memory.credit.get(one[:2], 0) for one in candidates}
    assigned: list[int | None] = []
    for _ in keys:
        able = [n for n, capacity in enumerate(capacities) if capacity > 0]
        paid = [n for n in able if candidates[n].weight > 0]
        if not able:
            break
        n = _most_credit(candidates, paid, credit) if paid else able[0]
        capacities[n] -= 1
        assigned.append(n)
    return Assignment(_padded(assigned, len(keys)), memory._replace(credit=credit))


def _most_credit(candidates: Sequence[Candidate], able: Sequence[int], credit: dict[tuple[str, int], int]) -> int:
    for n in able:
        credit[candidates[n][:2]] += candidates[n].weight
    best = max(able, key=lambda n: credit[candidates[n][:2]])
    credit[candidates[best][:2]] -= sum(candidates[n].weight for n in able)
    return best


def least_loaded(candidates: Sequence[Candidate], keys: Keys, memory: Memory) -> Assignment:
    """Assign each message to the candidate with the fewest in flight. Candidates of one name share their count."""
    capacities = [one.capacity for one in candidates]
    loads = {one.name: one.in_flight for one in candidates}
    given = [0] * len(candidates)
    assigned: list[int | None] = []
    for _ in keys:
        able = [n for n, capacity in enumerate(capacities) if capacity > 0]
        if not able:
            break
        n = min(able, key=lambda n: (loads[candidates[n].name], given[n]))
        loads[candidates[n].name] += 1
        given[n] += 1
        capacities[n] -= 1
        assigned.append(n)
    return Assignment(_padded(assigned, len(keys)), memory)


def by_key(candidates: Sequence[Candidate], keys: Keys, memory: Memory) -> Assignment:
    """Assign each message to the owner of its key. The owner is chosen among all names, with ``capacity`` or without:
    if it has none, the message stays ready. Messages without a key are assigned by ``round_robin``."""
    members = tuple(sorted({one.name for one in candidates}))
    capacities = [one.capacity for one in candidates]
    assigned: list[int | None] = []
    for key in keys:
        if not key or not members:
            assigned.append(None)
            continue
        chosen = owner(key, members)
        chosen_index = next((n for n, one in enumerate(candidates) if one.name == chosen and capacities[n] > 0), None)
        if chosen_index is not None:
            capacities[chosen_index] -= 1
        assigned.append(chosen_index)
    free = [place for place, key in enumerate(keys) if not key]
    left = [one._replace(capacity=capacities[n]) for n, one in enumerate(candidates)]
    turns, memory = round_robin(left, [""] * len(free), memory)
    for place, chosen_index in zip(free, turns, strict=True):
        assigned[place] = chosen_index
    return Assignment(assigned, memory)


STRATEGIES: dict[Strategy, Assign] = {
    Strategy.FIRST_AVAILABLE: first_available,
    Strategy.ROUND_ROBIN: round_robin,
    Strategy.RANDOM: random_choice,
    Strategy.PRIORITY: weighted_round_robin,
    Strategy.LOAD_BALANCE: least_loaded,
    Strategy.KEY_HASH: by_key,
}
"""Strategies that assign messages to candidates. ``ordered`` selects the message and ``broadcast`` makes copies: see
below."""
JOINT_STRATEGIES = frozenset(STRATEGIES) - {Strategy.FIRST_AVAILABLE}
"""Strategies that need all waiting consumers in one assignment."""
BY_NAME = frozenset({Strategy.BROADCAST, Strategy.KEY_HASH})
"""Strategies that restrict a message to the consumers of one name."""


def may_lease_next(in_hand: int, waiting_again: int) -> bool:
    """Return True if ``ordered`` may lease the next message: none is leased, and none waits for a retry."""
    return in_hand == 0 and waiting_again == 0


def copy_id(id: str, target: int) -> str:
    """Return the id of the copy for the consumer with this number: the same on each call, and at most 100
    characters."""
    tail = f".{target:016x}"
    if len(id) + len(tail) > 100:
        id = f"{id[:60]}-{blake2b(id.encode(), digest_size=8).hexdigest()}"
    return id + tail


def is_copy(id: str, target: int) -> bool:
    return bool(target) and id.endswith(f".{target:016x}")


# -- helpers ----------------------------------------------------------------------------------------------------------


def _padded(assigned: Sequence[int | None], count: int) -> list[int | None]:
    return [*assigned[:count], *[None] * (count - len(assigned))]


def next_random(random_state: int) -> tuple[int, int]:
    """Return the next state of the generator and a random number of 64 bits (splitmix64)."""
    random_state = (random_state + 0x9E3779B97F4A7C15) % 2**64
    mixed = random_state
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
    return random_state, mixed ^ (mixed >> 31)


@lru_cache(maxsize=8192)
def owner(key: str, members: tuple[str, ...]) -> str:
    """Return the owner of a key by rendezvous hashing: the name with the largest hash together with the key. If a name
    is removed, only its keys move."""
    return max(members, key=lambda name: blake2b(f"{name}\0{key}".encode(), digest_size=8).digest())


# -- group membership --------------------------------------------------------------------------------------------------

MAX_ABSENT = 1_000
"""Maximum number of absent names that are remembered; beyond it the longest absent one is removed."""


class GroupMembership(NamedTuple):
    """Membership of a queue's group.

    ``registered``: names registered by an operator or by the consumer, with the instant; they stay until they are
    deregistered. ``waiting``: names that wait for messages now, and whether each polls (a new request per batch).
    ``absent``: names that do not wait now, with the instant at which they last did."""

    registered: Mapping[str, int] = {}
    waiting: Mapping[str, bool] = {}
    absent: Mapping[str, int] = {}

    def members(self, now: int, grace_ms: int) -> list[str]:
        late = [name for name, at in self.absent.items() if now - at <= grace_ms]
        return sorted({*self.registered, *self.waiting, *late})


def with_waiting(before: GroupMembership, waiting: Mapping[str, bool], now: int, *, keeps_all: bool) -> GroupMembership:
    """Return the membership after ``waiting`` are the names that wait now. A poller that stopped waiting may return, so
    it stays in ``absent``. A consumer that ended its connection is removed, unless ``keeps_all``."""
    absent = {name: at for name, at in before.absent.items() if name not in waiting}
    for name, is_poll in before.waiting.items():
        if name not in waiting and (is_poll or keeps_all):
            absent[name] = now
    return before._replace(waiting=dict(waiting), absent=_bounded(absent))


def with_lease_request(before: GroupMembership, name: str, now: int) -> GroupMembership:
    """Return the membership after a consumer leased messages without waiting for them."""
    if name in before.waiting:
        return before
    return before._replace(absent=_bounded({**before.absent, name: now}))


def without_expired(before: GroupMembership, now: int, grace_ms: int) -> GroupMembership:
    """Return the membership without names that have been absent for longer than the grace time."""
    if all(now - at <= grace_ms for at in before.absent.values()):
        return before
    return before._replace(absent={name: at for name, at in before.absent.items() if now - at <= grace_ms})


def registered(before: GroupMembership, name: str, now: int) -> GroupMembership:
    return before if name in before.registered else before._replace(registered={**before.registered, name: now})


def deregistered(before: GroupMembership, name: str) -> GroupMembership:
    """Return the membership without this registration. A consumer that waits now stays a member until it stops."""
    return before._replace(registered=_without(before.registered, name), absent=_without(before.absent, name))


def next_change(membership: GroupMembership, grace_ms: int) -> int | None:
    """Return the instant at which the next grace time ends; None if no member is absent."""
    return min((at + grace_ms + 1 for at in membership.absent.values()), default=None)


def _without(names: Mapping[str, int], name: str) -> dict[str, int]:
    return {one: at for one, at in names.items() if one != name}


def _bounded(absent: dict[str, int]) -> dict[str, int]:
    if len(absent) <= MAX_ABSENT:
        return absent
    latest: Iterable[tuple[str, int]] = sorted(absent.items(), key=lambda item: item[1])[-MAX_ABSENT:]
    return dict(latest)
