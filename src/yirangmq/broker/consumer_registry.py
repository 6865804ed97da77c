"""Consumer registry in memory: the status reports of running consumers, and the operator's requests to them.

It implements the registry port of ``core.consumer_registry`` for a server, and for a store that no other process can
open; ``stores.consumer_registry`` keeps files instead. Nothing outlives the process. Consumers report every second, so
a restarted server has the list again within a second. Thread-safe."""

import threading
from collections.abc import Mapping
from typing import Any

from yirangmq.core import validation
from yirangmq.core.consumer_registry import Card, ConsumerState, check_wish, heard, is_forgotten, read_card, show_card
from yirangmq.core.errors import NotFound
from yirangmq.core.ports import Clock

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
