"""One message through every door: the command line, HTTP, the dashboard, the socket."""

import json
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.chromium import Browser
from tests.support.dashboard import Page, looking
from tests.support.server_process import daemon, run_command
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect

pytestmark = pytest.mark.process


def lease_and_refuse(page: Page) -> str:
    """The message's id, when it is among the dead letters."""
    [taken] = page.api.lease("mail", consumer="printer-1")
    assert taken["message"]["payload"] == {"to": "ann"}
    page.count("leased", 1)
    leases = [taken["lease"]["leaseId"]]
    page.api("POST", "queues/mail/nack", {"leases": leases, "reason": "REJECTED", "text": "no paper"})
    return str(taken["message"]["messageId"])


def order_and_fail(page: Page) -> str:
    """The same by the calls of the document."""
    place = urlsplit(page.url)
    with closing(HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE)) as line:

        def ask(method: str, path: str) -> bytes:
            line.request(method, path)
            answer = line.getresponse()
            assert answer.status in (200, 204)
            return answer.read()

        id = ask("GET", "/mq/mail/messages").decode()
        page.count("claimed", 1)
        assert json.loads(ask("GET", f"/mq/mail/messages/{id}")) == {"to": "ann"}
        page.count("leased", 1)
        ask("PATCH", f"/mq/mail/messages/{id}/fail")
    return id


@pytest.mark.parametrize("fail", [lease_and_refuse, order_and_fail])
def test_protocols_share_a_message_from_cli_publish_to_http_failure_dashboard_redrive_and_socket_ack(
    fail: Callable[[Page], str], browser: Browser, tmp_path: Path
) -> None:
    with daemon(tmp_path, "--http", "127.0.0.1:0") as server:
        page = next(shown := looking(browser, server.address_of("http")))
        page.open().live()
        page.find(".empty", "No queues yet")
        told = run_command(tmp_path, "publish", "--queue", "mail", '{"to": "ann"}', f"--store={server.url}")
        assert told.returncode == 0, told.stderr
        page.click("a.queue-name", "mail")
        page.count("ready", 1)
        id = fail(page)
        page.count("dead", 1)
        page.click(".tabs a", "Dead letters")
        page.find("td", "no paper" if fail is lease_and_refuse else "the consumer reported a failure")
        page.click("button", "Redrive all…")
        page.click("dialog button.primary", "Redrive")
        page.count("ready", 1)
        with connect(server.address, consumer="socket-1") as client:
            [again] = client.lease("mail")
            assert again.id == id
            assert json.loads(again.payload) == {"to": "ann"}
            client.ack(again.lease_id)
        page.count("done", 1)
        assert page.api.counts("mail")["acked"] == 1
        assert list(shown) == []
