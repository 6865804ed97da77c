"""Every page, light and dark, wide and narrow: nothing sticks out, everything can be read."""

import pytest

from tests.support.dashboard import Page, check_layout

pytestmark = pytest.mark.process
PAGES = {
    "overview": ("/", "a.queue-name"),
    "messages": ("/queues/{}", "button.open"),
    "message": ("/queues/{}?message=m-1", ".drawer .payload"),
    "dead letters of all": ("/dead-letters", ".dead-queues .reason"),
    "send again": ("/queues/{}/send-again/m-3", "form.publish"),
    "dead letters": ("/queues/{}/dead-letters", ".bar-row"),
    "publish": ("/queues/{}/publish", "form.publish"),
    "policy": ("/queues/{}/policy", ".in-force .differs"),
    "consumers": ("/consumers", ".consumers .badge"),
    "publish anywhere": ("/publish", "form.publish"),
    "topics": ("/topics", ".topics a, .bridges .badge"),
    "topic": ("/topics/{}", ".tail summary"),
    "alerts": ("/alerts", ".rules th"),
    "pipelines": ("/pipelines", ".pipelines .badge"),
    "nothing": ("/nowhere", ".empty"),
}


def fill(page: Page, queue: str) -> None:
    """Something of everything, with names as long as they may be."""
    long = f"{queue}-{'x' * 60}"
    page.api("PUT", f"queues/{queue}/policy", {"retry": {"limit": 0}, "ttlSec": 3600})
    page.api("POST", f"queues/{queue}/messages", [
        {"messageId": "m-1", "type": "a.rather.long.type.of.message.somebody.chose", "payload": {"text": "x" * 400}},
        {"messageId": "y" * 100, "payload": ["z" * 300]},
        {"messageId": "m-2", "payload": 2},
        {"messageId": "m-3", "payload": 3},
    ])  # fmt: skip
    page.api("DELETE", f"queues/{queue}/messages/m-2")
    page.api.publish(queue, 5, 6)
    page.api.bury(queue, 3, "TIMEOUT", "word " * 60)
    page.api.publish(queue, {"messageId": "m-1", "payload": 1})
    page.api.publish(long, 1)
    page.api("POST", f"topics/{queue}/records", [
        {"payload": {"text": "x" * 400}, "key": "k" * 80, "headers": {"h" * 60: "v" * 200}}, {"payload": 1},
    ])  # fmt: skip
    page.api("POST", f"topics/{long}/records", {"payload": 2})
    page.api("POST", "bridges", {"name": queue[:60], "queue": long, "topics": [f"{long}*"]})
    lost = {"state": "failed", "source": f"topic:{long}", "target": f"queue:{queue}", "error": "no room on the disk"}
    page.api("PUT", f"pipelines/{queue[:40]}-pipe", {**lost, "rows": 10**9, "position": 9, "lag": 10**8})
    page.api("PUT", "consumers/looked-at", {"host": "h" * 60, "queues": [queue, long], "state": "running"})


@pytest.mark.parametrize("name", PAGES)
def test_layout_fits_in_every_width_and_theme(page: Page, queue: str, name: str) -> None:
    fill(page, queue)
    where, there = PAGES[name]
    page.open(where.format(queue)).live()
    page.find(there)
    check_layout(page)


def test_theme_can_be_chosen_and_is_kept(page: Page) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    page.open().live()
    light = page.browser.script(ground)
    page.browser.prefer("dark")
    page.browser.until(f"return ({ground.removeprefix('return ')}) !== arguments[0]", light)
    dark = page.browser.script(ground)
    button = page.find("#theme")
    assert button.attribute("aria-label") == "Colours: as in the system"
    button.click()
    assert button.attribute("aria-label") == "Colours: light"
    assert page.browser.script(ground) == light
    page.browser.reload()
    page.live()
    assert page.browser.script(ground) == light
    page.click("#theme")
    page.browser.prefer("light")
    assert page.browser.script(ground) == dark
