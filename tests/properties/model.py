"""What a queue must do, said once more and differently: one list of entries, every rule in its plainest form.

Knows nothing of ``core.transitions`` and no store. Times are milliseconds; ``now`` is handed in."""

import json
from dataclasses import dataclass, field
from typing import Any

from yirangmq.core.errors import LeaseExpired, LeaseMismatch, NotFound, QueueError, WrongState
from yirangmq.core.message import RANK_LAST, Counts
from yirangmq.core.validation import line_of

Refusal = type[QueueError] | None
FINAL = ("REJECTED", "VALIDATION_ERROR", "CORRUPT")
WAITING = ("delayed", "held", "ready", "leased")
"""Not done with: who comes behind in the same group waits."""


@dataclass
class Rules:
    """The policy of the queue in play, with small limits: a bug shows sooner at two than at five."""

    limit: int
    poison_after: int
    backoff: str
    dead_letters: str
    """on, drop or park"""
    history: int
    """How many finished messages are kept; -1: none at all."""
    on_expire: str
    requeue: str
    lease_ms: int = 3_000
    first_wait_ms: int = 1_000
    longest_wait_ms: int = 2_000
    dead_ms: int = 8_640
    kept_ms: int = 8_640
    key_ms: int = 4_000
    tombstone_ms: int = 5_000

    def document(self) -> dict[str, Any]:
        """The same as a policy."""
        return {
            "visibilityTimeoutSec": self.lease_ms / 1000,
            "retry": {
                "limit": self.limit,
                "backoff": self.backoff,
                "initialDelaySec": self.first_wait_ms / 1000,
                "maxDelaySec": self.longest_wait_ms / 1000,
                "poisonAfter": self.poison_after,
            },
            "dlq": {
                "enabled": self.dead_letters == "on",
                "whenDisabled": "park" if self.dead_letters == "park" else "drop",
                "retentionDays": self.dead_ms / 86_400_000,
            },
            "archive": {
                "enabled": self.history >= 0,
                "maxMessages": max(0, self.history),
                "retentionDays": self.kept_ms / 86_400_000,
            },
            "dedupWindowSec": self.key_ms / 1000,
            "tombstoneSec": self.tombstone_ms / 1000,
            "onExpire": self.on_expire,
            "requeue": self.requeue,
        }


@dataclass
class Entry:
    number: int
    id: str
    rank: int
    payload: bytes
    state: str
    place: int
    expires: int
    due: int
    changed: int
    group: str = ""
    target: str = ""
    size: int = 0
    available: int = 0
    attempt: int = 0
    fence: int = 0
    holder: str = ""
    given_back: bool = False
    reason: str = ""
    repeats: int = 0
    has_body: bool = True


@dataclass
class New:
    id: str
    rank: int
    payload: bytes
    delay: int = 0
    ttl: int = 0
    key: str | None = None
    group: str = ""
    target: str = ""

    @property
    def size(self) -> int:
        """Of the payload and of what stands in the envelope beside it."""
        attributes = {} if self.rank == RANK_LAST else {"attributes": {"priority": self.rank}}
        members = {"deduplicationKey": self.key, "groupId": self.group or None, "targetConsumerId": self.target or None}
        header = {**attributes, **{name: value for name, value in members.items() if value is not None}}
        return len(self.payload) + (len(json.dumps(header, separators=(",", ":"))) if header else 0)


