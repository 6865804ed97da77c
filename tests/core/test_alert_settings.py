"""The setting ``alerts``, read to its last member."""

import json
from typing import Any

import pytest

from yirangmq.config.config import load
from yirangmq.core.alert_settings import AlertSettings, CommandTarget, EmailTarget, read_settings
from yirangmq.core.alerts import Level
from yirangmq.core.errors import BadInput

MAIL = {"kind": "email", "host": "mail.example.org", "from": "mq@example.org", "to": ["ops@example.org"]}


def test_alert_settings_omitted_are_the_defaults() -> None:
    found = read_settings({})
    assert found == AlertSettings()
    assert found.is_on
    assert found.log is Level.INFO
    assert load({}, {}, {}).alerts == found


def test_alert_settings_can_all_be_set_by_document_and_by_variable() -> None:
    document = {
        "enabled": True,
        "everySec": 1,
        "windowSec": 60,
        "settleSec": 30,
        "remindSec": 0,
        "mostPerHour": 5,
        "giveUpSec": 600,
        "log": "off",
        "rules": {
            "queue_age": {"limit": 900, "level": "CRITICAL", "queues": {"orders": 60}},
            "takeover": False,
            "peer_silent": {"enabled": True, "level": "WARNING"},
        },
        "sinks": [
            MAIL | {"level": "CRITICAL", "rules": ["peer_silent"], "user": "mq", "secret": "smtp", "tls": "tls"},
            {"kind": "webhook", "name": "chat", "url": "https://example.org/hook", "headers": {"X-A": "b"}},
            {"kind": "command", "run": ["/usr/bin/beep", "--loud"], "timeoutSec": 3},
        ],
    }
    found = load({"alerts": document}, {}, {}).alerts
    assert (found.pace.settle, found.pace.remind, found.pace.most) == (30_000, 0, 5)
    assert found.log is None
    assert not found.rules["takeover"].is_on
    assert found.rules["queue_age"].queues == (("orders", 60.0),)
    mail, chat, beep = found.sinks
    assert isinstance(mail.to, EmailTarget)
    assert (mail.to.port, mail.to.tls, mail.name) == (465, "tls", "email")
    assert mail.notice_filter.accepts(Level.CRITICAL, "peer_silent")
    assert not mail.notice_filter.accepts(Level.CRITICAL, "disk_low")
    assert not mail.notice_filter.accepts(Level.WARNING, "peer_silent")
    assert (chat.name, chat.timeout) == ("chat", 10)
    assert beep.to == CommandTarget(words=("/usr/bin/beep", "--loud"))
    assert load({}, {"YIRANGMQ_ALERTS": json.dumps(document)}, {}).alerts == found


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"setleSec": 5}, "setleSec"),
        ({"settleSec": -1}, "settleSec"),
        ({"mostPerHour": 0}, "mostPerHour"),
        ({"log": "DEBUG"}, "log"),
        ({"rules": {"queue_ages": {}}}, "rules.queue_ages"),
        ({"rules": {"queue_age": 5}}, "rules.queue_age"),
        ({"rules": {"queue_age": {"limits": 5}}}, "rules.queue_age.limits"),
        ({"rules": {"queue_age": {"level": "LOUD"}}}, "rules.queue_age.level"),
        ({"rules": {"queue_age": {"queues": {"a": "b"}}}}, "rules.queue_age.queues.a"),
        ({"rules": {"disk_low": {"queues": {"a": 1}}}}, "rules.disk_low.queues"),
        ({"rules": {"peer_silent": {"limit": 1}}}, "rules.peer_silent.limit"),
        ({"sinks": {}}, "sinks"),
        ({"sinks": [{"kind": "pager"}]}, r"sinks\[0\].kind"),
        ({"sinks": [MAIL, MAIL]}, "sinks"),
        ({"sinks": [MAIL | {"name": "log"}]}, "sinks"),
        ({"sinks": [MAIL | {"to": []}]}, r"sinks\[0\].to"),
        ({"sinks": [MAIL | {"to": ["ops@x\r\nBcc: y@z"]}]}, r"sinks\[0\].to"),
        ({"sinks": [MAIL | {"from": "nobody"}]}, r"sinks\[0\].from"),
        ({"sinks": [MAIL | {"user": "mq"}]}, r"sinks\[0\].secret"),
        ({"sinks": [MAIL | {"user": "mq", "secret": "s", "tls": "off"}]}, r"sinks\[0\].tls"),
        ({"sinks": [MAIL | {"password": "x"}]}, r"sinks\[0\].password"),
        ({"sinks": [MAIL | {"rules": ["nothing"]}]}, r"sinks\[0\].rules"),
        ({"sinks": [{"kind": "command", "run": "rm -rf"}]}, r"sinks\[0\].run"),
        ({"sinks": [{"kind": "command", "run": []}]}, r"sinks\[0\].run"),
        ({"sinks": [{"kind": "webhook"}]}, "url"),
        ({"sinks": [{"kind": "webhook", "url": "ftp://x"}]}, "url"),
        ({"sinks": [{"kind": "webhook", "url": "http://x/", "shell": 1}]}, r"sinks\[0\].shell"),
        ([], "alerts"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_alert_settings_that_are_invalid_are_refused_with_their_field(document: Any, field: str) -> None:
    with pytest.raises(BadInput, match=field) as found:
        load({"alerts": document}, {}, {})
    assert found.value.field == "alerts"
