"""The gateway of ``deploy/pair``, started from its files: two nodes with a witness, programs and routes over STOMP,
files by date in days of Hong Kong, alerts by mail and by command."""

from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import stomp

from tests.support.deployed import PROGRAMS, STRANGER, Gateway, gateway
from tests.support.pair import INTERVAL
from tests.support.server_process import until
from tests.support.stomp_server import LiveClient
from yirangmq import QueueError
from yirangmq.client.connect import connect
from yirangmq.format.journal_line import payload_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
HONG_KONG = ZoneInfo("Asia/Hong_Kong")
FASTER = {"YIRANGMQ_PAIR_INTERVAL_SECONDS": str(INTERVAL), "YIRANGMQ_PAIR_COOLDOWN_SECONDS": str(2 * INTERVAL)}
BODIES = [bytes(range(256)), b"\0\n\0", '{"amount": 5, "이름": "한"}'.encode(), b"", b"x" * 100_000]


def works(found: Gateway, number: str) -> bool:
    try:
        with connect(found.nodes[number].address, retries=0, timeout=10) as client:
            return bool(client.call("pair_status")["works"])
    except (QueueError, OSError):
        return False


def exchange(found: Gateway, number: str) -> None:
    """Each allowed route carries any bytes unchanged; the consumer acknowledges them."""
    for source, target in (("ATMH", "JETCO"), ("JETCO", "ATMH"), ("ATMH", "EPSCO"), ("EPSCO", "ATMH")):
        producer, consumer = found.client(number, source), found.client(number, target)
        consumer.confirm(consumer.line.subscribe, f"/queue/{target}", id="1", ack="client-individual")
        for body in BODIES:
            producer.send(f"/queue/{target}", body)
        got = consumer.messages(len(BODIES))
        assert [message.body for message in got] == BODIES
        for message in got:
            consumer.ack(message)
        producer.close()
        consumer.close()


def refusal(client: LiveClient, destination: str) -> str:
    client.line.send(destination, b"1", headers={"receipt": "r"})
    until(lambda: client.heard.errors)
    return str(client.heard.errors[0].headers["message"])


def test_deploy_pair_files_make_a_whole_gateway(tmp_path: Path) -> None:
    """S-19 (the connect test finds a killed node gone), and the parts of a gateway together."""
    with gateway("pair", tmp_path) as found:
        found.start("1", **FASTER)
        until(lambda: works(found, "1"))
        found.wait_for_stomp("1")
        found.start("2", **FASTER)

        days = {datetime.now(HONG_KONG).date().isoformat()}
        exchange(found, "1")
        days.add(datetime.now(HONG_KONG).date().isoformat())
        assert (tmp_path / "srv" / "yirangmq-witness" / "gateway").read_text().count("gateway-1")

        # Routes and the allow-list.
        assert refusal(found.client("1", "JETCO"), "/queue/EPSCO").startswith("not_allowed")
        for program, source in (("ATMH", STRANGER), ("JETCO", PROGRAMS["ATMH"])):
            with pytest.raises(stomp.exception.ConnectFailedException):
                found.client("1", program, source=source)
        until(lambda: any("client_refused" in mail for mail in found.mail.mails))
        assert found.mail.encrypted == [True] * len(found.mail.mails)
        assert not any("client_refused" in page for page in found.pages), "a WARNING; a page is for what is CRITICAL"

        # Files by date.
        records = found.records("1")
        assert {day for day, _ in records} <= days
        accepted = [one for _, one in records if one["record"] == "accepted"]
        assert [payload_of(one) for one in accepted] == BODIES * 4
        outcomes = [one for _, one in records if one["record"] == "outcome"]
        assert [one["delivery"] for one in outcomes] == ["DELIVERED"] * len(accepted)

        # The active node dies.
        found.nodes["1"].kill()
        until(lambda: works(found, "2"))
        found.wait_for_stomp("2")
        exchange(found, "2")
        until(lambda: any(" CRITICAL peer_silent " in page and '"gateway-2"' in page for page in found.pages))
        until(lambda: any("gateway-2" in mail and "takeover" in mail for mail in found.mail.mails))
        assert "gateway-2" in (tmp_path / "srv" / "yirangmq-witness" / "gateway").read_text()
        with connect(found.nodes["2"].address) as client:
            took_over = [line["evidence"] for line in client.call("pair_history") if line["event"] == "took-over"]
            assert any({"3 connection", "witness"} <= {step for step, _ in evidence} for evidence in took_over)
