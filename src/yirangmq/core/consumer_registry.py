"""Consumer registry: reports of consumers, and an operator's requests to them.

A consumer reports every second. It is shown as silent after 10 s without a report, and forgotten after an hour.

A request (pause, resume, drain) belongs to the process for which it was made: a process that restarts under the same id
starts without one. The request is removed when the consumer reports the state that fulfils it.

``MemoryConsumerRegistry`` is the registry in memory, for a server and for a store that no other process can open; it is
thread-safe. ``stores.consumer_registry`` keeps files instead. Nothing outlives the process: consumers report every
second, so a restarted server has the list again within a second."""

import threading
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.ports import Clock
from yirangmq.core.validation import Fields

SILENT_AFTER_MS = 10_000
"""Age of the latest report, in ms, from which a consumer is shown as silent. A consumer reports every second."""
FORGET_AFTER_MS = 3_600_000
"""Age of the latest report, in ms, from which a consumer is removed. It is shown until then, so that operators notice
its end."""
MAX_QUEUES = 1_000
MAX_TEXT = 255
SILENT = "silent"


class ConsumerState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"
    STOPPED = "stopped"
    """Last report of a consumer; it is removed from the registry."""


WISHES: dict[str, ConsumerState] = {
    "pause": ConsumerState.PAUSED,
    "resume": ConsumerState.RUNNING,
    "drain": ConsumerState.DRAINING,
}
"""Requests of an operator, and the state that fulfils each."""


class ConsumerEntry(NamedTuple):
    """Registry entry of one consumer. Instants are in milliseconds. ``in_work`` counts messages in process; ``done``,
    ``failed``, ``lost`` and ``stuck`` are totals. ``wish``: an operator's request, "" if there is none."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    started_at: int
    state: ConsumerState
    in_work: int
    done: int
    failed: int
    lost: int
    stuck: int
    seen_at: int
    wish: str = ""


class ConsumerRegistry(Protocol):
    """Port of the consumer registry: in a server's memory, or as files beside a store that is used directly."""

    def report(self, values: Mapping[str, Any]) -> str:
        """Store a consumer's report. Return the operator's request to it, "" if there is none."""

    def entries(self) -> list[dict[str, Any]]:
        """Return every consumer that has reported within an hour, in order of id."""

    def wish(self, id: str, wish: str) -> dict[str, Any]:
        """Store an operator's request to one consumer, and return its entry."""


def read_entry(values: object, now: int) -> ConsumerEntry:
    """Parse a consumer's report. Unknown members, which a newer consumer may add, are ignored."""
    given = Fields(values)
    queues = given.take("queues", [])
    if not isinstance(queues, list | tuple) or len(queues) > MAX_QUEUES:
        raise BadInput(f"must be a list of at most {MAX_QUEUES} queues", field="queues")
    host = given.take("host", "")
    if not isinstance(host, str) or len(host) > MAX_TEXT:
        raise BadInput(f"must be text of at most {MAX_TEXT} characters", field="host")
    return ConsumerEntry(
        id=validation.check_consumer(given.take("consumerId", None)),
        host=host,
        pid=given.whole("pid", 0, least=0, most=2**31),
        queues=tuple(validation.check_queue(queue, "queues") for queue in queues),
        started_at=given.whole("startedAt", 0, least=0, most=2**53),
        state=ConsumerState(given.choice("state", "running", tuple(ConsumerState))),
        in_work=_count(given, "inWork"),
        done=_count(given, "done"),
        failed=_count(given, "failed"),
        lost=_count(given, "lost"),
        stuck=_count(given, "stuck"),
        seen_at=now,
    )


def _count(given: Fields, key: str) -> int:
    return given.whole(key, 0, least=0, most=2**53)


def merge_report(before: ConsumerEntry | None, entry: ConsumerEntry) -> ConsumerEntry:
    """Return the new entry with the request of the entry before it, if the process is the same and has not fulfilled
    it."""
    if before is None or not before.wish or not _is_same(before, entry):
        return entry
    return entry if WISHES[before.wish] is entry.state else entry._replace(wish=before.wish)


def _is_same(one: ConsumerEntry, other: ConsumerEntry) -> bool:
    return (one.host, one.pid, one.started_at) == (other.host, other.pid, other.started_at)


def check_wish(wish: object) -> str:
    if wish not in WISHES:
        raise BadInput(f"{wish!r} is not one of {', '.join(WISHES)}", field="wish")
    return str(wish)


def is_forgotten(entry: ConsumerEntry, now: int) -> bool:
    return now - entry.seen_at > FORGET_AFTER_MS


def show_entry(entry: ConsumerEntry, now: int) -> dict[str, Any]:
    """Return the entry for operators: times in milliseconds since 1970, ``silentSec`` in seconds since the latest
    report."""
    silent = max(0, now - entry.seen_at)
    return {
        "consumerId": entry.id,
        "state": SILENT if silent > SILENT_AFTER_MS else entry.state.value,
        "queues": list(entry.queues),
        "inWork": entry.in_work,
        "done": entry.done,
        "failed": entry.failed,
        "lost": entry.lost,
        "stuck": entry.stuck,
        "host": entry.host,
        "pid": entry.pid,
        "startedAt": entry.started_at,
        "seenAt": entry.seen_at,
        "silentSec": silent / 1000,
        "wish": entry.wish or None,
    }


MAX_CONSUMERS = 10_000
"""Maximum number of consumers in one registry; beyond it the longest silent one is removed."""


class MemoryConsumerRegistry:
    """Consumer registry in memory (``core.consumer_registry.ConsumerRegistry``). Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._entries: dict[str, ConsumerEntry] = {}

    def report(self, values: Mapping[str, Any]) -> str:
        entry = read_entry(values, self._clock.now_ms())
        with self._guard:
            before = self._entries.pop(entry.id, None)  # inserted again at the end: the first is the longest silent
            if entry.state is ConsumerState.STOPPED:
                return ""
            entry = self._entries[entry.id] = merge_report(before, entry)
            if len(self._entries) > MAX_CONSUMERS:
                del self._entries[next(iter(self._entries))]
            return entry.wish

    def entries(self) -> list[dict[str, Any]]:
        now = self._clock.now_ms()
        with self._guard:
            self._entries = {id: entry for id, entry in self._entries.items() if not is_forgotten(entry, now)}
            return [show_entry(entry, now) for _, entry in sorted(self._entries.items())]

    def wish(self, id: str, wish: str) -> dict[str, Any]:
        validation.check_consumer(id)
        check_wish(wish)
        with self._guard:
            entry = self._entries.get(id)
            if entry is None:
                raise NotFound(f"there is no consumer {id!r} here", field="consumerId")
            entry = self._entries[id] = entry._replace(wish=wish)
            return show_entry(entry, self._clock.now_ms())
