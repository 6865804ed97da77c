"""A dead letter edited and sent again: a new message that names the old one."""

import base64

import pytest

from tests.support.dashboard import Page

pytestmark = pytest.mark.process
SENT = {
    "messageId": "old-1",
    "type": "mail.send",
    "version": 3,
    "traceId": "trace-1",
    "deduplicationKey": "key-1",
    "attributes": {"site": "north", "priority": 2},
    "extra": {"kept": True},
    "payload": {"to": "nobody@example.com"},
}


def buried(page: Page, queue: str, message: object) -> None:
    page.api("PUT", f"queues/{queue}/policy", {"retry": {"limit": 0}})
    page.api("POST", f"queues/{queue}/messages", message)
    page.api.bury(queue, 1, "REJECTED", "no such address")


def test_dead_letter_is_edited_and_sent_again_under_a_new_id_with_a_link_to_the_old_one(page: Page, queue: str) -> None:
    buried(page, queue, SENT)
    page.open(f"/queues/{queue}/dead-letters?message=old-1").live()
    page.click(".drawer a", "Edit and send again…")
    page.find("h2", "Edit and send again")
    page.find("p.muted", "It failed with REJECTED: no such address.")
    page.gone("dialog")
    assert page.field("type").get("value") == "mail.send"
    assert page.field("priority").get("value") == "2"
    page.edit("[data-field=payload] textarea", '{"to": "ann@example.com"}')
    page.click("button.primary", "Publish")
    page.toast("is published and on disk")
    page.count("ready", 1)
    assert page.api.counts(queue)["dead"] == 1, "the old one stays"
    [found] = page.api("GET", f"queues/{queue}/messages")["messages"]
    sent = found["message"]
    assert found["messageId"] != "old-1"
    assert sent["payload"] == {"to": "ann@example.com"}
    assert sent["causation"] == {"queue": queue, "messageId": "old-1"}
    assert (sent["type"], sent["version"], sent["traceId"]) == ("mail.send", 3, "trace-1")
    assert sent["attributes"] == {"site": "north", "priority": 2}
    assert sent["extra"] == {"kept": True}
    assert "deduplicationKey" not in sent

    page.click(".published a")
    page.find(".drawer .card-facts", "derived from")
    page.click(".drawer .card-facts a", "old-1")
    page.find(".drawer .state-badge", "dead")
    page.go(f"/queues/{queue}")
    page.gone("dialog")


def test_dead_letter_of_bytes_is_sent_again_unchanged_and_the_old_one_is_quarantined(page: Page, queue: str) -> None:
    raw = base64.b64encode(bytes(range(256))).decode()
    buried(page, queue, {"messageId": "old-1", "payloadBase64": raw, "contentType": "image/x-test"})
    page.open(f"/queues/{queue}/send-again/old-1").live()
    page.find(".choices [aria-pressed=true]", "Unchanged, 256 bytes")
    page.browser.script("arguments[0].value = 'quarantine'", page.find("select[name=afterwards]"))
    page.click("button.primary", "Publish")
    page.toast("old-1 is parked.")
    page.count("parked", 1)
    [found] = page.api("GET", f"queues/{queue}/messages")["messages"]
    assert (found["message"]["payloadBase64"], found["message"]["contentType"]) == (raw, "image/x-test")


def test_json_of_a_dead_letter_is_shown_indented_and_sent_as_it_was_if_it_is_not_edited(page: Page, queue: str) -> None:
    raw = b'{"n":1.0,"to":["ann"]}'
    buried(page, queue, {"messageId": "old-1", "payloadBase64": base64.b64encode(raw).decode(), "contentType": "x/y"})
    page.open(f"/queues/{queue}/send-again/old-1").live()
    text = page.find("[data-field=payload] textarea").get("value")
    assert text == '{\n  "n": 1.0,\n  "to": [\n    "ann"\n  ]\n}'
    page.click("button.primary", "Publish")
    page.toast("is published and on disk")
    page.count("ready", 1)
    [found] = page.api("GET", f"queues/{queue}/messages")["messages"]
    assert (found["bytes"], found["message"]["payload"]) == (len(raw), {"n": 1.0, "to": ["ann"]})


def test_send_again_of_a_message_that_does_not_exist_says_so(page: Page, queue: str) -> None:
    page.forgive("404")
    page.api.publish(queue, 1)
    page.open(f"/queues/{queue}/send-again/none").live()
    page.find(".wrong", "none")
