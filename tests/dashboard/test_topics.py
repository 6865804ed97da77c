"""Topics: the log, its subscribers and bridges; a topic's records as they come, and one that is published by hand."""

import pytest

from tests.support.dashboard import EVIL, Page, safe

pytestmark = pytest.mark.process


def test_topics_page_lists_subscribers_and_bridges_with_their_lag(page: Page, queue: str) -> None:
    page.api("POST", f"topics/{queue}/records", [1, 2, 3])
    page.api("PUT", f"cursors/{queue}", {"sequence": 1, "epoch": page.api("GET", "log")["epoch"]})
    page.api("POST", "bridges", {"name": "bridge-1", "queue": f"{queue}-q", "topics": [queue], "start": "beginning"})
    page.open("/topics").live()
    page.find("h1 .badge.good", "online")
    page.find(".log-facts dd", page.api("GET", "log")["epoch"])
    page.find(".topics tr", queue)
    page.find(".subscribers tr", f"{queue}offline")
    page.find(".bridges tr", f"bridge-1running{queue}")
    page.api("POST", "bridges/bridge-1/pause")
    page.find(".bridges .badge.paused", "paused")
    page.api("POST", f"topics/{queue}/records", [4, 5])
    lag = page.api("GET", "bridges/bridge-1")["lag"]
    page.find('.bridges td[data-label="lag"]', str(lag))
    page.api("DELETE", "bridges/bridge-1")
    page.gone(".bridges tr", "bridge-1")
    page.click(".topics a", queue)
    page.find("h1", queue)


def test_topics_page_forgets_a_durable_subscriber_that_is_away(page: Page, queue: str) -> None:
    page.api("POST", f"topics/{queue}/records", [1, 2, 3])
    page.api("PUT", f"cursors/{queue}", {"sequence": 1, "epoch": page.api("GET", "log")["epoch"]})
    page.open("/topics").live()
    page.click(f'.subscribers button[aria-label="Forget {queue}"]')
    page.find("dialog p", "It has confirmed sequence 1; its lag is")
    page.click("dialog button.danger", "Forget")
    page.gone(".subscribers tr", queue)
    assert queue not in [one["name"] for one in page.api("GET", "subscribers")["subscribers"]]


def test_topic_tail_shows_records_as_they_are_published_and_can_be_paused(page: Page, queue: str) -> None:
    page.api("POST", f"topics/{queue}/records", [{"payload": {"n": 1}, "key": "ann", "headers": {"site": "north"}}])
    page.open(f"/topics/{queue}").live()
    page.find(".tail tr", '{"n": 1}')
    page.click(".tail summary")
    page.find(".tail details[open] dd", "north")
    page.api("POST", f"topics/{queue}/records", [{"payload": {"n": 2}}])
    page.find(".tail tbody tr:first-child", '{"n": 2}')
    page.click("button", "Pause list")
    page.api("POST", f"topics/{queue}/records", [3, 4])
    page.find(".tail-part .muted", "2 newer records not shown")
    page.click("button", "Resume list")
    page.find(".tail tbody tr:first-child code", "4")
    page.find("nav a[aria-current]", "Topics")
    page.api("POST", f"topics/{queue}/records", {"payload": 12345678901234567890, "headers": {"payload": "payload"}})
    page.find(".tail tbody tr:first-child code", "12345678901234567890")
    sequences = page.browser.texts(".tail tbody td[data-label='in topic']")
    assert sequences == ["5", "4", "3", "2", "1"]


def test_topic_record_is_published_from_the_keyboard(page: Page, queue: str) -> None:
    page.forgive("400")
    page.open(f"/topics/{queue}").live()
    page.find("p.muted", "This topic does not exist yet")
    page.gone(".record-form")
    page.click("button", "Publish a record…")
    page.browser.until("return document.activeElement.matches('.record-form textarea')")
    page.edit(".record-form textarea", "plain words, no JSON")
    page.find('[data-field="key"] input').type("ann")
    page.find('[data-field="headers"] input').type("[1]")
    page.browser.press("Enter")
    page.wrong("headers", "")
    page.find('[data-field="headers"] input').type('{"site": "north"}')
    page.find(".record-form textarea").click()
    page.browser.press("Enter", holding="Control")
    page.find(".published", "1 of the topic")
    page.find(".tail tr", "plain words, no JSON")
    [record] = page.api("GET", f"topics/{queue}/records")["records"]
    assert (record["key"], record["headers"]) == ("ann", {"site": "north"})


def test_topic_name_that_is_not_allowed_is_reported(page: Page) -> None:
    page.forgive("400")
    page.open("/topics/no%20name").live()
    page.find(".tail-part p", "is not allowed")


def test_xss_in_a_topic_record_is_shown_as_text(page: Page, queue: str) -> None:
    page.api("POST", f"topics/{queue}/records", {"payload": {EVIL: EVIL}, "key": EVIL, "headers": {EVIL: EVIL}})
    page.open(f"/topics/{queue}").live()
    page.find(".tail td", "<img src=x")
    page.click(".tail summary")
    page.find(".tail dd", "<script>")
    safe(page)
    page.go("/topics")
    page.find(".topics a", queue)
    safe(page)
