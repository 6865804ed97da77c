"""One who follows the feed: a filter, a line, and a cursor into the log; never a copy of what waits for it.

Knows: its state and how far it is. Does not know: the log, workers, other subscribers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from yirangmq.core.errors import WrongState
from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import ClientState, ClientVerb, client_after
from yirangmq.topics.lines import Dialect, Line

if TYPE_CHECKING:
    from yirangmq.topics.run import Run

Moved = Callable[["Subscriber", ClientState, ClientState], None]


@dataclass(eq=False, slots=True)
class Subscriber:
    """``number`` is never used again, whatever becomes of the socket."""

    number: int
    line: Line
    dialect: Dialect
    moved: Moved
    name: str = ""
    filter: Filter = field(default_factory=Filter)
    state: ClientState = ClientState.CONNECTED
    cursor: int = 0
    """Everything wanted up to here is on its way, or further."""
    sent: int = 0
    """Records since it subscribed, or since the latest recovery began."""
    total: int = 0
    """Records since it connected."""
    confirmed: int = 0
    recoveries: int = 0
    run: "Run | None" = None
    told_at: float = 0.0
    """When it was last told how far the feed is."""
    progress_seconds: float = 1.0
    """How often it wants to be told; 0: never."""
    is_lending: bool = False
    """Its line goes to a worker as soon as everything sent is out; ``waits_since``: since when."""
    waits_since: float = 0.0

    def move(self, verb: ClientVerb) -> ClientState:
        after = client_after(self.state, verb)
        if after is None:
            raise WrongState(f"{verb} does not apply to a subscriber that is {self.state}")
        before, self.state = self.state, after
        if after is not before:
            self.moved(self, before, after)
        return after

    @property
    def is_following(self) -> bool:
        return self.state not in (ClientState.CONNECTED, ClientState.OFFLINE)

    @property
    def reached(self) -> int:
        """Everything wanted up to here is on its way."""
        return self.cursor if self.run is None else self.run.cursor

    def count(self, records: int) -> None:
        self.sent += records
        self.total += records
