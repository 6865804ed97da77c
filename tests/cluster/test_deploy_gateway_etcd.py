"""The gateway of ``deploy/gateway-etcd``, started from its files: three members of etcd and two nodes with the
listeners, programs, routes, files by date and alerts of the pair; a machine dies under STOMP load, nothing is lost."""

from pathlib import Path
from typing import Any

import pytest

from tests.failover.test_deploy_pair import exchange, refusal
from tests.support.deployed import Gateway, gateway
from tests.support.server_process import until
from tests.support.stomp_load import Load
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect
from yirangmq.cluster.etcd.address import read_address
from yirangmq.config.config import load
from yirangmq.core.errors import QueueError
from yirangmq.format.journal_line import payload_of
from yirangmq.format.json_codec import loads
from yirangmq.stores.etcd.store import find_current_leader

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
NODES, MEMBERS = ("1", "2"), ("1", "2", "3")


def leader(found: Gateway) -> str:
    """The number of the node that leads, or ""."""
    document = loads((found.root / "node-1" / "gateway.json").read_bytes())
    try:
        seen = find_current_leader(read_address(load(document, {}, {}).store_url, {}))
    except QueueError:
        return ""
    return "" if seen is None else seen.node.removeprefix("gateway-")


def key(record: dict[str, Any]) -> tuple[int, str]:
    """Which message it is of. The killed node may have written a line whose commit never came, with the same number as
    another message has now; it is cut off when that node leads again."""
    return record["seq"], record["messageId"]


def test_deploy_gateway_etcd_files_lose_nothing_when_a_machine_dies_under_stomp_load(tmp_path: Path) -> None:
    """Machine 1 or 2, whichever leads, dies with its member of etcd. S-31: each message that was confirmed is
    DELIVERED, byte for byte, and stands in the files by date of the nodes."""
    with gateway("gateway-etcd", tmp_path) as found:
        members = {number: found.member("gateway-etcd", number) for number in MEMBERS}
        try:
            for member in members.values():
                member.start()
            until(lambda: all(member.is_well() for member in members.values()), PATIENCE)
            for number in NODES:
                found.start(number)
            until(lambda: leader(found) in NODES, PATIENCE)
            for number in NODES:  # a connection to the node that does not lead is passed on
                exchange(found, number)
                assert refusal(found.client(number, "JETCO"), "/queue/EPSCO").startswith("not_allowed")
            until(lambda: any("client_refused" in mail for mail in found.mail.mails))

            dies = leader(found)
            lives = next(number for number in NODES if number != dies)
            running = Load("/queue/JETCO").start(found.place("ATMH"), found.place("JETCO"))
            try:
                until(lambda: len(running.sent) >= 100)
                found.nodes[dies].kill()
                members[dies].kill()
                before = len(running.sent)
                until(lambda: len(running.sent) >= before + 100, PATIENCE)
                assert leader(found) == lives
                running.stop_producing()
                until(lambda: running.missing == 0, PATIENCE)
                with connect(found.nodes[lives].address) as client:
                    until(lambda: not client.counts("JETCO").leased, PATIENCE)
            finally:
                running.stop()
            assert set(running.got) == set(running.sent.values()), "nothing is lost, changed or made up"

            records = [one for number in NODES for _, one in found.records(number)]
            delivered = {key(one) for one in records if one.get("delivery") == "DELIVERED"}
            told = {payload_of(one) for one in records if one["record"] == "accepted" and key(one) in delivered}
            assert set(running.sent.values()) <= told

            # The machine comes back, and leads again when the other one is stopped.
            members[dies].start()
            found.start(dies)
            assert found.nodes[lives].stop() == 0
            until(lambda: leader(found) == dies, PATIENCE)
            exchange(found, dies)
            with connect(found.nodes[dies].address) as client:
                assert client.call("files_check")["findings"] == []
        finally:
            for member in members.values():
                member.kill()
