"""The policy editor: checked while it is typed, the error at its place."""

import pytest

from tests.support.dashboard import Page

pytestmark = pytest.mark.process
AREA = ".policy-edit textarea"


def test_policy_editor_shows_an_error_at_its_field_and_saves_a_good_policy(page: Page, queue: str) -> None:
    page.open(f"/queues/{queue}/policy").live()
    page.find(".in-force", '"visibilityTimeoutSec": 30')
    page.forgive("400")
    page.edit(AREA, '{\n  "ttlSec": 60,\n  "retry": {\n    "limit": -1\n  }\n}')
    page.find(".wrong", "retry.limit")
    assert page.browser.texts(".editor mark") == ["-1"]
    assert page.browser.texts(".wrong-line") == ["4\n"]
    assert page.find(AREA).attribute("aria-invalid") == "true"
    assert page.find("button", "Save").get("disabled")

    page.edit(AREA, '{\n  "ttlSec": 60,\n  "retry": {\n    "limt": 2\n  }\n}')
    page.find(".wrong", "retry.limt")
    assert page.browser.texts(".wrong-line") == ["4\n"]

    page.edit(AREA, '{\n  "ttlSec": 60,\n  "retry": {"limit": 2}\n}')
    page.gone(".wrong")
    page.find("h2", "In force after saving")
    page.browser.until("return !document.querySelector('.policy-edit button.primary').disabled")
    assert page.browser.texts(".differs") == ['    "limit": 2,', '  "ttlSec": 60,']
    assert page.api("GET", f"queues/{queue}/policy")["set"] is None, "checking saves nothing"
    page.click("button", "Save")
    page.toast(f"The policy of {queue} is in force.")
    assert page.api("GET", f"queues/{queue}/policy")["set"] == {"ttlSec": 60, "retry": {"limit": 2}}
    page.find("h2", "In force")


def test_policy_editor_marks_invalid_json_and_reverts(page: Page, queue: str) -> None:
    page.open(f"/queues/{queue}/policy").live()
    page.find(".in-force", "visibilityTimeoutSec")
    page.edit(AREA, '{\n  "ttlSec": 60,\n}')
    page.find(".wrong", "line 3")
    page.edit(AREA, '{"retry": {"limit": 1}')
    page.find(".wrong", "not JSON")
    page.click("button", "Revert")
    page.gone(".wrong")
    assert page.find(AREA).get("value") == "{}"


def test_policy_editor_goes_back_to_the_defaults(page: Page, queue: str) -> None:
    page.api("PUT", f"queues/{queue}/policy", {"ttlSec": 5, "schedules": []})
    page.open(f"/queues/{queue}/policy").live()
    page.find(".in-force .differs", '"ttlSec": 5')
    page.click("button", "Reset to defaults…")
    page.click("dialog button.danger")
    page.toast("has the default policy")
    page.gone(".in-force .differs")
    assert page.api("GET", f"queues/{queue}/policy")["set"] is None


def test_policy_editor_marks_an_error_deep_in_a_list(page: Page, queue: str) -> None:
    page.open(f"/queues/{queue}/policy").live()
    page.find(".in-force", "visibilityTimeoutSec")
    page.forgive("400")
    page.edit(
        AREA,
        '{"schedules": [\n  {"name": "a", "cron": "* * * * *", "message": 1},\n'
        '  {"name": "b", "cron": "61 * * * *", "message": 1}\n]}',
    )
    page.find(".wrong", "schedules[1].cron")
    assert page.browser.texts(".wrong-line") == ["3\n"]
    assert page.browser.texts(".editor mark") == ['"61 * * * *"']
