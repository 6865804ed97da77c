"""A served store when its etcd gets full: by what is published here, and by what others put there."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.etcd import QUICK, EtcdCluster, at, play, with_user
from tests.support.etcd_servers import Served, served
from tests.support.server_process import run_command, until
from tests.support.wait import soon
from yirangmq.cli import output
from yirangmq.client.connect import connect
from yirangmq.cluster.etcd.address import QUOTA as NOBODY_SAID
from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.cluster.etcd.maintenance import Gauges, Maintenance, fetch_gauges, read_gauges
from yirangmq.cluster.etcd.quota import effective_quota
from yirangmq.core.errors import QueueError, QuotaExceeded, StoreFull

pytestmark = pytest.mark.process
QUOTA = 8 * 1024**2
FLAGS = ["--quota-backend-bytes", str(QUOTA)]


def refused(work: Callable[[], object]) -> QueueError | None:
    try:
        work()
    except QueueError as error:
        return error
    return None


def fill(etcd: EtcdCluster) -> None:
    """Somebody else puts keys of theirs, until there is no room for more, nor any to be made."""

    async def put_on() -> None:
        numbers = itertools.count()
        async with at(*etcd.endpoints) as client:
            upkeep = Maintenance(EtcdAddress(endpoints=tuple(etcd.endpoints)), client.connection)

            async def is_full_of_data() -> bool:
                try:
                    for _ in range(20):
                        await client.put(b"/others/%d" % next(numbers), bytes(20_000))
                except StoreFull:
                    found = await upkeep.health(etcd.endpoints[0])
                    return found.in_use >= 0.85 * found.size
                return False

            await soon(is_full_of_data)

    play(put_on())


def test_quota_shown_by_etcd_members_stops_publishing_in_time_and_not_consuming(queue: str, tmp_path: Path) -> None:
    """Nobody told the server of it, nor may it ask as root; and what is in the store can still be consumed."""
    with EtcdCluster(tmp_path / "etcd", flags=[*FLAGS, *QUICK]) as etcd:
        nodes = Served(tmp_path / "nodes", etcd.endpoints, queue, lease=30)
        done = run_command(tmp_path, "cluster", "roles", "apply", "--server", queue, "--store", nodes.url)
        assert done.returncode == output.OK, done.stderr
        root = nodes.url + with_user(etcd, tmp_path, "root", "root")
        nodes.url += with_user(etcd, tmp_path, "server", f"yirangmq-server-{queue}")
        etcd.ctl("auth", "enable")
        try:
            nodes.start("a")
            with connect(nodes.nodes["a"].address, retries=100) as client:
                until(lambda: isinstance(refused(lambda: client.publish(queue, "x" * 20_000)), QuotaExceeded))
                waiting = client.counts(queue).ready
                taken = 0
                while taken < waiting:
                    got = client.lease(queue, limit=200, wait=30)
                    assert client.ack_many([one.lease_id for one in got]) == [None] * len(got)
                    taken += len(got)
                done = run_command(tmp_path, "cluster", "repair", "--store", root)
                assert done.returncode == output.OK, done.stderr
                until(lambda: refused(lambda: client.publish(queue, "again")) is None)
        finally:
            nodes.kill()


def test_etcd_that_is_full_refuses_with_a_clear_error_and_continues_after_the_repair(
    queue: str, tmp_path: Path
) -> None:
    with (
        EtcdCluster(tmp_path / "etcd", flags=FLAGS) as etcd,
        served(tmp_path / "nodes", etcd.endpoints, queue, lease=60) as nodes,
        connect(nodes.addresses, retries=100) as client,
    ):
        client.publish_many(queue, [{"n": number} for number in range(20)])
        held = client.lease(queue, limit=5, lease_seconds=3600)
        before = client.counts(queue)
        fill(etcd)
        until(lambda: isinstance(refused(lambda: client.publish(queue, 1)), StoreFull))  # before: the quota
        for what, work in (
            ("publish", lambda: client.publish(queue, 1)),
            ("lease", lambda: client.lease(queue)),
            ("ack", lambda: client.ack(held[0].lease_id)),
            ("nack", lambda: client.nack(held[1].lease_id)),
        ):
            error = refused(work)
            assert isinstance(error, StoreFull), what
            assert "yirangmq cluster repair" in str(error)
        assert client.counts(queue) == before
        unwell = run_command(tmp_path, "cluster", "doctor", "--store", nodes.url)
        assert unwell.returncode == output.UNHEALTHY
        assert "fail: alarm" in unwell.stdout
        etcd.ctl("del", "--prefix", "/others/")
        done = run_command(tmp_path, "cluster", "repair", "--store", nodes.url)
        assert done.returncode == output.OK, done.stderr
        until(lambda: refused(lambda: client.publish(queue, 1)) is None)
        first = nodes.leader()
        nodes.nodes[first].stop()  # whoever leads next has nothing but what is in etcd
        assert nodes.leader(first) == nodes.other(first)
        assert client.ack_many([one.lease_id for one in held]) == [None] * 5
        rest = client.lease(queue, limit=100, wait=30)
        assert len(rest) == 16
        assert client.ack_many([one.lease_id for one in rest]) == [None] * 16
        counts = client.counts(queue)
        assert (counts.published, counts.acked, counts.ready, counts.leased) == (21, 21, 0, 0)


def test_cli_cluster_repair_that_does_not_help_advises_a_larger_quota(tmp_path: Path) -> None:
    """All that is in it is in use."""
    with EtcdCluster(tmp_path / "etcd", flags=FLAGS) as etcd:
        [member] = etcd.members

        def start_with(quota: int) -> None:
            member.kill()
            member.start("--quota-backend-bytes", str(quota))
            until(lambda: asyncio.run(fetch_gauges(member.endpoint, EtcdAddress(endpoints=()))).quota == quota)

        for number in range(4):
            etcd.ctl("put", f"/others/{number}", given=b"x" * 1_000_000)
        start_with(2 * 1024**2)
        url = f"etcd://{member.endpoint}"
        done = run_command(tmp_path, "cluster", "repair", "--store", url)
        assert done.returncode == output.UNHEALTHY, done.stderr
        assert "larger --quota-backend-bytes" in done.stdout
        with pytest.raises(AssertionError, match="database space exceeded"):
            etcd.ctl("put", "/others/more", "1")
        start_with(QUOTA)
        done = run_command(tmp_path, "cluster", "repair", "--store", url)
        assert done.returncode == output.OK, done.stderr
        etcd.ctl("put", "/others/more", "1")


def test_etcd_gauges_are_read_from_the_metrics_page_of_a_member() -> None:
    page = b"""# TYPE etcd_server_quota_backend_bytes gauge
etcd_server_quota_backend_bytes 1.6777216e+07
etcd_mvcc_db_total_size_in_bytes 20480
etcd_mvcc_db_total_size_in_use_in_bytes NaN
"""
    assert read_gauges(page) == Gauges(16 * 1024**2, 20_480, 0)
    assert read_gauges(b"\xff etcd_server_quota_backend_bytes\netcd_server_quota_backend_bytes x") == Gauges()


@pytest.mark.parametrize(
    ("shown", "told", "chosen"), [(0, 5, 5), (3, 5, 3), (9, 5, 5), (0, NOBODY_SAID, NOBODY_SAID), (9, NOBODY_SAID, 9)]
)
def test_quota_of_etcd_is_the_smaller_of_the_shown_and_the_configured(shown: int, told: int, chosen: int) -> None:
    assert effective_quota(shown, told) == chosen
