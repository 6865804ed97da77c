"""Each sink with somebody real at its other end: a mail server, a web server, a program."""

import asyncio
import hashlib
import hmac
import json
import sys
from email import message_from_string, policy
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.parts import NOTICE
from tests.alerts.smtp import MailServer, mail_server
from tests.support.credentials import certificate, server_context
from tests.support.wait import soon
from tests.support.webhook_endpoint import endpoint, status
from yirangmq.alerts.outbox import Channel, Outbox, create_channel
from yirangmq.clock import SystemClock
from yirangmq.core.alert_settings import read_settings
from yirangmq.core.backoff import Backoff
from yirangmq.core.webhook import read_networks
from yirangmq.webhooks.webhooks import read_secret


def box_of(folder: Path, give_up: float = 3600, networks: str = "any", **sink: Any) -> Outbox:
    [made] = read_settings({"sinks": [sink]}).sinks
    way: Channel = create_channel(made, lambda name: read_secret(folder, name), read_networks(networks))
    return Outbox(made, way, give_up, lambda: None, SystemClock().now_ms)


def mail_to(server: MailServer, **more: Any) -> dict[str, Any]:
    ends = {"from": "mq@example.org", "to": ["ops@example.org", "boss@example.org"]}
    return {"kind": "email", "host": "localhost", "port": server.port, "tls": "off", "timeoutSec": 60, **ends, **more}


# -- e-mail -----------------------------------------------------------------------------------------------------------


def test_alert_mail_is_readable_by_people_and_by_programs(tmp_path: Path) -> None:
    async def main() -> None:
        async with mail_server() as server:
            outcome = await box_of(tmp_path, **mail_to(server)).attempt(NOTICE)
        assert outcome.trouble == ""
        [text] = server.mails
        mail = message_from_string(text, policy=policy.default)
        assert mail["Subject"] == "[CRITICAL] gateway-1: opened: nothing left: é"
        assert mail["Auto-Submitted"] == "auto-generated"
        assert server.recipients == ["TO:<ops@example.org>", "TO:<boss@example.org>"]
        words, attached = mail.iter_parts()
        assert "yirangmq alert ack 17" in words.get_content()
        assert json.loads(attached.get_content()) == NOTICE

    asyncio.run(main())


def test_outgoing_networks_hold_for_mail_and_webhook_sinks(tmp_path: Path) -> None:
    async def main() -> None:
        async with mail_server() as server, endpoint() as there:

            async def tried(networks: str, sink: dict[str, Any]) -> str:
                box = box_of(tmp_path, networks=networks, **sink)
                outcome = await box.attempt(NOTICE)
                box.close()
                return outcome.trouble

            for sink in (mail_to(server), {"kind": "webhook", "url": there.url}):
                assert "in none of the networks of outgoing_networks" in await tried("10.0.0.0/8", sink)
                assert await tried("127.0.0.0/8,::1", sink) == ""
            elsewhere = {"kind": "webhook", "url": "http://169.254.169.254/latest/meta-data/"}
            for sink in (elsewhere, {**mail_to(server), "host": "169.254.169.254"}):
                assert "link-local" in await tried("any", sink)
        assert (len(server.mails), len(there.sent)) == (1, 1)

    asyncio.run(main())


def test_alert_mail_with_starttls_logs_in_only_to_a_trusted_server(tmp_path: Path) -> None:
    made, _ = certificate(tmp_path)
    (tmp_path / "smtp").write_text("pass word\n")

    async def main() -> None:
        async with mail_server(server_context(tmp_path), ("mq", "pass word")) as server:
            sink = mail_to(server, tls="starttls", user="mq", secret="smtp", caFile=str(made))
            outcome = await box_of(tmp_path, **sink).attempt(NOTICE)
            assert outcome.trouble == ""
            assert server.encrypted == [True]
            (tmp_path / "smtp").write_text("another\n")
            outcome = await box_of(tmp_path, **sink).attempt(NOTICE)
            assert "535" in outcome.trouble
            stranger = box_of(tmp_path, **{**sink, "caFile": ""})
            assert "certificate" in (await stranger.attempt(NOTICE)).trouble.lower()
        assert server.logins == [("mq", "pass word"), ("mq", "another")], "no password to a server that is not known"

    asyncio.run(main())


def test_alert_mail_with_tls_from_the_first_byte_logs_in_only_to_a_trusted_server(tmp_path: Path) -> None:
    """As on port 465."""
    made, _ = certificate(tmp_path)
    (tmp_path / "smtp").write_text("pass word\n")

    async def main() -> None:
        async with mail_server(server_context(tmp_path), ("mq", "pass word"), is_tls_first=True) as server:
            sink = mail_to(server, tls="tls", user="mq", secret="smtp", caFile=str(made))
            assert (await box_of(tmp_path, **sink).attempt(NOTICE)).trouble == ""
            assert (len(server.mails), server.encrypted, server.logins) == (1, [True], [("mq", "pass word")])
            stranger = box_of(tmp_path, **{**sink, "caFile": ""})
            assert "certificate" in (await stranger.attempt(NOTICE)).trouble.lower()
        assert len(server.logins) == 1, "no password to a server that is not known"

    asyncio.run(main())


