"""Messages pushed to a webhook: what is sent, what each answer means, and who else is harmed (nobody)."""

import asyncio
import hashlib
import hmac
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.credentials import client_context, server_context
from tests.support.pages import code_blocks
from tests.support.wait import soon
from tests.support.webhook_endpoint import FINE, Endpoint, Sent, Site, endpoint, run, status

PAGE = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()

QUICK = {"limit": 2, "initialDelaySec": 0, "maxDelaySec": 0}


def test_webhook_posts_a_message_and_acks_it() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        await site.set_policy("mail", webhook={"url": there.url, "headers": {"X-Shop": "7"}})
        [id] = await site.publish("mail", {"to": "ann"}, type="letter\n%", trace_id="t")
        await soon(lambda: site.counts().done == 1)
        [sent] = there.sent
        assert sent.line == "POST /hook?x=1 HTTP/1.1"
        assert sent.body == b'{"to":"ann"}'
        headers = sent.headers
        assert headers["Host"] == f"127.0.0.1:{there.port}"
        assert (headers["X-MQ-Queue"], headers["X-MQ-Message-Id"], headers["X-MQ-Attempt"]) == ("mail", id, "1")
        assert (headers["Content-Type"], headers["X-Shop"]) == ("application/json", "7")
        assert (headers["X-MQ-Type"], headers["X-MQ-Trace-Id"]) == ("letter%0A%25", "t")
        assert "X-MQ-Signature" not in headers

    run(main)


def test_webhook_sends_any_bytes_unchanged_and_signed() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        body = bytes(range(256))
        await site.set_policy("mail", webhook={"url": there.url, "secret": "shop"})
        await site.publish("mail", body, content_type="image/png")
        await soon(lambda: site.counts().done == 1)
        [sent] = there.sent
        assert (sent.body, sent.headers["Content-Type"]) == (body, "image/png")
        signed = sent.headers["X-MQ-Timestamp"].encode() + b"." + body
        wanted = "sha256=" + hmac.new(b"hush", signed, hashlib.sha256).hexdigest()
        assert sent.headers["X-MQ-Signature"] == wanted

    run(main)


def test_webhook_signature_check_in_the_docs_is_correct() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        await site.set_policy("mail", webhook={"url": there.url, "secret": "shop"})
        await site.publish("mail", {"to": "ann"})
        await soon(lambda: site.counts().done == 1)
        [sent] = there.sent
        [program] = code_blocks(PAGE, "python")
        names: dict[str, Any] = {}
        exec(program, names)
        is_genuine = names["is_genuine"]
        assert is_genuine(b"hush", sent.headers, sent.body)
        assert not is_genuine(b"guess", sent.headers, sent.body)
        assert not is_genuine(b"hush", sent.headers, sent.body + b" ")
        assert not is_genuine(b"hush", {**sent.headers, "X-MQ-Timestamp": "1"}, sent.body)

    run(main)


def test_tls_certificate_of_a_webhook_is_verified(tmp_path: Path) -> None:
    async def main() -> None:
        async with endpoint(server_context(tmp_path)) as there:
            url = f"https://localhost:{there.port}/"
            trusting, wary = Site(tls=lambda: client_context(tmp_path)), Site()
            for site in (trusting, wary):
                site.start()
                await site.set_policy("mail", webhook={"url": url}, retry={"limit": 0})
                await site.publish("mail", 1)
            await soon(lambda: trusting.counts().done == 1 and wary.counts().dead == 1)
            assert "certificate" in str(wary.rows()[0]["lastError"])
            for site in (trusting, wary):
                site.webhooks.abort()

    asyncio.run(main())


def test_webhook_pushes_the_backlog_over_at_most_its_concurrency_of_connections() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        await site.publish("mail", *range(50))
        await site.set_policy("mail", webhook={"url": there.url, "concurrency": 3})
        await soon(lambda: site.counts().done == 50)
        assert sorted(int(sent.body) for sent in there.sent) == list(range(50))
        assert there.connections <= 3

    run(main)


