"""Log events: every log call of the package is a row of the table, and the page is printed from the table."""

import re

from tests.support.log_calls import log_calls
from tools import log_events_docs
from yirangmq.core.alert_rules import RULES
from yirangmq.observe.log_events import LOG_EVENTS

IDENTIFIER = re.compile(r"[a-z]+(_[a-z]+)+")


def test_log_events_are_snake_case_identifiers_that_are_used_once_in_the_table() -> None:
    names = [row.name for row in LOG_EVENTS]
    assert [name for name in names if not IDENTIFIER.fullmatch(name)] == []
    assert len(set(names)) == len(names)


def test_log_events_have_a_level_a_meaning_and_an_action() -> None:
    for row in LOG_EVENTS:
        assert row.levels, row.name
        assert row.meaning, row.name
        assert row.action, row.name
        assert len(set(row.fields)) == len(row.fields), row.name
        assert {"at", "level", "event", "logger"}.isdisjoint(row.fields), row.name


def test_log_calls_have_events_of_the_table_with_its_levels_and_fields() -> None:
    calls: dict[str, tuple[set[str], set[str]]] = {}
    for call in log_calls():
        for event in call.events:
            levels, fields = calls.setdefault(event, (set(), set()))
            levels |= call.levels
            fields |= call.fields
    assert calls == {row.name: (set(row.levels), set(row.fields)) for row in LOG_EVENTS}


def test_log_events_page_is_current() -> None:
    assert log_events_docs.PAGE.read_text() == log_events_docs.page(), "run: python tools/log_events_docs.py"


def test_alert_rules_are_snake_case_identifiers() -> None:
    assert [name for name in RULES if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name)] == []
