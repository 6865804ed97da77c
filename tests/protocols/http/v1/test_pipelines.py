"""Pipelines tell of themselves, and are lost when they fall silent."""

from tests.support.http_api import Web
from yirangmq.protocols.http.v1.pipelines import LOST_AFTER_MS, MAX_REPORTS, REPORT_TTL_MS

CARD = {"state": "running", "source": "topic:orders", "target": "queue:work", "rows": 5, "position": 9, "lag": 3}


def shown(web: Web) -> list[tuple[str, str]]:
    return [(one["pipeline"], one["state"]) for one in web.good("GET", "/v1/pipelines")["pipelines"]]


def test_pipeline_report_is_lost_after_silence_and_forgotten_later(web: Web) -> None:
    assert web.good("GET", "/v1/pipelines") == {"pipelines": []}
    told = web.good("PUT", "/v1/pipelines/orders", CARD)
    [card] = web.good("GET", "/v1/pipelines")["pipelines"]
    assert card == told
    assert (card["rows"], card["lag"], card["error"], card["kind"]) == (5, 3, None, "process")
    web.good("PUT", "/v1/pipelines/old", CARD | {"state": "failed", "error": "no room"})
    web.server.clock.advance(LOST_AFTER_MS + 1)
    assert shown(web) == [("old", "failed"), ("orders", "lost")]
    web.good("PUT", "/v1/pipelines/orders", CARD)
    web.server.clock.advance(REPORT_TTL_MS - LOST_AFTER_MS - 1)
    assert shown(web) == [("orders", "lost")]


def test_pipeline_report_with_an_invalid_field_is_rejected_by_name(web: Web) -> None:
    assert web.refused("PUT", "/v1/pipelines/a", {}) == (400, "bad_input", "state")
    assert web.refused("PUT", "/v1/pipelines/a", CARD | {"state": "asleep"}) == (400, "bad_input", "state")
    assert web.refused("PUT", "/v1/pipelines/a", CARD | {"lag": -1}) == (400, "bad_input", "lag")
    assert web.refused("PUT", "/v1/pipelines/a", CARD | {"other": 1}) == (400, "bad_input", "other")
    assert web.refused("PUT", "/v1/pipelines/a%20b", CARD) == (400, "bad_input", "id")
    assert shown(web) == []


def test_pipeline_reports_are_bounded_and_the_oldest_is_dropped(web: Web) -> None:
    for number in range(MAX_REPORTS + 2):
        web.good("PUT", f"/v1/pipelines/p-{number}", CARD)
    names = [name for name, _ in shown(web)]
    assert len(names) == MAX_REPORTS
    assert "p-0" not in names
