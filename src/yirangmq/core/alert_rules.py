"""Alert rules: the faults of a server as functions of its facts, and sliding-window counters.

``RULES`` is the table, shown in docs/alerts.md. A rule sees the present facts alone; ``core.alerts`` keeps the open
alerts. The counters sum events over a window, in 60 slots. Pure: time is an argument."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import NamedTuple

from yirangmq.core.active_guard import MAX_NORMAL_SWITCHES
from yirangmq.core.alerts import STORM, Fault, Level

# -- facts -------------------------------------------------------------------------------------------------------------


class QueueFacts(NamedTuple):
    """Facts of one queue. ``waiting``: its backlog; ``age``: seconds that the next message has waited, None if there is
    none; ``died``: new dead letters within the window."""

    queue: str
    waiting: int
    age: float | None
    died: int


class PeerFacts(NamedTuple):
    """Facts of the other node of a pair. ``silence`` and ``timeout`` are in milliseconds. ``status``: the last reported
    status, "" if no heartbeat was ever received. ``datagram_silence``: like ``silence``, without the answers to tests
    over TCP. ``keys_differ``: heartbeats from its address fail authentication."""

    node: str
    silence: int
    timeout: int
    status: str
    datagram_silence: int = 0
    keys_differ: bool = False


class InactiveFacts(NamedTuple):
    """Time for which no active node of the pair has been known, and the time that a takeover takes, both in
    milliseconds. ``reason``: why this node is not active."""

    without_active: int
    takeover: int
    reason: str


class RoleChange(NamedTuple):
    """Switch of this node's role within the window. ``is_meant``: an operator ordered it, or both nodes agreed."""

    event: str
    term: int
    is_meant: bool


class DiskFacts(NamedTuple):
    """Facts of the store's disk, in bytes. ``refusal``: why publishing is refused, "" if it is not."""

    free: int
    size: int
    refusal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Facts of a server at one moment, the input of the alert rules. "Window" is the window of the settings."""

    queues: Sequence[QueueFacts] = ()
    peer: PeerFacts | None = None
    inactive: InactiveFacts | None = None
    role_changes: Sequence[RoleChange] = ()
    switches: int = 0
    """Switches of this node in the last day."""
    disk: DiskFacts | None = None
    refused: Mapping[str, int] = field(default_factory=dict)
    """Clients refused within the window, by protocol and reason."""
    commit: float | None = None
    """Mean duration of a commit in the last minute, in seconds; None: there was no commit."""
    jump: float = 0.0
    """Largest step by which the clock was set within the window, in seconds; negative: back."""
    trouble: str = ""
    """Error of the store if it cannot be written, else ""."""
    losses: Sequence[str] = ()
    """Losses of topic records found within the window, each with its reason."""


# -- rules -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSetting:
    """Settings of one rule. ``limit`` None: the default limit of the rule. ``level``: the level of all its faults;
    None: as the rule decides. ``queues``: limits by pattern of queue names; the first match counts, and 0 disables the
    rule for that queue."""

    is_on: bool = True
    limit: float | None = None
    level: Level | None = None
    queues: tuple[tuple[str, float], ...] = ()


class RuleLimits:
    """Limits of one rule: ``of`` returns the limit of a queue, ``limit`` is for all others."""

    def __init__(self, limit: float, queues: Sequence[tuple[str, float]]) -> None:
        self.limit = limit
        self._queues = [(re.compile(translate(pattern)), value) for pattern, value in queues]

    def of(self, queue: str) -> float:
        return next((value for pattern, value in self._queues if pattern.match(queue)), self.limit)


Find = Callable[[ServerFacts, RuleLimits], Iterator[Fault]]


class Rule(NamedTuple):
    """One row of the table of rules. ``limit`` None: the rule has no limit. ``levels`` and ``about`` are printed in the
    documentation."""

    find: Find
    limit: float | None
    unit: str
    levels: str
    about: str
    by_queue: bool = False


def faults(facts: ServerFacts, settings: Mapping[str, RuleSetting]) -> list[Fault]:
    """Return the faults that the enabled rules find."""
    found: list[Fault] = []
    for name, rule in RULES.items():
        setting = settings.get(name, _PLAIN)
        if not setting.is_on:
            continue
        limit = rule.limit if setting.limit is None else setting.limit
        for fault in rule.find(facts, RuleLimits(limit or 0, setting.queues)):
            found.append(fault if setting.level is None else fault._replace(level=setting.level))
    return found


_PLAIN = RuleSetting()


def _number(count: int, noun: str) -> str:
    """Return the count with its noun, such as "1 message" or "2 messages"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


