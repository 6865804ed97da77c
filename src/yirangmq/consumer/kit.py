"""What the parts of a running consumer share."""

import threading
from dataclasses import dataclass

from yirangmq.consumer.gate import Gate
from yirangmq.consumer.holdings import Holdings
from yirangmq.consumer.poison import Poison
from yirangmq.consumer.ports import Queues
from yirangmq.consumer.settler import Settler
from yirangmq.consumer.tally import Tally
from yirangmq.consumer.threads import Fail


class Budget:
    """How many messages may still be taken; None: any number. What was asked for and not given comes back."""

    def __init__(self, most: int | None) -> None:
        self._left = most
        self._asked = 0
        self._guard = threading.Lock()

    def take(self, wanted: int) -> int:
        if self._left is None:
            return wanted
        with self._guard:
            given = min(wanted, self._left)
            self._left -= given
            self._asked += given
            return given

    def settle(self, asked: int, got: int) -> None:
        """Of ``asked`` that were allowed, ``got`` were used."""
        if self._left is not None:
            with self._guard:
                self._asked -= asked
                self._left += asked - got

    @property
    def is_spent(self) -> bool:
        with self._guard:
            return self._left == 0 and self._asked == 0


@dataclass(frozen=True, slots=True)
class Kit:
    queues: Queues
    name: str
    lease_seconds: float | None
    gate: Gate
    holdings: Holdings
    settler: Settler
    tally: Tally
    poison: Poison
    budget: Budget
    until_empty: bool
    fail: Fail