def test_webhook_concurrency_limits_the_requests_in_flight() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        gate = asyncio.Event()

        async def wait(sent: Sent) -> bytes:
            await gate.wait()
            return FINE

        there.answer = wait
        await site.set_policy("mail", webhook={"url": there.url, "concurrency": 3})
        await site.publish("mail", *range(10))
        await soon(lambda: there.at_once == 3)
        assert site.counts().leased == 3
        gate.set()
        await soon(lambda: site.counts().done == 10)
        assert there.most_at_once == 3

    run(main)


@pytest.mark.parametrize("number", [400, 404, 410, 422])
def test_webhook_permanent_error_makes_a_dead_letter_at_once(number: int) -> None:
    async def main(site: Site, there: Endpoint) -> None:
        there.answer = status(number, body=b"no such street")
        await site.set_policy("mail", webhook={"url": there.url})
        [id] = await site.publish("mail", 1)
        await soon(lambda: site.counts().dead == 1)
        failure = site.failure("mail", id)
        assert failure.reason_code == "REJECTED"
        assert failure.reason_message == f"the webhook answered {number}: no such street"
        assert len(there.sent) == 1

    run(main)


@pytest.mark.parametrize("number", [301, 302, 408, 425, 500, 502])
def test_webhook_temporary_error_is_retried_by_the_policy(number: int) -> None:
    async def main(site: Site, there: Endpoint) -> None:
        there.answer = status(number, f"Location: {there.url}")
        await site.set_policy("mail", webhook={"url": there.url}, retry=QUICK)
        [id] = await site.publish("mail", 1)
        await soon(lambda: site.counts().dead == 1)
        assert [sent.headers["X-MQ-Attempt"] for sent in there.sent] == ["1", "2", "3"]
        assert site.failure("mail", id).reason_code == "HANDLER_ERROR"

    run(main)


def test_webhook_retry_delivers_when_the_endpoint_recovers() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        answers = [status(500, "Connection: close"), b"", b"nonsense\r\n\r\n", FINE]
        there.answer = lambda sent: answers.pop(0)
        await site.set_policy("mail", webhook={"url": there.url}, retry={**QUICK, "limit": 9})
        await site.publish("mail", 1)
        await soon(lambda: site.counts().done == 1)
        assert answers == []
        [row] = site.rows()
        assert (row["delivered"], row["failed"], row["lastStatus"], row["lastError"]) == (1, 3, 204, None)

    run(main)


@pytest.mark.parametrize("number", [429, 503])
def test_retry_after_delays_the_message_and_the_queue(number: int) -> None:
    async def main(site: Site, there: Endpoint) -> None:
        there.answer = status(number, "Retry-After: 100")
        await site.set_policy("mail", webhook={"url": there.url, "concurrency": 1}, retry=QUICK)
        [first, _] = await site.publish("mail", 1, 2)
        await soon(lambda: site.counts().delayed == 1)
        [row] = site.rows()
        assert 90 < row["heldSec"] <= 100
        due = site.desk.read(lambda work: work.by_id("mail", [first])[0]).due_at  # type: ignore[union-attr]
        assert 90_000 < due - site.clock.now_ms() <= 100_000
        assert site.counts().ready == 1
        assert len(there.sent) == 1

    run(main)


def test_webhook_timeout_fails_the_message_with_reason_timeout() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        async def never(sent: Sent) -> bytes:
            await asyncio.Event().wait()
            return b""

        there.answer = never
        await site.set_policy("mail", webhook={"url": there.url, "timeoutSec": 0.05}, retry={"limit": 0})
        [id] = await site.publish("mail", 1)
        await soon(lambda: site.counts().dead == 1)
        assert site.failure("mail", id).reason_code == "TIMEOUT"

    run(main)