# -- rules of the pair ----------------------------------------------------------------------------------------------


KEYS_DIFFER = (
    "the keys differ: heartbeats from the peer's address are signed with another key, so neither node can take over; "
    "give both nodes the same pair_key"
)


def _peer_silent(facts: ServerFacts, limits: RuleLimits) -> Iterator[Fault]:
    peer = facts.peer
    if peer is None or peer.keys_differ or max(peer.silence, peer.datagram_silence) * 2 <= peer.timeout:
        return
    silence = f"{peer.silence / 1000:.1f} s"
    if peer.status in ("STOPPING", "STOPPED"):
        yield Fault("peer_silent", "", Level.INFO, f"the peer {peer.node} was stopped by hand")
    elif peer.silence > peer.timeout:
        who = f"the peer {peer.node} has been" if peer.node else "the peer was never heard and is"
        yield Fault("peer_silent", "", Level.CRITICAL, f"{who} silent for {silence}")
    elif peer.datagram_silence > peer.timeout and peer.node:
        text = f"no heartbeat of {peer.node} by UDP for {peer.datagram_silence / 1000:.1f} s; it answers over TCP"
        yield Fault("peer_silent", "", Level.WARNING, text)
    elif peer.node:
        text = f"heartbeats of {peer.node} are late: the last one is {silence} old"
        yield Fault("peer_silent", "", Level.WARNING, text)


def _pair_keys_differ(facts: ServerFacts, limits: RuleLimits) -> Iterator[Fault]:
    if facts.peer is not None and facts.peer.keys_differ:
        yield Fault("pair_keys_differ", "", Level.CRITICAL, KEYS_DIFFER)


def _no_active_node(facts: ServerFacts, limits: RuleLimits) -> Iterator[Fault]:
    """While the keys differ, the peer may be active: the alert about the keys stands for both."""
    inactive = facts.inactive
    if inactive is None or inactive.without_active <= inactive.takeover or (facts.peer and facts.peer.keys_differ):
        return
    text = f"no node of the pair has been active for {inactive.without_active / 1000:.1f} s: {inactive.reason}"
    yield Fault("no_active_node", "", Level.CRITICAL, f"{text}; `yirangmq pair switch` makes a standby active")


def _takeover(facts: ServerFacts, limits: RuleLimits) -> Iterator[Fault]:
    """Find each switch of this node as a fault of its own, so that a second one is notified too. More switches than
    the limit are one fault."""
    if facts.switches > limits.limit and facts.role_changes:
        latest = ", ".join(map(_switch_text, facts.role_changes[-3:]))
        yield Fault("takeover", "", Level.CRITICAL, f"{facts.switches} switches in a day, the latest: {latest}")
        return
    for role_change in facts.role_changes:
        level = Level.INFO if role_change.is_meant else Level.WARNING
        yield Fault("takeover", _switch_text(role_change), level, f"this node {_switch_text(role_change)}")


def _switch_text(role_change: RoleChange) -> str:
    return f"{role_change.event} in term {role_change.term}"


# -- rules of queues ------------------------------------------------------------------------------------------------


def _queue_age(facts: ServerFacts, limits: RuleLimits) -> Iterator[Fault]:
    for one in facts.queues:
        limit = limits.of(one.queue)
        if limit and one.age is not None and one.age > limit:
            text = f"the next message of {one.queue} has waited for {one.age:.0f} s, longer than {limit:g}"
            yield Fault("queue_age", one.queue, Level.WARNING, text)


