"""Servers before one store in etcd while members of etcd and servers die, freeze and hang under load: nothing that was
confirmed is lost, nothing that was acked comes back, and the others go on."""

import signal
import threading
from pathlib import Path

import pytest

from tests.cluster.load import RETRIES, load
from tests.support.etcd import EtcdCluster
from tests.support.etcd_servers import PATIENCE, served
from tests.support.server_process import until
from yirangmq.client.connect import connect

pytestmark = pytest.mark.process


def test_served_queue_loses_nothing_when_the_etcd_leader_and_then_the_leading_server_is_killed(
    etcds: EtcdCluster, queue: str, tmp_path: Path
) -> None:
    with served(tmp_path, etcds.endpoints, queue, lease=5) as nodes, load(nodes.addresses, queue) as work:
        work.goes_on()
        etcds.leader().kill()
        work.goes_on()
        first = nodes.leader()
        nodes.nodes[first].kill()
        heir = nodes.leader(first)
        assert heir == nodes.other(first)
        work.goes_on()
        work.finish()
        with connect(nodes.nodes[heir].address, retries=100) as client:
            until(lambda: client.counts(queue).leased == 0)  # by a call whose answer died with the first
            counts = client.counts(queue)
            assert (counts.ready, counts.dead) == (0, 0)
            assert counts.published == counts.acked == len(set(work.confirmed))


def test_leader_election_replaces_a_leader_that_hangs_though_its_etcd_lease_lives(
    etcd: EtcdCluster, queue: str, tmp_path: Path
) -> None:
    more, program = "&watchdog=3", "tests.cluster.hanging"
    with served(tmp_path, etcd.endpoints, queue, lease=600, more=more, program=program) as nodes:
        first = nodes.leader()
        heir = nodes.other(first)
        told: list[str] = []

        def publish_at_the_one_that_hangs() -> None:
            with connect(nodes.address(first, "tcp"), retries=RETRIES) as client:
                told.append(client.publish(queue, {"text": "late"}).id)

        with load(nodes.address(heir, "tcp"), queue) as work:
            work.goes_on()
            process = nodes.nodes[first].process
            assert process is not None
            process.send_signal(signal.SIGUSR1)
            until((tmp_path / first / "hangs").exists)
            late = threading.Thread(target=publish_at_the_one_that_hangs)
            late.start()
            assert nodes.leader(first) == heir
            work.goes_on()
            (tmp_path / first / "wake").touch()
            late.join(PATIENCE)
            work.confirmed += told
            work.finish()
        assert len(told) == 1
        with connect(nodes.addresses, retries=RETRIES) as client:
            assert client.counts(queue).published == len(set(work.confirmed))
        assert "store_leadership_released_hung" in [one["event"] for one in nodes.nodes[first].events()]