def test_webhook_of_a_slow_endpoint_delays_no_other_queue() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        gate = asyncio.Event()

        async def wait(sent: Sent) -> bytes:
            if sent.headers["X-MQ-Queue"] == "slow":
                await gate.wait()
            return FINE

        there.answer = wait
        for queue in ("slow", "mail"):
            await site.set_policy(queue, webhook={"url": there.url})
        await site.publish("slow", *range(20))
        await soon(lambda: there.at_once == 4)
        await site.publish("mail", *range(20))
        await soon(lambda: site.counts("mail").done == 20)
        assert site.counts("slow").done == 0
        gate.set()
        await soon(lambda: site.counts("slow").done == 20)

    run(main)


def test_lease_extension_covers_a_webhook_request_in_flight() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        gate = asyncio.Event()

        async def wait(sent: Sent) -> bytes:
            await gate.wait()
            return FINE

        there.answer = wait
        await site.set_policy("mail", webhook={"url": there.url}, visibilityTimeoutSec=2)
        [id] = await site.publish("mail", 1)
        await soon(lambda: there.at_once == 1)

        def due() -> int:
            card = site.desk.read(lambda work: work.by_id("mail", [id])[0])
            return card.due_at if card is not None else 0

        first = due()
        await soon(lambda: due() > first + 2000)
        gate.set()
        await soon(lambda: site.counts().done == 1)
        assert len(there.sent) == 1

    run(main)


def test_webhook_backoff_of_a_failing_endpoint_limits_the_dead_letters_of_a_full_queue() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        there.answer = status(500)
        retry = {"limit": 0, "backoff": "fixed", "initialDelaySec": 1000, "maxDelaySec": 1000}
        await site.set_policy("mail", webhook={"url": there.url, "concurrency": 2}, retry=retry)
        await site.publish("mail", *range(100))
        await soon(lambda: bool(site.rows()[0]["heldSec"]))
        assert 30 < site.rows()[0]["heldSec"] <= 60
        await soon(lambda: site.desk.is_idle)
        assert site.counts().dead <= 3

    run(main)


def test_keep_alive_connection_closed_by_the_endpoint_is_not_counted_as_a_failure() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        answers = [FINE, b"", FINE]
        there.answer = lambda sent: answers.pop(0)
        await site.set_policy("mail", webhook={"url": there.url, "concurrency": 1})
        await site.publish("mail", 1, 2)
        await soon(lambda: site.counts().done == 2)
        assert (site.rows()[0]["failed"], there.connections) == (0, 2)

    run(main)


def test_webhook_endpoint_that_cannot_be_reached_is_the_reason_of_the_failure() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://localhost:{free.getsockname()[1]}/"
        await site.set_policy("mail", webhook={"url": url}, retry={"limit": 0})
        [id] = await site.publish("mail", 1)
        await soon(lambda: site.counts().dead == 1)
        assert "cannot be reached" in site.failure("mail", id).reason_message

    run(main)


# -- policies ---------------------------------------------------------------------------------------------------------


def test_webhook_removed_from_the_policy_pushes_no_more() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        await site.set_policy("mail", webhook={"url": there.url})
        await site.publish("mail", 1)
        await soon(lambda: site.counts().done == 1)
        await site.set_policy("mail")
        await soon(lambda: site.rows() == [])
        await site.publish("mail", 2)
        await soon(lambda: site.desk.is_idle)
        assert (site.counts().ready, len(there.sent)) == (1, 1)

    run(main)


def test_webhook_url_change_lets_requests_to_the_old_url_finish() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        gate = asyncio.Event()

        async def wait(sent: Sent) -> bytes:
            if sent.line.startswith("POST /hook"):
                await gate.wait()
            return FINE

        there.answer = wait
        await site.set_policy("mail", webhook={"url": there.url})
        await site.publish("mail", "old")
        await soon(lambda: there.at_once == 1)
        await site.set_policy("mail", webhook={"url": there.url.replace("hook", "new")})
        await site.publish("mail", "new")
        await soon(lambda: site.counts().done == 1)
        gate.set()
        await soon(lambda: site.counts().done == 2)
        assert [sent.line.split()[1][:5] for sent in there.sent] == ["/hook", "/new?"]

    run(main)