def _queue_depth(facts: ServerFacts, limits: RuleLimits) -> Iterator[Fault]:
    for one in facts.queues:
        limit = limits.of(one.queue)
        if limit and one.waiting > limit:
            verb = "waits" if one.waiting == 1 else "wait"
            text = f"{_number(one.waiting, 'message')} {verb} in {one.queue}, more than {limit:g}"
            yield Fault("queue_depth", one.queue, Level.WARNING, text)


def _dead_letters(facts: ServerFacts, limits: RuleLimits) -> Iterator[Fault]:
    for one in facts.queues:
        limit = limits.of(one.queue)
        if limit and one.died >= limit:
            yield Fault(
                "dead_letters", one.queue, Level.WARNING, f"{_number(one.died, 'new dead letter')} in {one.queue}"
            )


# -- rules of the server --------------------------------------------------------------------------------------------


def _disk_low(facts: ServerFacts, limits: RuleLimits) -> Iterator[Fault]:
    disk = facts.disk
    if disk is None:
        return
    if disk.refusal:
        yield Fault("disk_low", "", Level.CRITICAL, f"publishing is refused: {disk.refusal}")
    elif limits.limit and disk.size and disk.free * 100 < disk.size * limits.limit:
        share = disk.free * 100 / disk.size
        yield Fault(
            "disk_low", "", Level.WARNING, f"{disk.free >> 20} MiB left on the disk of the store, {share:.1f} %"
        )


def _client_refused(facts: ServerFacts, limits: RuleLimits) -> Iterator[Fault]:
    total = sum(facts.refused.values())
    if limits.limit and total >= limits.limit:
        why = ", ".join(f"{reason} {count}" for reason, count in facts.refused.items())
        yield Fault("client_refused", "", Level.WARNING, f"{_number(total, 'client')} refused: {why}")


def _slow_commits(facts: ServerFacts, limits: RuleLimits) -> Iterator[Fault]:
    if limits.limit and facts.commit is not None and facts.commit > limits.limit:
        text = f"a commit takes {facts.commit:.3f} s, longer than {limits.limit:g}"
        yield Fault("slow_commits", "", Level.WARNING, text)


def _clock_jump(facts: ServerFacts, limits: RuleLimits) -> Iterator[Fault]:
    if limits.limit and abs(facts.jump) > limits.limit:
        way = "forward" if facts.jump > 0 else "back"
        yield Fault("clock_jump", "", Level.WARNING, f"the clock was set {way} by {abs(facts.jump):.1f} s")


def _store_refuses(facts: ServerFacts, limits: RuleLimits) -> Iterator[Fault]:
    if facts.trouble:
        yield Fault("store_refuses", "", Level.CRITICAL, f"the store cannot be written: {facts.trouble}")


def _topic_records_lost(facts: ServerFacts, limits: RuleLimits) -> Iterator[Fault]:
    if facts.losses:
        yield Fault("topic_records_lost", "", Level.CRITICAL, f"topics: {'; '.join(facts.losses)}")


# -- the table of rules ------------------------------------------------------------------------------------------------

