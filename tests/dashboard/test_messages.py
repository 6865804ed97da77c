"""A queue's page: what is published appears, and can be looked at, paused, dropped and deleted."""

import json
from pathlib import Path

import pytest

from tests.support.chromium import Browser
from tests.support.dashboard import Page

pytestmark = pytest.mark.process


def test_publish_page_publishes_the_first_message_of_a_queue(page: Page, queue: str) -> None:
    page.open("/publish").live()
    page.field("queue").type(queue)
    page.edit("[data-field=payload] textarea", '{"n": 12345678901234567890, "x": 1.0}')
    page.field("type").type("order.created")
    page.field("priority").type("3")
    page.click("button", "Publish")
    page.click(".published a")
    page.find(".drawer .payload", '"n": 12345678901234567890,\n  "x": 1.0')
    page.find(".drawer .card-facts", "order.created")
    page.browser.press("Escape")
    page.gone("dialog")
    page.count("ready", 1)
    [row] = page.api("GET", f"queues/{queue}/messages")["messages"]
    assert (row["message"]["type"], row["priority"]) == ("order.created", 3)


def test_publish_page_sends_every_field_and_reports_a_duplicate(page: Page, queue: str) -> None:
    page.open(f"/queues/{queue}/publish").live()
    given = {
        "type": "a",
        "priority": "0",
        "delaySec": "3600",
        "ttlSec": "7200.5",
        "groupId": "g",
        "targetConsumerId": "c-1",
        "messageId": "m-1",
        "deduplicationKey": "k",
    }
    for name, value in given.items():
        page.field(name).type(value)
    page.edit("[data-field=attributes] textarea", '{"site": "north"}')
    page.click("button.primary", "Publish")
    page.toast("m-1 is published and on disk.")
    told = page.api("GET", f"queues/{queue}/messages/m-1")
    assert told["state"] == "delayed"
    assert told["expiresAt"] is not None
    sent = told["message"]
    assert sent["attributes"] == {"site": "north", "priority": 0}
    assert (sent["type"], sent["groupId"], sent["targetConsumerId"], sent["deduplicationKey"]) == ("a", "g", "c-1", "k")
    page.click("button.primary", "Publish")
    page.toast("was already stored; nothing was added")


def test_publish_page_shows_each_error_at_its_field(page: Page, queue: str) -> None:
    page.open(f"/queues/{queue}/publish").live()
    page.forgive("400")
    publish = page.find("button.primary", "Publish")
    for name, value, said in (
        ("priority", "-1", "must be null or a whole number from 0"),
        ("priority", "first", "must be a number"),
        ("delaySec", "-5", "must be from 0"),
        ("ttlSec", "0", "must be from 0.001"),
        ("messageId", "a b", "is not allowed"),
        ("targetConsumerId", "<b>", "is not allowed"),
    ):
        page.field(name).type(value)
        publish.click()
        page.wrong(name, said)
        assert page.field(name).attribute("aria-invalid") == "true"
        page.field(name).type("")
        page.gone(f"[data-field={name}] .wrong")
    page.edit("[data-field=payload] textarea", '{\n  "a": 1,\n  oops\n}')
    publish.click()
    page.wrong("payload", "line 3")
    assert page.find("[data-field=payload] .wrong-line").text.endswith("3")
    page.edit("[data-field=payload] textarea", "{}")
    page.edit("[data-field=attributes] textarea", "[1]")
    publish.click()
    page.wrong("attributes", "must be a JSON object")
    page.go("/publish")
    page.click("button.primary", "Publish")
    page.wrong("queue", "is needed")
    assert queue not in [row["queue"] for row in page.api("GET", "queues")["queues"]]


def test_payload_of_any_bytes_is_uploaded_shown_in_hex_and_downloaded(page: Page, queue: str, tmp_path: Path) -> None:
    raw = bytes(range(256)) * 100
    file = tmp_path / "raw.bin"
    file.write_bytes(raw)
    page.open(f"/queues/{queue}/publish").live()
    page.click(".choices button", "File")
    page.find("input[type=file]").upload(file)
    page.field("messageId").type("raw")
    page.click("button.primary", "Publish")
    page.click(".published a", "raw")
    page.find(".payload-view", "25 KiB")
    page.find(".payload", "000000f0  f0 f1 f2 f3 f4 f5 f6 f7  f8 f9 fa fb fc fd fe ff")
    assert page.browser.texts(".payload-view .choices button") == ["Hex"]
    page.click("button", "Show all")
    page.find(".payload", "000063f0")
    page.click(".payload-view button", "Download")
    saved = page.browser.downloads / "raw.bin"
    page.browser.wait(saved.exists)
    assert saved.read_bytes() == raw


def test_payload_of_text_is_shown_as_text_and_in_hex(page: Page, queue: str) -> None:
    page.open(f"/queues/{queue}/publish").live()
    page.click(".choices button", "Text")
    page.edit("[data-field=payload] textarea", "Grüße, 이랑")
    page.click("button.primary", "Publish")
    page.click(".published a")
    page.find(".payload", "Grüße, 이랑")
    page.find(".payload-view", "text/plain")
    page.click(".payload-view button", "Hex")
    page.find(".payload", "47 72 c3 bc c3 9f 65")


