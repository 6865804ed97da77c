"""Alerts and the pair in a real browser."""

import json
from pathlib import Path

import pytest

from tests.support.chromium import Browser
from tests.support.dashboard import check_layout, looking
from tests.support.pair import pair
from tests.support.server_process import daemon

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
QUIET = {"disk_low": False, "slow_commits": False, "clock_jump": False}


def test_alert_is_shown_acknowledged_and_over_and_a_test_notice_is_sent(browser: Browser, tmp_path: Path) -> None:
    rules = QUIET | {"queue_depth": {"limit": 1}}
    alerts = json.dumps({"everySec": 0.1, "settleSec": 0.2, "rules": rules})
    with daemon(tmp_path, "--http", "127.0.0.1:0", "--alerts", alerts) as server:
        page = next(shown := looking(browser, server.address_of("http")))
        page.open("/alerts").live()
        page.find(".empty", "No open alerts")
        page.api.publish("orders", 1, 2)
        row = "table.alerts tbody tr"
        page.find(row, "2 messages wait in orders, more than 1")
        page.find(f"{row} .badge", "WARNING")
        page.find("#nav a .badge", "1")
        page.click("button[data-ack]")
        page.find("dialog input[name=by]").type("ann <b>")
        page.find("dialog input[name=note]").type("on it")
        page.click("dialog button.primary")
        page.toast("Acknowledged")
        page.find(row, "ann <b>: on it")
        page.gone("button[data-ack]")
        page.api(
            "POST", "queues/orders/ack", {"leases": [one["lease"]["leaseId"] for one in page.api.lease("orders", 2)]}
        )
        page.find(".empty", "No open alerts")
        page.find(row, "2 messages wait in orders")
        page.find("table.rules th", "queue_depth")
        page.find("table.rules code", "disk_low_bytes")
        limits = page.browser.texts("table.rules td[data-label=limit]")
        assert {"1 message", "1 client in the window", "0.5 seconds", "2 seconds"} <= set(limits)
        check_layout(page)
        page.click("button", "Send a test notice")
        page.toast("log accepted the notice")
        assert next(shown, None) is None


def test_pair_page_shows_both_nodes_and_the_steps_of_a_takeover(browser: Browser, tmp_path: Path) -> None:
    with pair(tmp_path) as two:
        two.begin()
        page = next(shown := looking(browser, f"http://127.0.0.1:{two.http['b']}"))
        page.open().live()
        page.click("#nav a", "Pair")
        page.find(".node-card", "This node")
        page.find(".node-card .badge", "ACTIVE")
        page.find(".facts", "link delay")
        check_layout(page)
        two.nodes["a"].kill()
        page.find("h1 .badge", "active, term")
        page.find(".node-card", "ago, silent")
        page.find(".decisions .badge", "took over")
        page.find(".decisions .steps", "3 connection")
        page.browser.size(1280, 800)  # on a phone the rows are cards without heads
        page.browser.until("return innerWidth === arguments[0]", 1280)
        lefts = """return ["thead th", "tbody tr:first-child > *"].map((cells) =>
            [...document.querySelectorAll(`.decisions ${cells}`)].map((cell) => {
                const { left, right } = cell.getBoundingClientRect();
                return [Math.round(left), Math.round(right)];
            }))"""
        heads, cells = page.browser.script(lefts)
        assert heads == cells, "each head stands above its column"
        assert len(heads) == 4
        assert next(shown, None) is None