RULES: dict[str, Rule] = {
    "peer_silent": Rule(
        _peer_silent, None, "", "WARNING, CRITICAL; INFO",
        "heartbeats of the other node of a pair are later than half the time-out; past the time-out CRITICAL; "
        "INFO where it was stopped by hand",
    ),
    "pair_keys_differ": Rule(
        _pair_keys_differ, None, "", "CRITICAL",
        "heartbeats from the address of the other node of a pair are signed with another key",
    ),
    "no_active_node": Rule(
        _no_active_node, None, "", "CRITICAL",
        "this node of a pair is standby, and knows no active node for longer than a takeover takes",
    ),
    "takeover": Rule(
        _takeover, MAX_NORMAL_SWITCHES, "switches in a day", "WARNING, CRITICAL; INFO",
        "this node of a pair became active or stood down; more often than the limit CRITICAL; INFO where that was "
        "ordered or agreed",
    ),
    "queue_age": Rule(
        _queue_age, 3600, "seconds", "WARNING", "the message next in line waits for longer than the limit", True
    ),
    "queue_depth": Rule(
        _queue_depth, 10_000, "messages", "WARNING", "more messages wait in a queue than the limit", True
    ),
    "dead_letters": Rule(
        _dead_letters, 1, "messages in the window", "WARNING", "so many new dead letters of a queue, or more", True
    ),
    "disk_low": Rule(
        _disk_low, 5, "per cent free", "WARNING, CRITICAL",
        "less of the store's disk is free; CRITICAL where publishing is refused (`disk_low_bytes`, `max_store_bytes`)",
    ),
    "client_refused": Rule(
        _client_refused, 1, "clients in the window", "WARNING",
        "so many clients were sent away, or more: a wrong token, no right to it, too many connections",
    ),
    "slow_commits": Rule(
        _slow_commits, 0.5, "seconds", "WARNING", "the mean time of a commit in the last minute, with its sync"
    ),
    "clock_jump": Rule(
        _clock_jump, 2, "seconds", "WARNING", "the system's clock was set, forward or back, by more than the limit"
    ),
    "store_refuses": Rule(_store_refuses, None, "", "CRITICAL", "the store cannot be written"),
    "topic_records_lost": Rule(
        _topic_records_lost, None, "", "CRITICAL",
        "the log of the topics was opened within the window, and records at its end, or all, were lost; a new epoch "
        "began",
    ),
}  # fmt: skip
NAMES = (*RULES, STORM)


def check_rules(names: Iterable[str]) -> str:
    """Return the first name that is not a rule; "" if all are."""
    return next((name for name in names if name not in NAMES), "")


# -- sliding-window counters -------------------------------------------------------------------------------------------


class SlidingWindow:
    """Sliding window of ``window`` ms over numbers. Numbers within one of its 60 slots are summed, so that memory is
    bounded."""

    SLOTS = 60

    def __init__(self, window: int) -> None:
        self._window = window
        self._slot = max(1, window // self.SLOTS)
        self._buckets: deque[tuple[int, float, int]] = deque()

    def add(self, now: int, number: float = 1, times: int = 1) -> None:
        slot = now // self._slot
        if self._buckets and self._buckets[-1][0] == slot:
            _, before, count = self._buckets.pop()
            number, times = before + number, count + times
        self._buckets.append((slot, number, times))
        self._forget(now)

    def total(self, now: int) -> float:
        self._forget(now)
        return sum(number for _, number, _ in self._buckets)

    def mean(self, now: int) -> float | None:
        """Return the mean; None if the window is empty."""
        self._forget(now)
        times = sum(times for _, _, times in self._buckets)
        return self.total(now) / times if times else None

    def _forget(self, now: int) -> None:
        first = (now - self._window) // self._slot
        while self._buckets and self._buckets[0][0] < first:
            self._buckets.popleft()


class CounterGrowth:
    """Growth of counters within a sliding window. A new counter counts from its first value; one that fell (a restart)
    counts from the lower value."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._latest: dict[str, float] = {}
        self._increases: dict[str, SlidingWindow] = {}

    def observe(self, now: int, name: str, value: float, *, since: float | None = None) -> None:
        """Note the value of a counter. ``since``: its value before the first call; None: the same as ``value``."""
        before = self._latest.get(name, value if since is None else since)
        self._latest[name] = value
        if value > before:
            self._increases.setdefault(name, SlidingWindow(self._window)).add(now, value - before)

    def of(self, now: int, name: str) -> int:
        found = self._increases.get(name)
        return round(found.total(now)) if found is not None else 0

    def all(self, now: int) -> dict[str, int]:
        """Return the growth of each counter that rose within the window."""
        return {name: count for name in sorted(self._increases) if (count := self.of(now, name))}
