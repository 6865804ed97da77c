"""One message through every door: the command line, HTTP, the dashboard, the socket."""

import json
from pathlib import Path

import pytest

from tests.dashboard.chromium import Browser
from tests.dashboard.conftest import http_url, looking
from tests.scenarios.daemons import daemon, run_command
from yirangmq.client.open import connect

pytestmark = pytest.mark.process


def test_publish_by_command_lease_over_http_redrive_in_the_dashboard_ack_over_the_socket(
    browser: Browser, tmp_path: Path
) -> None:
    with daemon(tmp_path, "--http", "127.0.0.1:0") as server:
        page = next(shown := looking(browser, http_url(server)))
        page.open().live()
        page.find(".empty", "No queues yet")
        told = run_command(tmp_path, "publish", "--queue", "mail", '{"to": "ann"}', f"--store={server.url}")
        assert told.returncode == 0, told.stderr
        page.click("a.queue-name", "mail")
        page.count("ready", 1)
        [taken] = page.api.lease("mail", consumer="printer-1")
        assert taken["message"]["payload"] == {"to": "ann"}
        page.count("leased", 1)
        leases = [taken["lease"]["leaseId"]]
        page.api("POST", "queues/mail/nack", {"leases": leases, "reason": "REJECTED", "text": "no paper"})
        page.count("dead", 1)
        page.click(".tabs a", "Dead letters")
        page.find("td", "no paper")
        page.click("button", "Redrive all…")
        page.click("dialog button.primary", "Redrive")
        page.count("ready", 1)
        with connect(server.address, consumer="socket-1") as client:
            [again] = client.lease("mail")
            assert again.id == taken["message"]["messageId"]
            assert json.loads(again.payload) == {"to": "ann"}
            client.ack(again.lease_id)
        page.count("done", 1)
        assert page.api.counts("mail")["acked"] == 1
        assert list(shown) == []
