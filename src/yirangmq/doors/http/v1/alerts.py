"""Alerts: what is wrong, who cares for it, who is told. ``/v1/alerts`` and ``/v1/alert-rules``."""

from yirangmq.alerts.monitor import LONGEST_NAME, LONGEST_NOTE, STATES
from yirangmq.core.alerts import Level
from yirangmq.core.errors import NotFound
from yirangmq.doors.http.v1.endpoint import Ask, Endpoint
from yirangmq.doors.http.v1.fields import MESSAGE_ID, Field, choice, text
from yirangmq.doors.http.v1.schemas import COUNT, FLAG, INSTANT, LEVEL, NUMBER, TEXT, items, ref, some, table, thing


def _with_alerts(ask: Ask) -> Ask:
    if not ask.house.methods.has("alerts"):
        raise NotFound("this server keeps no alerts")
    return ask


def list_alerts(ask: Ask) -> None:
    _with_alerts(ask).call("alerts", ask.values(), ask.reply)


def one_alert(ask: Ask) -> None:
    _with_alerts(ask).call("alert_show", ask.values(), ask.reply)


def acknowledge(ask: Ask) -> None:
    _with_alerts(ask).call("alert_ack", ask.values(), ask.reply)


def test(ask: Ask) -> None:
    _with_alerts(ask).call("alert_test", ask.values(), ask.reply)


def rules(ask: Ask) -> None:
    _with_alerts(ask).call("alert_rules", ask.values(), lambda rows: ask.reply({"rules": rows}))


ID = Field("id", MESSAGE_ID, "the id of the alert", needed=True)
ONE_ALERT = "/v1/alerts/{id}"
SINK = thing(
    sink=TEXT,
    kind=TEXT,
    level=LEVEL,
    rules=items(TEXT),
    pending=COUNT,
    sent=COUNT,
    failed=COUNT,
    lost=COUNT,
    lastError=some(TEXT),
    lastAt=some(INSTANT),
)
RULE = thing(rule=TEXT, enabled=FLAG, level=TEXT, limit=some(NUMBER), unit=some(TEXT), queues=table(NUMBER), about=TEXT)
TESTED = thing(sinks=items(thing(sink=TEXT, ok=FLAG, seconds=NUMBER, error=some(TEXT))))
GONE = ("not_found",)

ALERT_ENDPOINTS = (
    Endpoint("GET", "/v1/alerts", "What is wrong, the worst first, and how sinks take it", list_alerts, "alerts",
             "look", thing(enabled=FLAG, alerts=items(ref("Alert")), counts=table(COUNT), sinks=items(SINK)),
             query=(Field("state", choice(*STATES), "alerts that are open, over, or all", "open"),), refusals=GONE),
    Endpoint("POST", "/v1/alerts", "Send a test notice to every sink, or to one, and say what became of it", test,
             "alerts", "operate", TESTED, body=(
                 Field("level", choice(*Level), "that it has", Level.INFO.value),
                 Field("sink", text(100), "to this one only; empty: to all", ""),
             ), refusals=GONE),
    Endpoint("GET", ONE_ALERT, "One alert", one_alert, "alerts", "look", ref("Alert"), path_kinds=(ID,), refusals=GONE),
    Endpoint("POST", f"{ONE_ALERT}/ack", "Acknowledge an alert: no more reminders, unless it gets worse", acknowledge,
             "alerts", "operate", ref("Alert"), path_kinds=(ID,), body=(
                 Field("by", text(LONGEST_NAME), "who", ""), Field("note", text(LONGEST_NOTE), "what is done", ""),
             ), refusals=("not_found", "wrong_state", "store_error")),
    Endpoint("GET", "/v1/alert-rules", "What is watched, and its limits", rules, "alerts", "look",
             thing(rules=items(RULE)), refusals=GONE),
)  # fmt: skip
