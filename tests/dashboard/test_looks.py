"""Every page, light and dark, wide and narrow: nothing sticks out, everything can be read."""

from pathlib import Path

import pytest

from tests.support.dashboard import Page

pytestmark = pytest.mark.process
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()
NAMELESS = """
    return [...document.querySelectorAll("a[href], button, input, select, textarea, [role=img]")]
      .filter((node) => node.checkVisibility())
      .filter((node) => !node.textContent.trim() && !node.ariaLabel && !node.labels?.length)
      .map((node) => node.outerHTML.slice(0, 200))"""
PAGES = {
    "overview": ("/", "a.queue-name"),
    "messages": ("/queues/{}", "button.open"),
    "message": ("/queues/{}?message=m-1", ".drawer .payload"),
    "dead letters": ("/queues/{}/dead-letters", ".bar-row"),
    "publish": ("/queues/{}/publish", "form.publish"),
    "policy": ("/queues/{}/policy", ".in-force .differs"),
    "consumers": ("/consumers", ".consumers .badge"),
    "publish anywhere": ("/publish", "form.publish"),
    "topics": ("/topics", ".topics a, .bridges .badge"),
    "topic": ("/topics/{}", ".tail summary"),
    "alerts": ("/alerts", ".rules th"),
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
    page.api("PUT", "consumers/looked-at", {"host": "h" * 60, "queues": [queue, long], "state": "running"})


@pytest.mark.parametrize("name", PAGES)
def test_layout_fits_in_every_width_and_theme(page: Page, queue: str, name: str) -> None:
    fill(page, queue)
    where, there = PAGES[name]
    page.open(where.format(queue)).live()
    page.find(there)
    assert len(page.browser.texts("h1")) == 1
    assert page.browser.script(NAMELESS) == []
    for width, scheme in ((1280, "light"), (1280, "dark"), (768, "light"), (360, "light"), (360, "dark")):
        page.browser.size(width, 800)
        page.browser.prefer(scheme)
        page.browser.until("return innerWidth === arguments[0]", width)
        wide = page.browser.script(
            """const inside = document.querySelector("dialog[open]") ?? document.documentElement;
            return [document.documentElement.scrollWidth, inside.scrollWidth, inside.clientWidth]"""
        )
        assert wide[0] <= width, f"{wide[0]} wide at {width}"
        assert wide[1] <= wide[2]
        assert page.browser.script(CONTRAST) == [], f"hard to read at {width}, {scheme}"


def test_theme_can_be_chosen_and_is_kept(page: Page) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    page.open().live()
    light = page.browser.script(ground)
    page.browser.prefer("dark")
    page.browser.until(f"return ({ground.removeprefix('return ')}) !== arguments[0]", light)
    dark = page.browser.script(ground)
    button = page.find("#theme")
    assert button.attribute("aria-label") == "Colours: as the system has them"
    button.click()
    assert button.attribute("aria-label") == "Colours: light"
    assert page.browser.script(ground) == light
    page.browser.reload()
    page.live()
    assert page.browser.script(ground) == light
    page.click("#theme")
    page.browser.prefer("light")
    assert page.browser.script(ground) == dark
