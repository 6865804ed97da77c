"""Named methods of alerts, and what a server says of them in ``status`` and its metrics."""

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from yirangmq.admin.registry import Calls, Done, Given, Values, reading
from yirangmq.broker.group_commit import Desk
from yirangmq.core import alerts
from yirangmq.core.alert_rules import RULES, RuleSetting
from yirangmq.core.alert_settings import LOG
from yirangmq.core.alerts import Level
from yirangmq.core.errors import NotFound
from yirangmq.core.validation import check_id
from yirangmq.doors.alerts.outbox import Outbox
from yirangmq.doors.alerts.watch import AlertWatch

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import Reading

STATES = ("open", "over", "all")
LONGEST_NAME, LONGEST_NOTE = 100, 500


class AlertCalls:
    def __init__(self, watch: AlertWatch) -> None:
        self._watch = watch
        self._tests: set[asyncio.Task[None]] = set()

    def begin(self, calls: Calls) -> None:
        """From here on it can be asked."""
        calls.add_entry("alerts", self._list)
        calls.add_entry("alert_show", self._show)
        calls.add_entry("alert_ack", self._ack)
        calls.add_entry("alert_test", self._test)
        calls.add_entry("alert_rules", self._rules)

    def _list(self, desk: Desk, given: Given, done: Done) -> None:
        """The worst first, then the latest."""
        state = reading(given, lambda values: values.choice("state", "open", STATES))
        standing = self._watch.standing
        found = [*(standing.open.values() if state != "over" else ()), *(standing.closed if state != "open" else ())]
        found.sort(key=lambda one: (one.closed_at is not None, -one.level.rank, -one.opened_at))
        done(
            {
                "enabled": self._watch.settings.is_on,
                "alerts": [self._watch.shown(one) for one in found],
                "counts": dict(standing.counts),
                "sinks": self._sinks(),
            },
            None,
        )

    def _sinks(self) -> list[dict[str, Any]]:
        level = self._watch.settings.log
        rows = [] if level is None else [_log_row(level, self._watch.logged)]
        return rows + [outbox.describe() for outbox in self._watch.outboxes.values()]

    def _show(self, desk: Desk, given: Given, done: Done) -> None:
        id = reading(given, _id)
        done(self._watch.shown(alerts.find(self._watch.standing, id)), None)

    def _ack(self, desk: Desk, given: Given, done: Done) -> None:
        id, by, note = reading(
            given, lambda values: (_id(values), _line(values, "by", LONGEST_NAME), _line(values, "note", LONGEST_NOTE))
        )
        self._watch.acknowledge(id, by, note, done)

    def _test(self, desk: Desk, given: Given, done: Done) -> None:
        """To each sink, or to one; what became of it. Levels and rules of sinks are passed over."""
        level, name = reading(
            given, lambda values: (values.choice("level", Level.INFO, tuple(Level)), values.text("sink", "", 100))
        )
        watch = self._watch
        if name and name != LOG and name not in watch.outboxes:
            raise NotFound(f"there is no sink {name!r}; known: {', '.join([LOG, *watch.outboxes])}", field="sink")
        document = watch.test_document(Level(level))
        chosen = [outbox for outbox in watch.outboxes.values() if name in ("", outbox.sink.name)]

        async def test() -> None:
            outcomes = await asyncio.gather(*(outbox.attempt(document) for outbox in chosen))
            rows = [_tested(LOG, "", 0.0)] if watch.settings.log is not None and name in ("", LOG) else []
            rows += [_tested(box.sink.name, *outcome) for box, outcome in zip(chosen, outcomes, strict=True)]
            done({"sinks": rows}, None)

        task = asyncio.get_running_loop().create_task(test())
        self._tests.add(task)
        task.add_done_callback(self._tests.discard)

    def _rules(self, desk: Desk, given: Given, done: Done) -> None:
        reading(given, lambda values: None)
        settings, plain = self._watch.settings, RuleSetting()
        rows = []
        for name, rule in RULES.items():
            chosen = settings.rules.get(name, plain)
            rows.append(
                {
                    "rule": name,
                    "enabled": settings.is_on and chosen.is_on,
                    "level": chosen.level.value if chosen.level is not None else rule.levels,
                    "limit": rule.limit if chosen.limit is None else chosen.limit,
                    "unit": rule.unit or None,
                    "queues": dict(chosen.queues),
                    "about": rule.about,
                }
            )
        done(rows, None)

    # -- for status and metrics -----------------------------------------------------------------------------------

    def facts(self) -> dict[str, int]:
        found = self._watch.standing.open.values()
        return {
            "open": len(found),
            "critical": sum(one.level is Level.CRITICAL for one in found),
            "unacknowledged": sum(one.acked_at is None for one in found),
        }

    def samples(self) -> "dict[str, Reading]":
        opened = Counter(one.level for one in self._watch.standing.open.values())
        boxes = self._watch.outboxes.values()
        return {
            "yirangmq_alerts_open": [({"level": level.value}, opened[level]) for level in Level],
            "yirangmq_alerts_total": [({"event": name}, n) for name, n in self._watch.standing.counts.items()],
            "yirangmq_alert_notices_total": [
                ({"sink": box.sink.name, "outcome": name}, count) for box in boxes for name, count in _tally(box)
            ],
            "yirangmq_alert_notices_pending": [({"sink": box.sink.name}, len(box.pending)) for box in boxes],
        }


def _tally(box: Outbox) -> tuple[tuple[str, int], ...]:
    return ("sent", box.sent), ("failed", box.failed), ("lost", box.lost)


def _log_row(level: Level, logged: int) -> dict[str, Any]:
    quiet = {"pending": 0, "sent": logged, "failed": 0, "lost": 0, "lastError": None, "lastAt": None}
    return {"sink": LOG, "kind": LOG, "level": level.value, "rules": [], **quiet}


def _tested(name: str, trouble: str, seconds: float) -> dict[str, Any]:
    return {"sink": name, "ok": not trouble, "seconds": round(seconds, 3), "error": trouble or None}


def _id(values: Values) -> str:
    return check_id(values.take("id", None), "id")


def _line(values: Values, name: str, most: int) -> str:
    """A text of one line."""
    return " ".join(values.text(name, "", most).split())