@dataclass
class Model:
    rules: Rules
    entries: dict[int, Entry] = field(default_factory=dict)
    keys: dict[str, tuple[int, str]] = field(default_factory=dict)
    passed: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("published", "acked", "failed", "dropped", "redriven"), 0)
    )
    _numbers: int = 0
    _places: int = 0

    # -- asking ---------------------------------------------------------------------------------------------------

    def named(self, id: str) -> Entry | None:
        return next((entry for entry in self.entries.values() if entry.id == id), None)

    def among(self, *states: str) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.state in states]

    def line(self) -> list[Entry]:
        """As they are listed: those for anyone, then those for one consumer each."""
        return sorted(self.among("ready"), key=lambda entry: (line_of(entry.target), entry.rank, entry.place))

    def open_to(self, who: str) -> list[Entry]:
        """What this consumer may have, in the order in which it gets them."""
        mine = [entry for entry in self.among("ready") if entry.target in ("", who)]
        return sorted(mine, key=lambda entry: (entry.rank, entry.place))

    def members(self, group: str) -> list[Entry]:
        """Of a group those not done with, in order."""
        mine = [entry for entry in self.among(*WAITING) if group and entry.group == group]
        return sorted(mine, key=lambda entry: entry.place)

    def counts(self) -> Counts:
        states = ("delayed", "held", "ready", "leased", "dead", "parked", "done")
        there = {state: sum(entry.has_body for entry in self.among(state)) for state in states}
        return Counts(**there, **self.passed, bytes=sum(entry.size for entry in self.among(*WAITING)))

    # -- verbs ----------------------------------------------------------------------------------------------------

    def publish(self, now: int, new: New) -> tuple[str, bool]:
        """Which message holds the place, and whether it was there before."""
        if self.named(new.id):
            return new.id, True
        if new.key is not None:
            until, holder = self.keys.get(new.key, (0, ""))
            if until > now:
                return holder, True
            self.keys[new.key] = (now + self.rules.key_ms, new.id)
        self._numbers += 1
        expires = now + new.ttl if new.ttl else 0
        state = "delayed" if new.delay else "ready"
        due = min(moment for moment in (now + new.delay if new.delay else 0, expires, 2**60) if moment)
        entry = Entry(self._numbers, new.id, new.rank, new.payload, state, self._next_place(), expires, due, now)
        entry.group, entry.target, entry.size, entry.available = new.group, new.target, new.size, now + new.delay
        self._line_up(entry)
        self.entries[entry.number] = entry
        self.passed["published"] += 1
        return new.id, False

    def lease(self, now: int, limit: int, who: str) -> list[Entry]:
        self.pass_time(now)
        taken = self.open_to(who)[:limit]
        for entry in taken:
            entry.attempt += 1
            entry.fence += 1
            self._set(entry, now, "leased", now + self.rules.lease_ms)
            entry.holder, entry.given_back = who, False
        return taken

    def _lost(self, now: int, number: int, fence: int, who: str | None) -> Refusal:
        entry = self.entries.get(number)
        if entry is None:
            return NotFound
        if entry.state != "leased" or entry.fence != fence:
            return LeaseExpired
        if who not in (None, entry.holder):
            return LeaseMismatch
        return LeaseExpired if entry.due <= now else None

    def ack(self, now: int, number: int, fence: int, who: str | None) -> Refusal:
        entry = self.entries.get(number)
        if entry and entry.state == "done" and entry.fence == fence:
            return None
        if refusal := self._lost(now, number, fence, who):
            return refusal
        entry = self.entries[number]
        entry.has_body = self.rules.history >= 0
        keep = max(self.rules.kept_ms, self.rules.tombstone_ms) if entry.has_body else self.rules.tombstone_ms
        self._set(entry, now, "done", now + keep)
        self.passed["acked"] += 1
        return None

    def nack(self, now: int, number: int, fence: int, who: str | None, reason: str, delay: int | None) -> Refusal:
        entry = self.entries.get(number)
        if entry and entry.given_back and entry.fence == fence:
            return None
        if refusal := self._lost(now, number, fence, who):
            return refusal
        entry = self.entries[number]
        entry.given_back = True
        attempt = entry.attempt
        if not self._fail(now, entry, reason):
            wait = self._wait(attempt) if delay is None else delay
            if wait:
                self._set(entry, now, "delayed", min(now + wait, entry.expires or 2**60))
            else:
                self._ready(now, entry, back=self.rules.requeue == "back")
        return None

    def extend(self, now: int, number: int, fence: int, who: str | None, span: int) -> Refusal:
        if refusal := self._lost(now, number, fence, who):
            return refusal
        self._set(self.entries[number], now, "leased", now + span)
        return None

    def drop(self, now: int, id: str) -> Refusal:
        entry = self.named(id)
        if entry is None:
            return NotFound
        if entry.state == "done":
            return WrongState
        if entry.state != "dropped":
            entry.given_back = False
            self._give_up(now, entry)
        return None

    def redrive(self, now: int, ids: set[str]) -> None:
        for entry in self.among("dead", "parked"):
            if entry.id in ids:
                entry.attempt = entry.expires = entry.repeats = 0
                entry.reason, entry.given_back = "", False
                others = self.members(entry.group)
                self._ready(now, entry, back=True)
                if others:
                    entry.state = "held"
                self.passed["redriven"] += 1

    def park(self, now: int, ids: set[str]) -> None:
        for entry in self.among("dead"):
            if entry.id in ids:
                self._set(entry, now, "parked", 0)

    # -- time -----------------------------------------------------------------------------------------------------

    def pass_time(self, now: int) -> None:
        while due := sorted((e.due, e.number) for e in self.entries.values() if 0 < e.due <= now):
            for _, number in due:
                self._expire(now, self.entries[number])
        kept = sorted((e.changed, e.number) for e in self.among("done") if e.has_body)
        for _, number in kept[: max(0, len(kept) - self.rules.history)]:
            entry = self.entries[number]
            entry.has_body, entry.due = False, entry.changed + self.rules.tombstone_ms
            if entry.due <= now:
                del self.entries[number]

    def _expire(self, now: int, entry: Entry) -> None:
        if entry.state == "leased":
            if not self._fail(now, entry, "TIMEOUT"):
                self._ready(now, entry, back=self.rules.requeue == "back")
        elif entry.state == "delayed" and not 0 < entry.expires <= now:
            self._ready(now, entry, back=self.rules.requeue == "back" or entry.attempt == 0)
        elif entry.state in ("ready", "delayed", "held"):
            self.passed["failed"] += 1
            self._out_of_time(now, entry)
        elif entry.state == "dead":
            entry.given_back = False
            self._give_up(now, entry)
        else:
            del self.entries[entry.number]

    # -- what follows ---------------------------------------------------------------------------------------------

    def _fail(self, now: int, entry: Entry, reason: str) -> bool:
        """Count a failure; True if it was the last one."""
        self.passed["failed"] += 1
        entry.repeats = entry.repeats + 1 if entry.reason == reason else 1
        entry.reason = reason
        poison = bool(self.rules.poison_after) and entry.repeats >= self.rules.poison_after
        if poison or reason in FINAL or entry.attempt > self.rules.limit:
            self._bury(now, entry, "POISON" if poison else reason)
            return True
        if 0 < entry.expires <= now:
            self._out_of_time(now, entry)
            return True
        return False

    def _out_of_time(self, now: int, entry: Entry) -> None:
        if self.rules.on_expire == "dead":
            self._bury(now, entry, "EXPIRED")
        else:
            self._give_up(now, entry)

    def _bury(self, now: int, entry: Entry, reason: str) -> None:
        entry.reason = reason
        if self.rules.dead_letters == "on":
            self._set(entry, now, "dead", now + self.rules.dead_ms)
        elif self.rules.dead_letters == "park":
            self._set(entry, now, "parked", 0)
        else:
            self._give_up(now, entry)

    def _give_up(self, now: int, entry: Entry) -> None:
        entry.has_body = False
        self._set(entry, now, "dropped", now + self.rules.tombstone_ms)
        self.passed["dropped"] += 1

    def _ready(self, now: int, entry: Entry, *, back: bool) -> None:
        """One of a group that was not done with keeps its place, whatever the queue does with others."""
        if back and not (entry.group and entry.state in WAITING):
            entry.place = self._next_place()
        self._set(entry, now, "ready", entry.expires)

    def _set(self, entry: Entry, now: int, state: str, due: int) -> None:
        was, entry.state, entry.due, entry.changed = entry.state, state, due, now
        if was in WAITING and state not in WAITING:
            self._turn(now, entry.group)

    def _line_up(self, entry: Entry) -> None:
        """Behind the others of its group."""
        if self.members(entry.group):
            entry.state, entry.due = "held", entry.expires

    def _turn(self, now: int, group: str) -> None:
        """Who is first in the group now need not wait for others any more, but perhaps for its own time."""
        first = next(iter(self.members(group)), None)
        if first is None or first.state != "held":
            return
        if first.available > now and not first.attempt:
            self._set(first, now, "delayed", min(first.available, first.expires or 2**60))
        else:
            self._set(first, now, "ready", first.expires)

    def _wait(self, attempt: int) -> int:
        factors: dict[str, int] = {"exponential": 2 ** (attempt - 1), "linear": attempt, "fixed": 1}
        factor = factors[self.rules.backoff]
        return min(self.rules.first_wait_ms * factor, self.rules.longest_wait_ms)

    def _next_place(self) -> int:
        self._places += 1
        return self._places
