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
    page.find(row, "no room on the <b>disk</b>")
