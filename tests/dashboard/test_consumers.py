"""Consumers: seen, paused, resumed, drained."""

import pytest

from tests.support.dashboard import Page

pytestmark = pytest.mark.process


def beat(page: Page, id: str, state: str, **more: object) -> str | None:
    """A consumer tells of itself; what is wished of it."""
    card = {"host": "desk", "pid": 7, "queues": ["mail"], "state": state, "startedAt": 1_700_000_000_000, **more}
    wish: str | None = page.api("PUT", f"consumers/{id}", card)["wish"]
    return wish


def test_consumer_is_paused_resumed_and_drained(page: Page, queue: str) -> None:
    id = f"{queue}-1"
    beat(page, id, "running", inWork=2, done=1234, failed=5)
    page.open("/consumers").live()
    row = "tr:has(th b):has(button)"
    page.find(row, f"{id}desk, process 7")
    page.find(row, "1,234")
    for wish, state, said in (
        ("pause", "paused", "paused"),
        ("resume", "running", "running"),
        ("drain", "draining", "draining"),
    ):
        page.click(f"{row} button:not(:disabled)", wish.capitalize())
        page.find(f"{row} .badge", f"asked to {wish}")
        assert beat(page, id, state) in (wish, None)
        assert beat(page, id, state) is None
        page.gone(f"{row} .badge", "asked to")
        page.find(f"{row} .badge", said)
    beat(page, id, "stopped")
    page.gone(row, id)


def test_connections_are_listed_with_protocol_and_address(page: Page) -> None:
    page.open("/consumers").live()
    page.find(".connections td", "http")
    page.find(".connections td", "127.0.0.1")


def test_consumers_of_each_queue_are_counted_and_their_absence_is_a_warning(page: Page, queue: str) -> None:
    page.api.publish(queue, *range(1100))  # more than a queue of any other test, so that the warning names it
    page.open().live()
    row = f"tr:has(a.queue-name[href$='/{queue}'])"
    page.find(f"{row} .badge", "no consumer")
    page.find(".health", queue)
    assert page.find(f"{row} td[data-label=consumers]").text == "0"
    beat(page, f"{queue}-1", "running", queues=[queue])
    page.gone(f"{row} .badge")
    page.browser.until(
        "return document.querySelector(arguments[0]).textContent === '1'", f"{row} td[data-label=consumers]"
    )
    page.gone(".health a", queue)

    page.go(f"/queues/{queue}")
    page.find(".consumers-line", f"1 consumer: {queue}-1")
    beat(page, f"{queue}-1", "stopped", queues=[queue])
    page.find(".consumers-line.health", "Messages are ready, and no consumer leases them.")
    page.find("h1 .badge", "no consumer")
    page.api("POST", f"queues/{queue}/pause")
    page.gone("h1 .badge", "no consumer")
    page.find(".consumers-line", "No consumer reports or waits.")
