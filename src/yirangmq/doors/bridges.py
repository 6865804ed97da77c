"""Named methods of bridges, and what a server says of them in ``status``, ``health`` and its metrics."""

from typing import TYPE_CHECKING, Any

from yirangmq.broker.bridges import Bridges
from yirangmq.broker.group_commit import Desk
from yirangmq.core.bridges import BridgeState, check_bridge, read_new, read_start
from yirangmq.core.errors import BadInput
from yirangmq.core.health import HealthReason, health_reason
from yirangmq.core.topics import Start
from yirangmq.doors.calls import Calls
from yirangmq.doors.paged import Done, Given
from yirangmq.doors.values import Values, reading

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import Reading


class BridgeCalls:
    """``bridges`` is None where the server has no topics. ``lag_limit``: as ``topic_lag_limit``."""

    def __init__(self, bridges: Bridges | None, lag_limit: int = 0) -> None:
        self._bridges = bridges
        self._lag_limit = lag_limit

    def begin(self, calls: Calls) -> None:
        """From here on it can be asked."""
        for name, entry in {
            "bridges": self._list,
            "bridge_show": self._show,
            "bridge_add": self._add,
            "bridge_remove": self._remove,
            "bridge_pause": self._pause,
            "bridge_resume": self._resume,
        }.items():
            calls.add_entry(name, entry)

    def _there(self) -> Bridges:
        if self._bridges is None:
            raise BadInput("this server has no topics", field="method")
        return self._bridges

    def _list(self, desk: Desk, given: Given, done: Done) -> None:
        reading(given, lambda values: None)
        done(self._there().rows(), None)

    def _show(self, desk: Desk, given: Given, done: Done) -> None:
        done(self._there().one(reading(given, _name)), None)

    def _add(self, desk: Desk, given: Given, done: Done) -> None:
        """``name``, ``queue``, ``topics``, ``groups``; ``start`` and ``at`` as a subscriber has them."""
        self._there().add(read_new(given), done)

    def _remove(self, desk: Desk, given: Given, done: Done) -> None:
        self._there().remove(reading(given, _name), done)

    def _pause(self, desk: Desk, given: Given, done: Done) -> None:
        self._there().pause(reading(given, _name), done)

    def _resume(self, desk: Desk, given: Given, done: Done) -> None:
        name, start, at = reading(given, _read_resume)
        self._there().resume(name, start, at, done)

    # -- for status, health and metrics ---------------------------------------------------------------------------

    def facts(self) -> list[dict[str, Any]] | None:
        if self._bridges is None:
            return None
        return [{name: row[name] for name in ("name", "queue", "state", "lag")} for row in self._bridges.rows()]

    def reasons(self) -> list[HealthReason]:
        """What keeps the server from being well."""
        found = []
        for one in self._bridges.all() if self._bridges is not None else ():
            name = one.bridge.name
            if one.state in (BridgeState.STOPPED, BridgeState.WAITING):
                found.append(health_reason("bridge", f"bridge {name} is {one.state}: {one.reason}"))
            elif self._lag_limit and one.state is BridgeState.RUNNING and one.lag > self._lag_limit:
                found.append(health_reason("lag", f"bridge {name} is {one.lag} records behind"))
        return found

    def samples(self) -> "dict[str, Reading]":
        if self._bridges is None:
            return {}
        found = [({"bridge": one.bridge.name}, one) for one in self._bridges.all()]
        return {
            "yirangmq_bridge_lag": [(labels, one.lag) for labels, one in found],
            "yirangmq_bridge_records_total": [(labels, one.delivered) for labels, one in found],
            "yirangmq_bridge_running": [(labels, float(one.state is BridgeState.RUNNING)) for labels, one in found],
        }


def _name(values: Values) -> str:
    return check_bridge(values.take("name", None))


def _read_resume(values: Values) -> tuple[str, Start | None, int]:
    name = _name(values)
    if values.is_null("start"):
        values.take("at", 0)
        return name, None, 0
    return name, *read_start(values)
