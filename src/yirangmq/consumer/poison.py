"""The consumer's own eye for poison: the same fault again and again in the same message, as seen by this process.
A queue's policy does the like for all consumers together (``retry.poisonAfter``), but knows reasons, not faults."""

import threading
from collections import OrderedDict

from yirangmq.consumer.outcomes import Outcome
from yirangmq.core.message import MAX_MESSAGE, Reason

MOST = 10_000
"""Messages remembered; those that failed longest ago are forgotten first."""


class Poison:
    """``after`` same faults in a row a message is poison; 0: never."""

    def __init__(self, after: int = 0) -> None:
        self._after = after
        self._guard = threading.Lock()
        self._faults: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()

    def judge(self, queue: str, id: str, outcome: Outcome) -> Outcome:
        """The outcome, or the dead letters if it was the last straw."""
        if not self._after:
            return outcome
        with self._guard:
            fault, times = self._faults.pop((queue, id), ("", 0))
            if not outcome.kind:
                return outcome
            times = times + 1 if fault == outcome.kind else 1
            if times < self._after:
                self._faults[queue, id] = (outcome.kind, times)
                if len(self._faults) > MOST:
                    self._faults.popitem(last=False)
                return outcome
        text = f"{times} times {outcome.kind}, the last time: {outcome.text}"
        return Outcome(Reason.POISON, text[:MAX_MESSAGE], kind=outcome.kind)
