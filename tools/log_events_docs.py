"""Prints docs/log-events.md from ``yirangmq.observe.log_events`` and ``yirangmq.core.alert_rules``; ``python
tools/log_events_docs.py`` writes it, a test checks that it is current."""

from pathlib import Path

from yirangmq.core.alert_rules import RULES
from yirangmq.observe.log_events import LOG_EVENTS, LogEvent

PAGE = Path(__file__).parents[1] / "docs" / "log-events.md"
INTRO = """# Log events

Every log line of a server, a cluster node or a consumer has one of these events. Events, levels and fields are an
interface: a change is listed in the [changelog](project/changelog.md).

*This page is printed from the program by `python tools/log_events_docs.py`.*

```json
{"at": "2026-01-13T09:21:00.000Z", "level": "warning", "event": "subscriber_lag_exceeded", "lag": 1001}
```

On a terminal, or with `log_format` `text`, the same line is the event and then its fields:

```
2026-01-13T09:21:00.000Z warning subscriber_lag_exceeded  lag=1001
```

`error` is the text of an error, or a traceback where the server did not expect the error. `traceId` is absent if a
message has none. A program of yours with a consumer has the event as the message of the log record and the fields as
the record's attribute `values`. Lines of a library have its
name as `logger`, and a text of their own as `event`.

## Events

| event | level | fields | meaning | what to do |
|---|---|---|---|---|
"""
ALERTS = """
## Alerts

The `rule` of an `alert_notified` line, of a [notice](alerts.md#notices-and-sinks) and of `yirangmq alert list`. The
names are stable identifiers too.

| rule | levels | the alert is open while |
|---|---|---|
"""


def page() -> str:
    events = [
        f"| `{row.name}` | {', '.join(row.levels)} | {_fields(row)} | {row.meaning} | {row.action} |\n"
        for row in sorted(LOG_EVENTS)
    ]
    rules = [f"| `{name}` | {rule.levels} | {rule.about} |\n" for name, rule in RULES.items()]
    return INTRO + "".join(events) + ALERTS + "".join(rules)


def _fields(row: LogEvent) -> str:
    return ", ".join(f"`{name}`" for name in row.fields)


if __name__ == "__main__":
    PAGE.write_text(page())
