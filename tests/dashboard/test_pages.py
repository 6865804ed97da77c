"""Pages are found because their files are there."""

import shutil
from pathlib import Path

import pytest

import yirangmq
from tests.support.chromium import Browser
from tests.support.dashboard import looking
from tests.support.pages import code_blocks
from tests.support.server_process import Daemon

pytestmark = pytest.mark.process
MOON = """
export default {
  route: "/moon", title: () => "Moon", nav: { label: "Moon", order: 99 }, needs: "/v1/moon", mount() {},
};"""
DOCUMENT = Path(__file__).parents[2] / "docs" / "dashboard.md"


def test_extension_page_of_the_docs_works_as_written_and_a_page_without_its_route_is_hidden(
    browser: Browser, tmp_path: Path
) -> None:
    package = tmp_path / "with-a-page" / "yirangmq"
    shutil.copytree(Path(yirangmq.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    [example] = code_blocks(DOCUMENT.read_text(), "js")
    (package / "dashboard" / "pages" / "schedules.js").write_text(example)
    (package / "dashboard" / "pages" / "moon.js").write_text(MOON)
    server = Daemon(tmp_path, "--store", "memory:", "--http", "127.0.0.1:0").start(PYTHONPATH=str(package.parent))
    try:
        page = next(shown := looking(browser, server.address_of("http")))
        schedule = {"name": "nightly", "cron": "30 2 * * *", "message": {"kind": "daily"}}
        page.api("PUT", "queues/reports/policy", {"schedules": [schedule]})
        page.open().live()
        page.click("nav a", "Schedules")
        page.find("li", "nightly 30 2 * * *")
        page.find('nav a[aria-current="page"]', "Schedules")
        assert "Moon" in page.browser.texts("nav a")
        page.gone("nav a", "Moon")
        assert page.browser.script("return document.title") == "Schedules · Yi-Rang MQ"
        assert list(shown) == []
    finally:
        server.kill()
