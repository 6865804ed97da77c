"""Servers before one store in etcd while members of etcd and servers die, freeze and hang under load: nothing that was
confirmed is lost, nothing that was acked comes back, and the others go on."""

from pathlib import Path

import pytest

from tests.cluster.etcds import Etcds
from tests.cluster.load import load
from tests.cluster.served import served
from tests.scenarios.daemons import until
from yirangmq.client.open import connect

pytestmark = pytest.mark.process


def test_the_leader_of_etcd_is_killed_and_then_the_leading_server(etcds: Etcds, queue: str, tmp_path: Path) -> None:
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
            assert counts.acked >= len(set(work.confirmed))
