"""The definition of health: levels, reason codes, the status that follows, and the table in the documents."""

import re
from pathlib import Path

import pytest

from tools import health_docs
from yirangmq.core.health import DEGRADED, FAIL, LEVELS, OK, REASONS, HealthReason, health_reason, status_of


def test_health_status_is_the_worst_level_of_the_reasons() -> None:
    degraded, fail = HealthReason(DEGRADED, "lag", ""), HealthReason(FAIL, "disk", "")
    assert [status_of(given) for given in ([], [degraded], [degraded, fail], [fail, degraded])] == [
        OK,
        DEGRADED,
        FAIL,
        FAIL,
    ]


def test_health_reason_has_its_first_level_unless_another_of_its_levels_is_given() -> None:
    assert health_reason("disk_low", "1 MiB left").level == FAIL
    assert health_reason("disk_low", "1 MiB left", DEGRADED).level == DEGRADED
    with pytest.raises(ValueError, match="lag is never fail"):
        health_reason("lag", "", FAIL)
    with pytest.raises(KeyError):
        health_reason("unheard_of", "")


def test_health_reasons_have_levels_a_meaning_and_an_action() -> None:
    for code, row in REASONS.items():
        assert row.levels, code
        assert set(row.levels) <= set(LEVELS[1:]), code
        assert row.meaning, code
        assert row.action, code


def test_health_reasons_each_have_a_test_that_brings_them_about() -> None:
    """Its name begins with ``test_health_`` and the code; it may stand anywhere."""
    named = re.findall(
        r"def test_health_(\w+)\(", "".join(file.read_text() for file in Path(__file__).parents[1].rglob("test_*.py"))
    )
    assert [code for code in REASONS if not any(name.startswith(f"{code}_") for name in named)] == []


def test_health_table_of_the_documents_is_current() -> None:
    page = health_docs.PAGE.read_text()
    assert page == health_docs.printed(page), "run: python tools/health_docs.py"
