"""The server goes, comes back, or wants a token."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.chromium import Browser
from tests.support.dashboard import LOST, Api, looking
from tests.support.server_process import Daemon, daemon

pytestmark = pytest.mark.process
TOKEN = "a-token-of-this-test"


def test_reconnect_after_a_server_kill_is_shown_and_the_page_updates(browser: Browser, tmp_path: Path) -> None:
    with daemon(tmp_path, "--http", "127.0.0.1:0") as server:
        url = server.address_of("http")
        page = next(shown := looking(browser, url))
        page.forgive(LOST)
        page.api.publish("mail", 1, 2)
        page.open().live()
        page.find("a.queue-name", "mail")
        server.kill()
        page.find(".banner[data-kind=bad]", "Connection lost")
        page.find("#pulse[data-phase=lost]", "no connection")
        page.find("a.queue-name", "mail")
        page.find("body.is-stale")
        again = Daemon(tmp_path, "--http", url.removeprefix("http://"))
        try:
            again.start()
            page.find(".banner[data-kind=good]", "Connected again")
            page.live()
            page.gone("body.is-stale")
            page.api.publish("mail", 3)
            page.find('tr [data-state="ready"]', "3")
            assert list(shown) == []
        finally:
            again.kill()


def test_dashboard_action_without_the_server_reports_that_it_cannot_be_reached(
    browser: Browser, tmp_path: Path
) -> None:
    with daemon(tmp_path, "--store", "memory:", "--http", "127.0.0.1:0") as server:
        page = next(shown := looking(browser, server.address_of("http")))
        page.forgive(LOST)
        page.open("/queues/mail/publish").live()
        server.kill()
        page.click("button.primary", "Publish")
        page.toast("the server cannot be reached")
        assert list(shown) == []


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "token").write_text(TOKEN)
    tokens = '[{"token": "only-to-look-at-mail", "scopes": ["look"], "queues": ["mail"]}]'
    options = ("--token-file", str(folder / "token"), "--http-tokens", tokens)
    with daemon(folder, "--store", "memory:", "--http", "127.0.0.1:0", *options) as made:
        with closing(Api(made.address_of("http"), TOKEN)) as api:
            api.publish("mail", {"to": "ann"})
        yield made


def test_token_is_asked_for_once_and_kept_for_the_tab(browser: Browser, guarded: Daemon) -> None:
    page = next(shown := looking(browser, guarded.address_of("http")))
    page.forgive("401")
    page.open()
    page.find("dialog", "It is kept until this tab is closed.")
    page.find("dialog input").type("wrong")
    page.browser.press("Enter")
    page.find("dialog", "The server did not accept the token.")
    page.find("dialog input").type(TOKEN)
    page.browser.press("Enter")
    page.live()
    page.find("a.queue-name", "mail")
    page.browser.reload()
    page.live()
    page.find("a.queue-name", "mail")
    page.api = Api(page.url, TOKEN)
    page.api.publish("mail", {"to": "bob"})
    page.find('tr [data-state="ready"]', "2")
    assert list(shown) == []


def test_token_dialog_that_was_closed_opens_again_only_on_request(browser: Browser, guarded: Daemon) -> None:
    page = next(shown := looking(browser, guarded.address_of("http")))
    page.forgive("401")
    page.open()
    page.find("dialog")
    page.browser.press("Escape")
    page.find(".banner", "this server requires a token")
    page.gone("dialog")
    page.click(".banner button", "Enter a token")
    page.find("dialog input").type(TOKEN)
    page.browser.press("Enter")
    page.live()
    page.find("a.queue-name", "mail")
    assert list(shown) == []


def test_token_with_few_permissions_gets_messages_about_actions_not_allowed(browser: Browser, guarded: Daemon) -> None:
    page = next(shown := looking(browser, guarded.address_of("http")))
    page.forgive("401|403")
    page.open("/queues/mail")
    page.find("dialog input").type("only-to-look-at-mail")
    page.browser.press("Enter")
    page.live()
    with closing(Api(page.url, TOKEN)) as api:
        page.count("ready", len(api("GET", "queues/mail/messages")["messages"]))
    page.click("button", "Pause")
    page.toast("this token does not allow to operate")
    page.go("/consumers")
    page.find(".connections", "This token does not allow the list of connections.")
    assert list(shown) == []


def test_token_is_not_needed_for_the_pages_but_for_their_data(guarded: Daemon) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{guarded.address_of('http')}/") as answer:
        assert b"mail" not in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        opener.open(f"{guarded.address_of('http')}/v1/queues")
    refused.value.close()
