"""The main path without a mouse."""

import pytest

from tests.support.dashboard import Page

pytestmark = pytest.mark.process


def tab_to(page: Page, text: str) -> None:
    """Tab until the focus is there; a whole page has fewer stops than this."""
    for _ in range(80):
        page.browser.press("Tab")
        if text in page.browser.focused:
            ring = page.browser.script("return getComputedStyle(document.activeElement).outlineStyle")
            assert ring != "none", f"{text} has the focus, and one cannot see it"
            return
    raise AssertionError(f"{text!r} cannot be reached with the tab key")


def test_keyboard_path_from_the_overview_to_redriven_dead_letters(page: Page, queue: str) -> None:
    page.api("PUT", f"queues/{queue}/policy", {"retry": {"limit": 0}})
    page.api.publish(queue, {"n": 1}, {"n": 2})
    page.api.bury(queue, 2, "TIMEOUT")
    page.open().live()
    page.find("a.queue-name", queue)
    page.browser.press("Tab")
    assert page.browser.focused == "Skip to the content"
    page.browser.press("Enter")
    page.browser.press("/")
    page.browser.write(queue)
    page.browser.until("return document.querySelectorAll('a.queue-name').length === 1")
    page.browser.press("Escape")
    tab_to(page, queue)
    page.browser.press("Enter")
    page.find("h1", queue)
    tab_to(page, "Dead letters")
    page.browser.press("Enter")
    page.find("button.open")
    page.browser.press("/")
    page.browser.write("reasonCode=TIMEOUT")
    page.browser.press("Enter")
    page.find("button", "Redrive all that match…")
    tab_to(page, "Redrive all that match…")
    page.browser.press("Enter")
    page.find("dialog .dry-run", "2 messages")
    page.browser.press("Enter")
    page.toast("2 messages redriven.")
    page.count("ready", 2)


def test_keyboard_arrows_walk_through_rows_and_escape_closes(page: Page, queue: str) -> None:
    ids = page.api.publish(queue, 1, 2, 3)
    page.open(f"/queues/{queue}").live()
    page.find("button.open", ids[2])
    tab_to(page, ids[0])
    page.browser.press("ArrowDown", "ArrowDown")
    assert page.browser.focused == ids[2]
    page.browser.press("ArrowDown")
    assert page.browser.focused == ids[2]
    page.browser.press("Home")
    assert page.browser.focused == ids[0]
    page.browser.press("ArrowDown", "Enter")
    page.find(".drawer h2", ids[1])
    page.browser.press("Escape")
    page.gone("dialog")
    assert page.browser.focused == ids[1], "the focus is back where it was"


def test_keyboard_focus_stays_while_rows_are_added_and_removed(page: Page, queue: str) -> None:
    ids = page.api.publish(queue, 1, 2, 3)
    page.open(f"/queues/{queue}").live()
    page.find("button.open", ids[2])
    tab_to(page, ids[1])
    page.api("DELETE", f"queues/{queue}/messages/{ids[0]}")
    page.gone("button.open", ids[0])
    page.api.publish(queue, 4)
    page.count("ready", 3)
    assert page.browser.focused == ids[1]


def test_keyboard_alone_publishes_a_message(page: Page, queue: str) -> None:
    page.open("/publish").live()
    page.browser.script("document.getElementById('content').focus()")
    page.browser.press("Tab")
    page.browser.write(queue)
    for _ in range(4):
        page.browser.press("Tab")
    page.browser.press("a", holding="Control")
    page.browser.write('{"n": 1}')
    page.browser.press("Enter", holding="Control")
    page.toast("is published and on disk")
    assert page.api.counts(queue)["ready"] == 1
