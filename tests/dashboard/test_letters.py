"""Dead letters: seen by reason, chosen by a filter, tried without harm, then moved."""

from typing import Any

import pytest

from tests.support.dashboard import Page

pytestmark = pytest.mark.process


def bury_some(page: Page, queue: str) -> None:
    """Three dead letters of one reason, two of another."""
    page.api("PUT", f"queues/{queue}/policy", {"retry": {"limit": 0}})
    page.api.publish(queue, *({"n": n} for n in range(5)))
    page.api.bury(queue, 3, "TIMEOUT", "too slow")
    page.api.bury(queue, 2, "REJECTED", "no such address")


def reasons(page: Page, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = page.api("GET", f"queues/{queue}/dead-letters/stats")["byReason"]
    return found


def test_redrive_of_filtered_dead_letters_after_a_dry_run_makes_them_ready(page: Page, queue: str) -> None:
    bury_some(page, queue)
    page.open(f"/queues/{queue}").live()
    page.count("dead", 5)
    page.click(".tabs a", "Dead letters")
    page.find(".tab-body", "5 dead letters.")
    assert page.browser.texts(".bar-row b") == ["3", "2"]
    assert page.browser.texts(".bar-name") == ["TIMEOUT", "REJECTED"]
    page.browser.until("return document.querySelectorAll('.days rect').length === 2")
    assert page.browser.texts(".days-counts span") == ["6", "3", "0"]
    assert len(page.browser.texts(".days-dates span")) == 1

    page.forgive("400")
    page.find("input[data-search]").type("reasonCode=TIMEOT and attempt>=1")
    page.browser.press("Enter")
    page.find(".filter-wrong", "did you mean TIMEOUT?")
    assert page.browser.texts(".filter-wrong mark") == ["TIMEOT"]

    page.find("input[data-search]").type("reasonCode=TIMEOUT and attempt>=1")
    page.browser.press("Enter")
    page.gone(".filter-wrong")
    page.gone("td.reason", "REJECTED")
    page.click("button", "Redrive all that match…")
    page.find("dialog .dry-run", "3 messages")
    assert page.api.counts(queue)["dead"] == 5, "a dry run moves nothing"
    page.click("dialog button.primary", "Redrive")
    page.toast("3 messages redriven.")
    page.count("ready", 3)
    page.count("dead", 2)
    page.find(".message-list .empty", "No dead letter matches the filter.")
    assert reasons(page, queue) == {"REJECTED": 2}


def test_quarantine_of_dead_letters_chosen_by_reason_and_their_redrive(page: Page, queue: str) -> None:
    bury_some(page, queue)
    page.open(f"/queues/{queue}/dead-letters").live()
    page.click(".bar-row", "REJECTED")
    page.gone("td.reason", "TIMEOUT")
    assert page.find("input[data-search]").get("value") == "reasonCode=REJECTED"
    page.click("td.tick input")
    page.click("button", "Quarantine 1 chosen…")
    page.find("dialog .dry-run", "1 message")
    page.click("dialog button.primary", "Quarantine")
    page.toast("1 message quarantined.")
    page.count("parked", 1)
    page.click('.state-box[data-state="parked"]')
    page.find(".choices [aria-pressed=true]", "parked")
    page.find("td.reason", "REJECTED")
    page.click("button", "Redrive all…")
    page.find("dialog .dry-run", "1 message")
    page.click("dialog button.primary", "Redrive")
    page.count("ready", 1)


def test_purge_of_dead_letters_can_be_cancelled_limited_and_is_permanent(page: Page, queue: str) -> None:
    bury_some(page, queue)
    page.open(f"/queues/{queue}/dead-letters").live()
    page.click("button", "Purge all…")
    page.find("dialog .dry-run", "5 messages")
    page.browser.press("Escape")
    page.gone("dialog")
    assert page.api.counts(queue)["dead"] == 5
    page.click("button", "Purge all…")
    page.find("dialog input[type=number]").type("2")
    page.click("dialog button.danger", "Purge")
    page.toast("2 messages purged.")
    page.count("dead", 3)
    page.click("button", "Purge all…")
    page.click("dialog button.danger", "Purge")
    page.find(".message-list .empty", "No dead letters")
    assert page.api.counts(queue)["dropped"] == 5


def test_redrive_of_one_dead_letter_from_its_drawer(page: Page, queue: str) -> None:
    bury_some(page, queue)
    page.open(f"/queues/{queue}/dead-letters").live()
    page.click("td.id button.open")
    page.click(".drawer button", "Redrive")
    page.find(".drawer .state-badge", "ready")
    page.browser.press("Escape")
    page.count("ready", 1)


def test_dead_letter_queue_name_shows_the_dead_letters_of_its_queue(page: Page, queue: str) -> None:
    bury_some(page, queue)
    page.open(f"/queues/{queue}-dlq/dead-letters").live()
    page.find(".tab-body", "5 dead letters.")
    page.find(".tab-body", f"From {queue}.")
    page.find(".empty a", queue)


def test_redrive_of_1000_dead_letters_makes_all_ready(page: Page, queue: str) -> None:
    page.api("PUT", f"queues/{queue}/policy", {"retry": {"limit": 0}})
    page.api.publish(queue, *range(1000))
    page.api.bury(queue, 1000, "TIMEOUT")
    page.open(f"/queues/{queue}/dead-letters").live()
    page.click("button", "Redrive all…")
    page.find("dialog .dry-run", "1,000 messages")
    page.find("dialog .ids", "and 990 more")
    page.click("dialog button.primary", "Redrive")
    page.toast("1,000 messages redriven.")
    page.count("ready", 1000)


def test_dead_letters_of_all_queues_are_listed_with_reasons_and_growth(page: Page, queue: str) -> None:
    other = f"{queue}-2"
    bury_some(page, queue)
    page.api("PUT", f"queues/{other}/policy", {"retry": {"limit": 0}})
    page.api.publish(other, 1)
    page.api.bury(other, 1, "POISON")
    page.browser.wait(lambda: bool(page.api("GET", f"trends?queue={other}&range=hour")["queues"]))
    page.open().live()
    page.click("nav a", "Dead letters")
    rows = "table.dead-queues tr"
    page.find(rows, f"{queue}5")
    row = page.find(f"{rows}:has(a[href$='/{queue}/dead-letters'])", "TIMEOUT (3)")
    cells = dict(page.browser.script(
        "return [...arguments[0].querySelectorAll('td')].map((cell) => [cell.dataset.label, cell.textContent])", row
    ))  # fmt: skip
    assert cells["dead"] == "5"
    page.find(f"{rows}:has(a[href$='/{other}/dead-letters'])", "POISON (1)")
    page.find(f"{rows}:has(a[href$='/{other}/dead-letters']) td[data-label='last hour']", "+1")
    page.find(f"{rows}:has(a[href$='/{other}/dead-letters']) td[data-label='last day']", "+1")
    assert "POISON" in page.browser.texts(".bar-name")
    page.find(".days rect")
    page.find('.charts-part[data-drawn="minutes"]')
    page.click(f"{rows} a", other)
    page.find("h1", other)
