"""Transactions of one client between BEGIN and COMMIT: sends and acks, gathered and not done yet.

Knows: bundles and records. Does not know: frames. One transaction is of queues or of topics: they are kept in two
places, and no commit spans both."""

from dataclasses import dataclass, field

from yirangmq.broker.operations import Bundle
from yirangmq.core.errors import BadInput, TooLarge
from yirangmq.core.message import Envelope
from yirangmq.core.topics import NewRecord
from yirangmq.core.transitions import Cause
from yirangmq.doors.stomp.consuming import Taken
from yirangmq.topics.ports import MOST_PER_PUBLISH

MOST_OPEN = 64


@dataclass(slots=True)
class Open:
    bundle: Bundle = field(default_factory=Bundle)
    records: list[NewRecord] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    size: int = 0


class Transactions:
    """``most_bytes``: of the payloads of all that are open."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._open: dict[str, Open] = {}

    def begin(self, name: str) -> None:
        if name in self._open:
            raise BadInput(f"{name[:60]!r} is begun already", field="transaction")
        if len(self._open) >= MOST_OPEN:
            raise BadInput(f"{MOST_OPEN} are open already; commit or abort one", field="transaction")
        self._open[name] = Open()

    def find(self, name: str) -> Open:
        if name not in self._open:
            raise BadInput(f"{name[:60]!r} was not begun", field="transaction")
        return self._open[name]

    def take(self, name: str) -> Open:
        """It is committed or aborted now."""
        found = self.find(name)
        del self._open[name]
        return found

    def forget(self) -> None:
        self._open.clear()

    def add(self, name: str, new: Envelope | NewRecord) -> None:
        found = self.find(name)
        found.size += len(new.payload)
        if sum(one.size for one in self._open.values()) > self._most:
            raise TooLarge(f"open transactions hold more than {self._most} bytes; commit earlier", field="transaction")
        if isinstance(new, Envelope):
            found.bundle.add(new)
        elif len(found.records) >= MOST_PER_PUBLISH:
            raise TooLarge(f"more than {MOST_PER_PUBLISH} records; commit earlier", field="transaction")
        else:
            found.records.append(new)
        _check(found)

    def settle(self, name: str, taken: Taken, cause: Cause | None) -> None:
        found = self.find(name)
        found.bundle.settle([*taken.leases.values()], cause)
        found.taken.append(taken)
        _check(found)


def _check(found: Open) -> None:
    if found.records and found.bundle.size:
        raise BadInput("is of queues or of topics, not of both", field="transaction")
