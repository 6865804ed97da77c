"""Telling the broker how a query does, so that its dashboard can show it. A broker that cannot be told stops nothing.

Knows: the card of ``PUT /v1/pipelines/NAME``. Does not know: Spark."""

import time
from typing import Any
from urllib.parse import quote

from yirangmq.pipeline.source.broker import HttpBroker
from yirangmq.pipeline.source.errors import SourceError

PATIENCE = 2.0
BEAT_SECONDS = 10.0
"""A query that is idle tells that it is there."""
LEAST_SECONDS = 1.0


class Teller:
    """``tell`` as often as one likes: a card goes out when it changed, at most once a second, and after a while."""

    def __init__(self, name: str, broker: str | None, token: str | None) -> None:
        self._path = f"/v1/pipelines/{quote(name)}"
        self._broker = HttpBroker(broker, token, PATIENCE) if broker else None
        self._last: dict[str, Any] | None = None
        self._at = 0.0
        self.trouble: str | None = None

    def tell(self, card: dict[str, Any], *, at_once: bool = False) -> None:
        now = time.monotonic()
        waited = now - self._at
        is_due = waited >= BEAT_SECONDS or (card != self._last and waited >= LEAST_SECONDS)
        if self._broker is None or not (is_due or at_once):
            return
        self._last, self._at = card, now
        try:
            self._broker.document("PUT", self._path, {name: value for name, value in card.items() if value is not None})
            self.trouble = None
        except (SourceError, OSError, ValueError) as error:
            self.trouble = str(error)
        finally:
            self._broker.close()
