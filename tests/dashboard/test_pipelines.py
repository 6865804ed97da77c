"""Pipelines: how far they are, and what failed."""

import pytest

from tests.support.dashboard import Page

pytestmark = pytest.mark.process
CARD = {"state": "running", "source": "topic:orders", "target": "queue:work", "rows": 1234, "position": 9, "lag": 56789}


def test_pipelines_page_shows_the_lag_and_the_last_error(page: Page, queue: str) -> None:
    name = f"{queue}-pipe"
    page.api("PUT", f"pipelines/{name}", CARD)
    page.open("/pipelines").live()
    row = "table.pipelines tbody tr"
    page.find(row, name)
    page.find(f"{row} td", "56,789")
    page.find(f"{row} .badge", "running")
    page.api("PUT", f"pipelines/{name}", CARD | {"state": "failed", "error": "no room on the <b>disk</b>"})
    page.find(f"{row} .badge", "failed")
    page.find(f"{row} .wrong", "no room on the <b>disk</b>")


def test_pipelines_page_breaks_no_source_of_usual_length_and_no_head(page: Page, queue: str) -> None:
    long = CARD | {"state": "failed", "source": "topic:prices.east", "target": "kafka:prices.x", "error": "word " * 40}
    page.api("PUT", f"pipelines/{queue[:20]}", long)
    page.browser.size(1280, 800)
    page.open("/pipelines").live()
    page.find("table.pipelines td", "topic:prices.east")
    heights = """const rows = [...document.querySelectorAll("table.pipelines tr")];
        const own = rows.find((row) => row.textContent.includes("topic:prices.east"));
        return [rows[0], ...own.querySelectorAll("[data-label=from], [data-label=to]")].map((place) => {
          const range = document.createRange();
          range.selectNodeContents(place);
          return range.getBoundingClientRect().height;
        })"""
    found = page.browser.script(heights)
    assert len(found) == 3
    assert max(found) < 40, "one line each"
