"""Many queues and many messages: what is drawn stays small, and everything can still be found."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chromium import Browser
from tests.support.dashboard import Page, looking
from tests.support.server_process import Daemon, daemon

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("crowded")
    with daemon(folder, "--store", "memory:", "--http", "127.0.0.1:0") as made:
        yield made


def test_paging_of_500_queues_and_10000_messages_keeps_the_page_small_and_finds_each(
    browser: Browser, crowded: Daemon
) -> None:
    page: Page = next(shown := looking(browser, crowded.address_of("http")))
    for number in range(500):
        page.api.publish(f"queue-{number:03}", number)
    for start in range(0, 10_000, 2_500):
        page.api.publish("big", *({"n": n} for n in range(start, start + 2_500)))

    page.open().live()
    page.find(".pager", "1–100 of 501")
    assert len(page.browser.texts("a.queue-name")) == 100
    page.click(".pager button", "Next")
    page.find(".pager", "101–200 of 501")
    page.click("thead button", "ready")
    page.browser.until("return document.querySelector('a.queue-name').textContent === 'big'")
    page.find('[data-state="ready"]', "10\u202fk")
    page.find("input[data-search]").type("queue-49")
    page.browser.until("return document.querySelectorAll('a.queue-name').length === 10")
    page.gone(".pager")

    page.go("/queues/big")
    page.count("ready", 10_000)
    page.find("button.open")
    assert len(page.browser.texts("button.open")) == 50
    page.find("input[data-search]").type("payload.n=9999")
    page.browser.press("Enter")
    page.browser.until("return document.querySelectorAll('button.open').length === 1")
    assert page.browser.script("return document.querySelectorAll('*').length") < 1_500
    assert list(shown) == []


def test_paging_of_queues_beyond_one_server_page_searches_and_sorts_on_the_server(
    browser: Browser, crowded: Daemon
) -> None:
    page: Page = next(shown := looking(browser, crowded.address_of("http")))
    for number in range(1_100):
        page.api.publish(f"many-{number:04}", number)
    page.api.publish("many-0777", *range(40))

    page.open().live()
    page.find("h2 + .muted", "in all")
    assert len(page.browser.texts("a.queue-name")) == 100
    page.find("input[data-search]").type("MANY-")
    page.browser.until("return document.querySelector('a.queue-name')?.textContent === 'many-0000'")
    page.click(".pager button", "Next")
    page.find(".pager", "101–200")
    page.browser.until("return document.querySelector('a.queue-name')?.textContent === 'many-0100'")
    page.click(".pager button", "Previous")
    page.browser.until("return document.querySelector('a.queue-name')?.textContent === 'many-0000'")
    page.click("thead button", "ready")
    page.browser.until("return document.querySelector('a.queue-name')?.textContent === 'many-0777'")
    page.find('[data-state="ready"]', "41")

    page.go("/queues/many-0777")
    page.count("ready", 41)
    page.go("/queues/many-0777-dlq")
    page.find(".empty", "This is the dead-letter queue of many-0777")
    assert list(shown) == []
