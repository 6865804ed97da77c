"""What producers and consumers write is shown as text, whatever it is."""

import pytest

from tests.support.dashboard import EVIL, Page, safe

pytestmark = pytest.mark.process


def test_xss_in_a_message_is_shown_as_text(page: Page, queue: str) -> None:
    envelope = {
        "messageId": "m-1",
        "type": EVIL,
        "traceId": EVIL,
        "groupId": EVIL,
        "attributes": {EVIL: EVIL},
        EVIL: EVIL,
        "payload": {EVIL: EVIL},
    }
    page.api("PUT", f"queues/{queue}/policy", {"retry": {"limit": 0}})
    page.api("POST", f"queues/{queue}/messages", envelope)
    page.open(f"/queues/{queue}").live()
    page.find("td", "<img src=x")
    page.click("button.open", "m-1")
    page.find(".drawer .payload", "<script>window.hit=1</script>")
    page.find(".drawer .card-facts", EVIL)
    safe(page)
    page.click(".payload-view button", "Text")
    page.find(".drawer .payload", "<script>window.hit=1</script>")
    safe(page)


def test_xss_in_the_failure_report_of_a_consumer_is_shown_as_text(page: Page, queue: str) -> None:
    page.api.publish(queue, EVIL)
    page.api.bury(queue, 1, "REJECTED", EVIL)
    page.open(f"/queues/{queue}/dead-letters").live()
    page.find("td", "<img src=x")
    page.click("button.open")
    page.find(".failure-text", EVIL)
    page.find(".history", EVIL)
    safe(page)


@pytest.mark.parametrize("where", ["/queues/{}", "/queues/{}/dead-letters", "/queues/{}/policy", "/queues/{}/publish"])
def test_xss_in_the_address_is_shown_as_text(page: Page, where: str) -> None:
    evil = EVIL.replace("/", "%2F").replace("#", "%23").replace("?", "%3F")
    page.forgive("400")
    page.open(where.format(evil)).live()
    page.find("h1", "<img src=x")
    safe(page)


def test_xss_in_typed_and_echoed_input_is_shown_as_text(page: Page, queue: str) -> None:
    page.api.publish(queue, 1)
    page.forgive("400")
    page.open(f"/queues/{queue}").live()
    page.find("input[data-search]").type('payload.a="<img src=x onerror=window.hit=1>" and <svg')
    page.browser.press("Enter")
    page.find(".filter-wrong pre", "<img src=x")
    safe(page)
    page.go("/publish")
    page.find('[data-field="queue"] input').type("<b>x")
    page.click("button.primary", "Publish")
    page.wrong("queue", "'<b>x' is not allowed")
    safe(page)


def test_content_security_policy_blocks_inline_scripts_and_handlers(page: Page) -> None:
    page.open().live()
    page.forgive("Content Security Policy|Content-Security-Policy|violates")
    page.browser.script(
        """const node = document.createElement("script");
        node.textContent = "window.hit = 1";
        document.body.append(node);
        document.body.setAttribute("onclick", "window.hit = 1");
        document.body.click();"""
    )
    assert page.browser.script("return window.hit ?? null") is None
