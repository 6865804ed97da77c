"""Components of a server, as one list; the order of its start and of its stop.

A component is a part of the server with hooks that the lifecycle calls (``server.lifecycle``). ``server.server`` builds
one list of them. Components are opened and started in the order of the list, and paused, drained and closed in the
reverse order. A hook that a component lacks does nothing, and an absent component is not in the list, so no module
tests which parts a server has.

    open     when the server starts, whatever its role
    start    when this node becomes active: work that only the active node does
    pause    when this node stops being active; ``start`` resumes the work
    tick     about once a second
    drain    when the server stops: begin nothing more, finish what is in progress (``busy``)
    abort    after the timeout of the drain
    close    at the end, also after an error; returns when nothing runs any more"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from yirangmq.core.health import HealthReason

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import MetricValue


class Busy(Protocol):
    """A part that knows whether work is in progress."""

    @property
    def is_idle(self) -> bool: ...


def no_op() -> None:
    """Hook of a component that has nothing to do then."""


@dataclass(frozen=True, slots=True)
class Component:
    """Component of a server: its hooks, and what it contributes to status, metrics and health."""

    name: str
    _: KW_ONLY
    open: Callable[[], Awaitable[None] | None] = no_op
    start: Callable[[], None] = no_op
    pause: Callable[[], None] = no_op
    tick: Callable[[], None] = no_op
    drain: Callable[[], None] = no_op
    busy: Busy | None = None
    abort: Callable[[], None] = no_op
    close: Callable[[], None] = no_op
    status: str = ""
    """Name of the member of ``status`` that holds the facts. "": the facts are members of ``status`` themselves."""
    facts: Callable[[], Any] = dict
    samples: "Callable[[], Mapping[str, MetricValue]]" = dict
    reasons: Callable[[], Iterable[HealthReason]] = list

    @property
    def is_idle(self) -> bool:
        return self.busy is None or self.busy.is_idle

    @property
    def is_work(self) -> bool:
        """True if it works only while this node is active."""
        return self.pause is not no_op


class Components:
    """The components of a server, in the order of its start. Loop thread only."""

    def __init__(self, components: Iterable[Component]) -> None:
        self._all = tuple(components)

    def __iter__(self) -> Iterator[Component]:
        return iter(self._all)

    async def open(self) -> None:
        for component in self._all:
            opening = component.open()
            if opening is not None:
                await opening

    def start(self) -> None:
        """Start the work of the active node."""
        for component in self._all:
            component.start()

    def pause(self) -> None:
        """Pause the work of the active node."""
        for component in reversed(self._all):
            component.pause()

    def tick(self) -> None:
        for component in self._all:
            component.tick()

    def drain(self) -> None:
        for component in reversed(self._all):
            component.drain()

    @property
    def is_idle(self) -> bool:
        """True if every request is answered and no work is in progress."""
        return all(component.is_idle for component in self._all)

    @property
    def is_work_idle(self) -> bool:
        """True if the work of the active node is finished."""
        return all(component.is_idle for component in self._all if component.is_work)

    def abort(self) -> bool:
        """Abort what is still in progress. Return False if nothing is that can be aborted."""
        late = [component for component in self._all if component.abort is not no_op and not component.is_idle]
        for component in late:
            component.abort()
        return bool(late)

    def close(self) -> None:
        """Close every component even if one fails: a lock that stays held would keep the next server out."""
        with ExitStack() as stack:  # the callbacks run in reverse order
            for component in self._all:
                stack.callback(component.close)

    # -- status, metrics and health ------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Return the members of ``status``."""
        found: dict[str, Any] = {}
        for component in self._all:
            facts = component.facts()
            found |= {component.status: facts} if component.status else facts
        return found

    def samples(self) -> "dict[str, MetricValue]":
        return {name: value for component in self._all for name, value in component.samples().items()}

    def reasons(self) -> list[HealthReason]:
        return [reason for component in self._all for reason in component.reasons()]