def test_queue_page_shows_messages_of_other_clients_without_a_reload(page: Page, queue: str) -> None:
    page.api.publish(queue, {"n": 1})
    page.open(f"/queues/{queue}").live()
    page.count("ready", 1)
    page.browser.script("window.stayed = true")
    [id] = page.api.publish(queue, {"n": 2})
    page.find("button.open", id)
    page.count("ready", 2)
    [taken, other] = page.api.lease(queue, 2, consumer="elsewhere")
    page.count("leased", 2)
    page.find(".message-list .empty", "No message is ready")
    page.click('.state-box[data-state="leased"]')
    page.find("td", "elsewhere")
    page.api("POST", f"queues/{queue}/ack", {"leases": [taken["lease"]["leaseId"]]})
    page.gone("button.open", taken["message"]["messageId"])
    page.find("button.open", other["message"]["messageId"])
    assert page.browser.script("return window.stayed") is True


def test_overview_shows_new_messages_and_rates_without_a_reload(page: Page, queue: str) -> None:
    page.open().live()
    page.gone("a.queue-name", queue)
    page.api.publish(queue, *range(7))
    page.find("tr:has(a.queue-name)", queue)
    page.browser.until(
        """const row = [...document.querySelectorAll("tr")].find((row) => row.textContent.includes(arguments[0]));
        return row?.querySelector('[data-state="ready"]').textContent === "7"
          && row.querySelector('[data-label="in/s"]').textContent !== "0";""",
        queue,
    )
    page.find(".facts", "desk-1")
    page.find(".facts", "memory:")


def test_pause_and_resume_of_a_queue_show_on_every_page(page: Page, queue: str) -> None:
    page.api.publish(queue, 1)
    page.open(f"/queues/{queue}").live()
    page.click("button", "Pause")
    page.find("h1 .badge.paused")
    assert page.api.lease(queue) == []
    page.go("/")
    page.find(f'tr:has([href="#/queues/{queue}"]) .badge.paused')
    page.go(f"/queues/{queue}")
    page.click("button", "Resume")
    page.gone("h1 .badge.paused")
    assert len(page.api.lease(queue)) == 1


def test_delete_of_one_message_leaves_the_others(page: Page, queue: str) -> None:
    keep, drop = page.api.publish(queue, 1, 2)
    page.open(f"/queues/{queue}").live()
    page.click("button.open", drop)
    page.click(".drawer button", "Delete…")
    page.click("dialog button.danger", "Delete")
    page.toast(f"{drop} is deleted.")
    page.gone("button.open", drop)
    page.find("button.open", keep)
    assert page.api.counts(queue)["ready"] == 1


def test_purge_asks_for_the_queue_name_and_leaves_other_states_alone(page: Page, queue: str) -> None:
    page.api.publish(queue, *range(700))
    page.api.lease(queue, 5)
    page.open(f"/queues/{queue}").live()
    page.count("ready", 695)
    page.click("button", "Purge…")
    page.find("dialog", "695 ready")
    agree = page.find("dialog button.danger")
    assert agree.get("disabled")
    page.find("dialog input[type=text]").type(queue)
    agree.click()
    page.toast("695 messages dropped.")
    page.count("ready", 0)
    page.count("leased", 5)


def test_delete_of_a_queue_asks_for_its_name_and_drops_its_messages(page: Page, queue: str) -> None:
    page.api.publish(queue, 1, 2)
    page.open(f"/queues/{queue}").live()
    page.click("button", "Delete queue…")
    page.find("dialog input").type(queue[:-1])
    assert page.find("dialog button.danger").get("disabled")
    page.find("dialog input").type(queue)
    page.click("dialog button.danger")
    page.toast(f"{queue} and 2 messages are deleted.")
    page.gone("a.queue-name", queue)
    assert page.browser.url.endswith("#/")


def test_queue_page_of_a_missing_queue_reports_that_it_is_not_there(page: Page, queue: str) -> None:
    page.open(f"/queues/{queue}").live()
    page.find(".empty", "This queue does not exist")


def test_filter_finds_messages_and_a_wrong_filter_is_marked(page: Page, queue: str) -> None:
    page.api.publish(queue, *({"to": name, "n": n} for n, name in enumerate(["ann", "bob", "ann"])))
    page.open(f"/queues/{queue}").live()
    page.find("tr", '"n":2')
    page.find("input[data-search]").type("payload.to=ann")
    page.browser.press("Enter")
    page.gone("tr", '"to":"bob"')
    page.find("tr", '"to":"ann"')
    assert len(page.browser.texts("button.open")) == 2
    page.forgive("400")
    page.find("input[data-search]").type("payload.to=ann and atempt>1")
    page.browser.press("Enter")
    page.find(".filter-wrong", "did you mean 'attempt'?")
    assert page.browser.texts(".filter-wrong mark") == ["atempt"]
    page.browser.reload()
    page.find(".filter-wrong mark", "atempt")


def test_paging_through_messages_goes_forward_and_back(page: Page, queue: str) -> None:
    ids = page.api.publish(queue, *range(120))
    page.open(f"/queues/{queue}").live()
    page.find("button.open", ids[0])
    page.click(".pager button", "Next")
    page.find("button.open", ids[50])
    page.click(".pager button", "Next")
    page.find("button.open", ids[119])
    assert page.find(".pager button", "Next").get("disabled")
    page.click(".pager button", "Previous")
    page.find("button.open", ids[99])
    page.gone("button.open", ids[119])


def test_history_of_a_failed_message_shows_its_reason_and_steps(page: Page, queue: str, browser: Browser) -> None:
    [id] = page.api.publish(queue, json.loads('{"a": [1, {"b": null}]}'))
    page.api.bury(queue, 1, "REJECTED", "no such\naddress")
    page.open(f"/queues/{queue}/dead-letters?message={id}").live()
    page.find(".failure .reason", "REJECTED")
    page.find(".failure-text", "no such\naddress")
    assert browser.texts(".history b") == ["published", "failed", "dead"]
    page.find(".payload", '"b": null')