def test_alert_mail_to_a_silent_server_times_out_without_blocking_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with mail_server() as server:
            server.is_mute = True
            box = box_of(tmp_path, **mail_to(server, timeoutSec=0.3))
            turns = 0
            asked = asyncio.create_task(box.attempt(NOTICE))
            while not asked.done():
                turns += 1
                await asyncio.sleep(0)
            assert "within 0.3 seconds" in asked.result().trouble or "cannot be used" in asked.result().trouble
            assert turns > 10, "the loop stood still"

    asyncio.run(main())


def test_alert_sink_retries_a_failed_notice_and_counts_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yirangmq.alerts.outbox.BACKOFF", Backoff(first=0.01, limit=1.0))

    async def main() -> None:
        async with mail_server() as server:
            server.refuses = 2
            box = box_of(tmp_path, **mail_to(server))
            box.put(NOTICE)
            box.wake()
            await soon(lambda: box.sent == 1)
            assert (box.failed, box.lost, len(server.mails)) == (2, 0, 1)
            await soon(lambda: not box.pending)

    asyncio.run(main())


def test_alert_sink_gives_up_a_notice_that_fails_for_too_long_and_counts_it(tmp_path: Path) -> None:
    async def main() -> None:
        box = box_of(tmp_path, 0, kind="webhook", url="http://127.0.0.1:1/")
        box.put(NOTICE)
        box.wake()
        await soon(lambda: box.lost == 1)
        await soon(lambda: not box.pending)
        assert box.describe()["lastError"].startswith("the webhook cannot be reached")

    asyncio.run(main())


def test_alert_sink_that_takes_nothing_keeps_a_bounded_number_of_notices(tmp_path: Path) -> None:
    async def main() -> None:
        box = box_of(tmp_path, kind="command", run=["true"])
        for number in range(250):
            box.put({**NOTICE, "at": str(number)})
        assert (len(box.pending), box.lost) == (200, 50)
        assert [box.pending[0]["at"], box.pending[-1]["at"]] == ["50", "249"]

    asyncio.run(main())


# -- webhook ----------------------------------------------------------------------------------------------------------


def test_alert_webhook_gets_the_notice_as_signed_json(tmp_path: Path) -> None:
    (tmp_path / "chat").write_text("hush\n")

    async def main() -> None:
        async with endpoint() as there:
            box = box_of(tmp_path, kind="webhook", url=there.url, secret="chat", headers={"X-Room": "ops"})
            assert (await box.attempt(NOTICE)).trouble == ""
            there.answer = status(500, body=b"not now")
            assert (await box.attempt(NOTICE)).trouble == "the webhook answered 500: not now"
            box.close()
        sent = there.sent[0]
        assert json.loads(sent.body) == NOTICE
        assert (sent.headers["X-Room"], sent.headers["X-MQ-Notice"], sent.headers["X-MQ-Alert"]) == (
            "ops",
            "opened",
            "17",
        )
        stamp = sent.headers["X-MQ-Timestamp"].encode()
        wanted = hmac.new(b"hush", stamp + b"." + sent.body, hashlib.sha256).hexdigest()
        assert sent.headers["X-MQ-Signature"] == f"sha256={wanted}"

    asyncio.run(main())


def test_alert_webhook_with_a_missing_secret_file_reports_it(tmp_path: Path) -> None:
    async def main() -> None:
        box = box_of(tmp_path, kind="webhook", url="http://127.0.0.1:1/", secret="gone")
        assert "gone cannot be read" in (await box.attempt(NOTICE)).trouble

    asyncio.run(main())


# -- command ----------------------------------------------------------------------------------------------------------


def test_alert_command_gets_the_notice_on_stdin_and_its_arguments_unchanged(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    program = (
        "import json, os, sys; level = os.environ['YIRANGMQ_ALERT_LEVEL'];"
        "json.dump([sys.argv[1:], json.load(sys.stdin), level], open(sys.argv[1], 'w'))"
    )

    async def main() -> None:
        words = [sys.executable, "-c", program, str(kept), "; rm -rf $HOME"]
        box = box_of(tmp_path, kind="command", run=words, timeoutSec=60)
        assert (await box.attempt(NOTICE)).trouble == ""
        assert json.loads(kept.read_text()) == [[str(kept), "; rm -rf $HOME"], NOTICE, "CRITICAL"]

    asyncio.run(main())


def test_alert_command_that_fails_hangs_or_is_missing_is_reported(tmp_path: Path) -> None:
    async def main() -> None:
        failing = box_of(tmp_path, kind="command", run=["sh", "-c", "echo out of paper >&2; exit 3"], timeoutSec=60)
        assert (await failing.attempt(NOTICE)).trouble == "sh ended with 3: out of paper"
        mark = tmp_path / "mark"
        hanging = box_of(
            tmp_path, kind="command", run=["sh", "-c", f"(sleep 100; touch {mark}) & wait"], timeoutSec=0.3
        )
        assert (await hanging.attempt(NOTICE)).trouble == "no answer within 0.3 seconds"
        missing = box_of(tmp_path, kind="command", run=[str(tmp_path / "nothing")])
        assert "cannot be run" in (await missing.attempt(NOTICE)).trouble
        deaf = box_of(tmp_path, kind="command", run=["true"], timeoutSec=60)
        assert (await deaf.attempt(NOTICE)).trouble == ""

    asyncio.run(main())
