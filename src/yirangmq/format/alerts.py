"""Alerts and notices as documents: what sinks, doors and the file of open alerts have in common (docs/alerts.md)."""

from collections.abc import Mapping
from typing import Any

from yirangmq.core.alerts import COUNTED, Alert, Level, Notice, Standing
from yirangmq.core.errors import StoreDamaged
from yirangmq.format.envelope import iso

VERSION = 1
_PLAIN = (
    "id", "rule", "subject", "text", "opened_at", "seen_at", "is_there", "returns", "told_at", "notices",
    "is_withheld", "acked_at", "acked_by", "note", "closed_at",
)  # fmt: skip


# -- for people and programs ------------------------------------------------------------------------------------------


def shown(alert: Alert, ahead: int = 0) -> dict[str, Any]:
    """``ahead``: by how much the wall clock is ahead of the one that the alert was made by."""

    def at(moment: int | None) -> str | None:
        return None if moment is None else iso(moment + ahead)

    return {
        "id": alert.id,
        "rule": alert.rule,
        "subject": alert.subject or None,
        "level": alert.level.value,
        "state": state_of(alert),
        "text": alert.text,
        "openedAt": at(alert.opened_at),
        "seenAt": at(alert.seen_at),
        "closedAt": at(alert.closed_at),
        "returns": alert.returns,
        "notices": alert.notices,
        "withheld": alert.is_withheld,
        "acknowledgedAt": at(alert.acked_at),
        "acknowledgedBy": alert.acked_by or None,
        "note": alert.note or None,
    }


def state_of(alert: Alert) -> str:
    """``open``; ``settling`` where the fault is gone and may come back; ``over``."""
    if alert.closed_at is not None:
        return "over"
    return "open" if alert.is_there else "settling"


def notice_document(told: Notice, node: str, ahead: int = 0) -> dict[str, Any]:
    """What every sink is given."""
    return {"notice": told.told.value, "at": iso(told.at + ahead), "node": node, "alert": shown(told.alert, ahead)}


# -- on disk ----------------------------------------------------------------------------------------------------------


def written(standing: Standing) -> dict[str, Any]:
    return {
        "version": VERSION,
        "last": standing.last,
        "told": list(standing.told),
        "counts": dict(standing.counts),
        "open": [_written(alert) for alert in standing.open.values()],
        "closed": [_written(alert) for alert in standing.closed],
    }


def _written(alert: Alert) -> dict[str, Any]:
    plain = {name: getattr(alert, name) for name in _PLAIN}
    return {**plain, "level": alert.level.value, "worst": alert.worst.value}


def read(given: Any) -> Standing:
    """``StoreDamaged`` if it is not what ``written`` makes."""
    try:
        if given["version"] != VERSION:
            raise StoreDamaged(f"alerts of version {given['version']}; this server knows {VERSION}")
        opened = [_read(one) for one in given["open"]]
        return Standing(
            {alert.key: alert for alert in opened},
            tuple(_read(one) for one in given["closed"]),
            tuple(int(moment) for moment in given["told"]),
            int(given["last"]),
            {name: int(given["counts"].get(name, 0)) for name in COUNTED},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreDamaged(f"the alerts cannot be read: {type(error).__name__} {error}") from None


def _read(given: Mapping[str, Any]) -> Alert:
    plain = {name: given[name] for name in _PLAIN}
    return Alert(**plain, level=Level(given["level"]), worst=Level(given["worst"]))