def test_pause_of_a_queue_stops_its_webhook_until_resume() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        await site.set_policy("mail", webhook={"url": there.url}, paused=True)
        await site.publish("mail", 1)
        await soon(lambda: site.desk.is_idle)
        assert there.sent == []
        await site.set_policy("mail", webhook={"url": there.url})
        await soon(lambda: site.counts().done == 1)

    run(main)


def test_webhook_secret_missing_holds_the_messages_and_is_reported() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        await site.set_policy("mail", webhook={"url": there.url, "secret": "lost"})
        await site.publish("mail", 1)
        await soon(lambda: bool(site.rows()))
        [row] = site.rows()
        assert (row["queue"], row["lastError"]) == ("mail", "there is no secret 'lost'")
        assert site.counts().ready == 1
        site.secrets["lost"] = b"found"
        await site.set_policy("other")  # any change of a policy makes it look again
        await soon(lambda: site.counts().done == 1)
        assert "X-MQ-Signature" in there.sent[0].headers

    run(main)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_drain_of_webhooks_finishes_requests_in_flight_and_starts_no_more() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        gate = asyncio.Event()

        async def wait(sent: Sent) -> bytes:
            await gate.wait()
            return FINE

        there.answer = wait
        await site.set_policy("mail", webhook={"url": there.url, "concurrency": 1})
        await site.publish("mail", 1, 2)
        await soon(lambda: there.at_once == 1)
        site.webhooks.stop()
        assert not site.webhooks.is_idle
        gate.set()
        await soon(lambda: site.webhooks.is_idle and site.desk.is_idle)
        assert (site.counts().done, site.counts().ready) == (1, 1)

    run(main)


def test_drain_timeout_returns_unfinished_messages_without_counting_the_attempt() -> None:
    async def main(site: Site, there: Endpoint) -> None:
        async def never(sent: Sent) -> bytes:
            await asyncio.Event().wait()
            return b""

        there.answer = never
        await site.set_policy("mail", webhook={"url": there.url})
        [id] = await site.publish("mail", 1)
        await soon(lambda: there.at_once == 1)
        site.webhooks.stop()
        site.webhooks.abort()
        await soon(lambda: site.webhooks.is_idle and site.desk.is_idle)
        card: Any = site.desk.read(lambda work: work.by_id("mail", [id])[0])
        assert (card.state, card.attempt) == ("ready", 0)

    run(main)


def test_webhook_addresses_are_limited_by_outgoing_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refused address is never called; of several addresses of one name only the allowed ones are."""

    async def main() -> None:
        async with endpoint() as there:
            strict, usual = Site(networks="10.0.0.0/8"), Site()
            for site in (strict, usual):
                site.start()
            await strict.set_policy("mail", webhook={"url": there.url}, retry={"limit": 0})
            await strict.publish("mail", {"to": "ann"})
            await soon(lambda: strict.counts().dead == 1)
            assert "in none of the networks of outgoing_networks" in str(strict.rows())
            assert there.connections == 0

            async def both(host: str, port: int, **more: Any) -> list[Any]:
                return [(0, 0, 0, "", (address, port)) for address in ("169.254.169.254", "127.0.0.1")]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
            await usual.set_policy("mail", webhook={"url": f"http://rebound.example:{there.port}/"}, retry={"limit": 0})
            await usual.publish("mail", {"to": "ann"})
            await soon(lambda: usual.counts().done == 1)
            assert [sent.headers["Host"] for sent in there.sent] == [f"rebound.example:{there.port}"]
            for site in (strict, usual):
                site.webhooks.stop()

    asyncio.run(main())
