"""Nodes, consumers and members of etcd that die, freeze and wake, as real processes: nothing is lost, and only what a
consumer had worked on and not yet acked is worked on twice."""

import asyncio
from pathlib import Path

import pytest

from tests.cluster.troupe import AT_ONCE, Troupe, doubled
from tests.support.etcd import EtcdCluster, at, keys_of, play
from tests.support.wait import soon
from yirangmq.core.errors import Unavailable

pytestmark = pytest.mark.process
MESSAGES = 600


def test_cluster_leader_killed_loses_and_repeats_no_message(etcd: EtcdCluster, tmp_path: Path, queue: str) -> None:
    async def evil(troupe: Troupe) -> None:
        async with at(*etcd.endpoints) as client:
            leader = await troupe.leader(client)
            troupe.kill(leader)
            assert await troupe.leader(client, leader) != leader

    with Troupe(etcd, tmp_path, queue) as troupe:
        assert doubled(play(troupe.perform(MESSAGES, evil))) == 0


def test_cluster_leader_that_sleeps_past_its_lease_and_wakes_loses_and_repeats_no_message(
    etcd: EtcdCluster, tmp_path: Path, queue: str
) -> None:
    async def evil(troupe: Troupe) -> None:
        async with at(*etcd.endpoints) as client:
            leader = await troupe.leader(client)
            troupe.stop(leader)
            await troupe.leader(client, leader)
            troupe.wake(leader)

    with Troupe(etcd, tmp_path, queue) as troupe:
        assert doubled(play(troupe.perform(MESSAGES, evil))) == 0
        assert "node-0" in troupe.processes
        assert all(process.poll() is None for process in troupe.processes.values())


def test_cluster_leader_key_deleted_by_hand_loses_and_repeats_no_message(
    etcd: EtcdCluster, tmp_path: Path, queue: str
) -> None:
    async def evil(troupe: Troupe) -> None:
        async with at(*etcd.endpoints) as client:
            for _ in range(3):
                await troupe.leader(client)
                etcd.ctl("del", f"/q/{queue}")

    with Troupe(etcd, tmp_path, queue) as troupe:
        assert doubled(play(troupe.perform(MESSAGES, evil))) == 0


def test_cluster_consumer_killed_repeats_at_most_its_unacked_batch(
    etcd: EtcdCluster, tmp_path: Path, queue: str
) -> None:
    async def evil(troupe: Troupe) -> None:
        troupe.kill("worker-0")

    with Troupe(etcd, tmp_path, queue) as troupe:
        assert doubled(play(troupe.perform(MESSAGES, evil))) <= AT_ONCE


def test_cluster_consumer_that_freezes_and_wakes_repeats_at_most_its_unacked_batch(
    etcd: EtcdCluster, tmp_path: Path, queue: str
) -> None:
    async def evil(troupe: Troupe) -> None:
        troupe.stop("worker-0")
        async with at(*etcd.endpoints) as client:

            async def is_taken_back() -> bool:
                return await keys_of(client, troupe.keys.home("worker-0")) == []

            await soon(is_taken_back, what="the end of its lease, and of what it had")
        troupe.wake("worker-0")

    with Troupe(etcd, tmp_path, queue) as troupe:
        assert doubled(play(troupe.perform(MESSAGES, evil))) <= AT_ONCE


def test_etcd_leader_killed_and_restarted_loses_and_repeats_no_message(
    etcds: EtcdCluster, tmp_path: Path, queue: str
) -> None:
    async def evil(troupe: Troupe) -> None:
        leader = etcds.leader()
        leader.kill()
        await asyncio.to_thread(etcds.leader)
        leader.start()

    with Troupe(etcds, tmp_path, queue) as troupe:
        assert doubled(play(troupe.perform(MESSAGES, evil))) == 0


@pytest.mark.slow
def test_etcd_follower_killed_loses_and_repeats_no_message(etcds: EtcdCluster, tmp_path: Path, queue: str) -> None:
    async def evil(troupe: Troupe) -> None:
        leader = etcds.leader()
        next(member for member in etcds.members if member is not leader).kill()

    with Troupe(etcds, tmp_path, queue) as troupe:
        assert doubled(play(troupe.perform(MESSAGES, evil))) == 0


@pytest.mark.slow
def test_etcd_members_all_killed_and_restarted_lose_and_repeat_no_message(
    etcds: EtcdCluster, tmp_path: Path, queue: str
) -> None:
    async def evil(troupe: Troupe) -> None:
        for member in etcds.members:
            member.kill()
        async with at(*etcds.endpoints) as client:
            with pytest.raises(Unavailable):
                await client.get(troupe.keys.leader)
        for member in etcds.members:
            member.start()

    with Troupe(etcds, tmp_path, queue) as troupe:
        assert doubled(play(troupe.perform(MESSAGES, evil))) == 0


@pytest.mark.slow
def test_cluster_mixed_kills_of_members_nodes_and_consumers_repeat_only_unacked_batches(
    etcds: EtcdCluster, tmp_path: Path, queue: str
) -> None:
    """Members, leading nodes and consumers, one after the other; what dies is started anew."""

    async def evil(troupe: Troupe) -> None:
        async with at(*etcds.endpoints) as client:
            for turn in range(3):
                member = await asyncio.to_thread(etcds.leader)
                member.kill()
                await asyncio.to_thread(etcds.leader)
                node = await troupe.leader(client)
                troupe.kill(node)
                worker = f"worker-{turn % 2}"
                troupe.kill(worker)
                await troupe.leader(client, node)
                member.start()
                troupe.start_node(node)
                troupe.start_worker(worker)
                await asyncio.to_thread(etcds.wait_well)

    with Troupe(etcds, tmp_path, queue) as troupe:
        assert doubled(play(troupe.perform(5 * MESSAGES, evil))) <= 3 * AT_ONCE
