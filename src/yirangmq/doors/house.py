"""What all doors of a server share. Knows: the parts they ask. Does not know: any protocol."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from yirangmq.admin.health import Disk
from yirangmq.admin.registry import Calls
from yirangmq.broker.group_commit import Desk
from yirangmq.core.ports import Clock, Ids
from yirangmq.doors.attempts import Attempts
from yirangmq.doors.gate import Gate
from yirangmq.doors.refusing import Refusals
from yirangmq.observe.events import Feed

if TYPE_CHECKING:
    from yirangmq.broker.sink_batches import Batches
    from yirangmq.topics.publisher import Publisher


class Introduction(NamedTuple):
    """Who this server is: what a client of our own protocol is welcomed with."""

    server: str
    node: str
    durability: str
    max_frame: int
    role: str = ""
    term: int = 0


@dataclass(frozen=True, slots=True)
class House:
    """What every session of a door shares."""

    desk: Desk
    clock: Clock
    ids: Ids
    methods: Calls
    welcome: Introduction
    token: str = ""
    disk: Disk | None = None
    consumers: set[str] = field(default_factory=set)
    """The names under which anything was leased through this door."""
    topics: "Publisher | None" = None
    feed: Feed | None = None
    """The latest events, where the server keeps them."""
    batches: "Callable[[], Batches] | None" = None
    greet: Callable[[Introduction], Introduction] | None = None
    """What a welcome says of this node's place in a pair."""
    gate: Gate = field(default_factory=Gate)
    """Programs that may come, where only these may."""
    attempts: Attempts | None = None
    """The limiter of wrong tokens, for the doors that have grants of their own."""
    refusing: Refusals | None = None
    """Who was refused, with names and addresses, where somebody keeps that."""

    def check_room(self) -> None:
        """Raises what a publisher is told while the disk is low, the store as large as it may be, or the work is being
        handed over to another node."""
        if not self.desk.duty.takes_in:
            raise self.desk.duty.refusal()
        full = None if self.disk is None else self.disk.refusal()
        if full is not None:
            raise full.with_traceback(None)  # else each refusal would be kept in it
