"""Consumer registry: what consumers report of themselves, and an operator's requests to them.

A consumer reports every second. It is shown as silent after 10 s without a report, and forgotten after an hour.

A request (pause, resume, drain) belongs to the process for which it was made: a process that restarts under the same id
begins without one. The request is removed when the consumer reports the state that fulfils it.

``Consumers`` is the registry in memory, for a server and for a store that no other process can open; it is thread-safe.
``stores.consumer_registry`` keeps files instead. Nothing outlives the process: consumers report every second, so a
restarted server has the list again within a second."""

import threading
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.ports import Clock
from yirangmq.core.validation import Fields

SILENT_MS = 10_000
"""A consumer tells of itself every second; one not heard of for so long is shown as silent."""
FORGOTTEN_MS = 3_600_000
"""A silent one stays on the roster for so long, so that its end is noticed."""
MOST_QUEUES = 1_000
MOST_TEXT = 255
SILENT = "silent"


class ConsumerState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"
    STOPPED = "stopped"
    """The last word of a consumer; it leaves the roster with it."""


WISHES: dict[str, ConsumerState] = {
    "pause": ConsumerState.PAUSED,
    "resume": ConsumerState.RUNNING,
    "drain": ConsumerState.DRAINING,
}
"""What an operator may ask for, and the state that fulfils it."""


class Card(NamedTuple):
    """One consumer. Instants in milliseconds; ``in_work`` counts messages, the numbers after it are totals."""

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


class Roster(Protocol):
    """Where the cards are kept: in a server's memory, or as files beside a store that is used directly."""

    def beat(self, values: Mapping[str, Any]) -> str:
        """A consumer tells of itself; what is wished of it, "" if nothing is."""

    def cards(self) -> list[dict[str, Any]]:
        """Every consumer not forgotten, by id."""

    def wish(self, id: str, wish: str) -> dict[str, Any]:
        """Ask something of one consumer; its card."""


def read_card(values: object, now: int) -> Card:
    """What a consumer says of itself, checked. Members a newer consumer may add are passed over."""
    given = Fields(values)
    queues = given.take("queues", [])
    if not isinstance(queues, list | tuple) or len(queues) > MOST_QUEUES:
        raise BadInput(f"must be a list of at most {MOST_QUEUES} queues", field="queues")
    host = given.take("host", "")
    if not isinstance(host, str) or len(host) > MOST_TEXT:
        raise BadInput(f"must be text of at most {MOST_TEXT} characters", field="host")
    return Card(
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


def heard(before: Card | None, card: Card) -> Card:
    """The card with the wish that still stands."""
    if before is None or not before.wish or not _is_same(before, card):
        return card
    return card if WISHES[before.wish] is card.state else card._replace(wish=before.wish)


def _is_same(one: Card, other: Card) -> bool:
    return (one.host, one.pid, one.started_at) == (other.host, other.pid, other.started_at)


def check_wish(wish: object) -> str:
    if wish not in WISHES:
        raise BadInput(f"{wish!r} is not one of {', '.join(WISHES)}", field="wish")
    return str(wish)


def is_forgotten(card: Card, now: int) -> bool:
    return now - card.seen_at > FORGOTTEN_MS


def show_card(card: Card, now: int) -> dict[str, Any]:
    """For operators: times as milliseconds since 1970, ``silentSec`` since it was last heard of."""
    silent = max(0, now - card.seen_at)
    return {
        "consumerId": card.id,
        "state": SILENT if silent > SILENT_MS else card.state.value,
        "queues": list(card.queues),
        "inWork": card.in_work,
        "done": card.done,
        "failed": card.failed,
        "lost": card.lost,
        "stuck": card.stuck,
        "host": card.host,
        "pid": card.pid,
        "startedAt": card.started_at,
        "seenAt": card.seen_at,
        "silentSec": silent / 1000,
        "wish": card.wish or None,
    }


MOST = 10_000
"""Consumers on one roster; the ones longest silent make room."""


class Consumers:
    """``core.consumer_registry.Roster`` in a dict. Safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._cards: dict[str, Card] = {}

    def beat(self, values: Mapping[str, Any]) -> str:
        card = read_card(values, self._clock.now_ms())
        with self._guard:
            before = self._cards.pop(card.id, None)  # put in again at the end: the first is the longest silent
            if card.state is ConsumerState.STOPPED:
                return ""
            card = self._cards[card.id] = heard(before, card)
            if len(self._cards) > MOST:
                del self._cards[next(iter(self._cards))]
            return card.wish

    def cards(self) -> list[dict[str, Any]]:
        now = self._clock.now_ms()
        with self._guard:
            self._cards = {id: card for id, card in self._cards.items() if not is_forgotten(card, now)}
            return [show_card(card, now) for _, card in sorted(self._cards.items())]

    def wish(self, id: str, wish: str) -> dict[str, Any]:
        validation.check_consumer(id)
        check_wish(wish)
        with self._guard:
            card = self._cards.get(id)
            if card is None:
                raise NotFound(f"there is no consumer {id!r} here", field="consumerId")
            card = self._cards[id] = card._replace(wish=wish)
            return show_card(card, self._clock.now_ms())
