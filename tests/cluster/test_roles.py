"""A cluster with users: each may do what its role says, through our producer, consumer and node, and no more."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.etcd import QUICK, EtcdCluster, play, with_user
from tests.support.etcd_servers import served
from tests.support.server_process import run_command
from tests.support.wait import PATIENCE, soon
from yirangmq.cli import output
from yirangmq.client.connect import connect
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.cluster.admin import as_commands, roles_of, server_role
from yirangmq.cluster.clients import EtcdConsumer, Producer
from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.cluster.etcd.client import Etcd
from yirangmq.cluster.keys import Keys
from yirangmq.cluster.node import ClusterNode, ClusterNodeSettings
from yirangmq.core.errors import NotAllowed

pytestmark = pytest.mark.process


def cli(etcds: EtcdCluster, *words: str) -> bytes:
    store = f"etcd://{','.join(etcds.endpoints)}"
    command = [sys.executable, "-m", "yirangmq", "cluster", "roles", *words, "--store", store]
    return subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE).stdout


def set_up(etcds: EtcdCluster, queue: str) -> None:
    """Twice is the same as once."""
    names = ["--producer", "ann", "--consumer", "bob"]
    assert cli(etcds, "apply", queue, *names) == cli(etcds, "apply", queue, *names)
    for user, role in (
        ("root", "root"),
        ("node", "yirangmq-node"),
        ("ann", f"yirangmq-{queue}-producer-ann"),
        ("bob", f"yirangmq-{queue}-consumer-bob"),
    ):
        etcds.ctl("user", "add", f"{user}:{user}-word")
        if user == "root":
            etcds.ctl("role", "add", "root")
        etcds.ctl("user", "grant-role", user, role)
    etcds.ctl("auth", "enable")


def store(etcds: EtcdCluster, name: str) -> str:
    return f"etcd://{etcds.endpoints[0]}?name={name}"


def test_etcd_roles_allow_producer_consumer_and_node_their_work_and_no_more(tmp_path: Path, queue: str) -> None:
    async def game(etcds: EtcdCluster) -> None:
        import asyncio

        def of(user: str) -> EtcdAddress:
            return EtcdAddress(endpoints=tuple(etcds.endpoints), user=user, password=f"{user}-word")

        stop = asyncio.Event()
        keys = Keys(queue)
        async with Etcd(of("node")) as nodes, Etcd(of("ann")) as ann, Etcd(of("bob")) as bob:
            settings = ClusterNodeSettings(name="here", poll=0.05, compact=0.05)
            node = ClusterNode(nodes, of("node"), SystemClock(), TimeOrderedIds(), settings)
            task = asyncio.ensure_future(node.run(stop))
            producer = Producer(ann, queue, "ann", TimeOrderedIds())
            async with EtcdConsumer(bob, queue, "bob") as consumer:
                await producer.publish_many([b"1", b"2"])
                taken: list[bytes] = []
                async for batch in consumer.batches():
                    taken += [one.value for one in batch]
                    await consumer.ack(batch)
                    if len(taken) == 2:
                        break
                assert taken == [b"1", b"2"]

                async def is_drained() -> bool:
                    found = await nodes.range(keys.base + b"0", keys.ordered_end, count_only=True)
                    return bool(found.count == 0)

                await soon(is_drained)
            for client, key in ((ann, keys.inbox("joe", "k")), (ann, keys.home("ann")), (bob, keys.inbox("bob", "k"))):
                with pytest.raises(NotAllowed):
                    await client.put(key, b"")
            for client, key in ((bob, keys.home("joe")), (bob, keys.leader), (ann, keys.ordered(1, b""))):
                with pytest.raises(NotAllowed):
                    await client.delete(key)
            stop.set()
            await task

    with EtcdCluster(tmp_path / "etcd", flags=QUICK) as cluster:
        set_up(cluster, queue)
        play(game(cluster))


def test_etcd_roles_are_sufficient_for_servers_and_refuse_other_stores(queue: str, tmp_path: Path) -> None:
    with EtcdCluster(tmp_path / "etcd", flags=QUICK) as cluster:
        cli(cluster, "apply", "--server", "main", "--server", "shop")
        with_user(cluster, tmp_path, "root", "root")
        word = with_user(cluster, tmp_path, "server", "yirangmq-server")
        keeper = with_user(cluster, tmp_path, "keeper", "yirangmq-server-shop")
        cluster.ctl("auth", "enable")
        with (
            served(tmp_path / "nodes", cluster.endpoints, "main", lease=60, more=word) as nodes,
            connect(nodes.addresses, retries=300) as client,
        ):
            client.publish(queue, "one")
            cluster.ctl("put", f"/q/{queue}/p/ann/k", "two", "--user", "root:root-word")
            got = [client.lease(queue, wait=PATIENCE)[0] for _ in range(2)]
            assert {one.payload for one in got} == {b'"one"', b"two"}
            first = nodes.leader()
            assert nodes.nodes[first].stop() == 0
            assert nodes.leader(first) == nodes.other(first)
            assert client.ack_many([one.lease_id for one in got]) == [None] * 2
        done = run_command(tmp_path, "publish", "-q", queue, "1", "--store", store(cluster, "shop") + keeper)
        assert done.returncode == output.OK, done.stderr
        for words, name in ((["publish", "-q", queue, "1"], "main"), (["serve"], "other")):
            refused = run_command(tmp_path, *words, "--store", store(cluster, name) + keeper)
            assert refused.returncode == output.EXIT_CODES["not_allowed"], (words, refused.stderr)
            assert "permission denied" in refused.stderr


def test_etcd_roles_are_printed_as_commands_of_etcdctl() -> None:
    assert as_commands([server_role("main"), server_role("shop")]) == [
        "etcdctl role add yirangmq-server",
        "etcdctl role grant-permission --prefix=true yirangmq-server readwrite /yirangmq/main/",
        "etcdctl role grant-permission --prefix=true yirangmq-server readwrite /q/",
        "etcdctl role grant-permission --prefix=true yirangmq-server readwrite /queue/",
        "etcdctl role add yirangmq-server-shop",
        "etcdctl role grant-permission --prefix=true yirangmq-server-shop readwrite /yirangmq/shop/",
    ]
    assert as_commands(roles_of("jobs", [], ["bob"], references=True))[5:] == [
        "etcdctl role grant-permission --prefix=true yirangmq-jobs-consumer-bob readwrite /q/jobs/c/bob/",
        "etcdctl role grant-permission --prefix=true yirangmq-jobs-consumer-bob readwrite /queue/jobs/consumer/bob/",
        "etcdctl role grant-permission --prefix=true yirangmq-jobs-consumer-bob read /q/jobs/0",
    ]
    assert as_commands(roles_of("jobs", ["ann"], [])) == [
        "etcdctl role add yirangmq-node",
        "etcdctl role grant-permission --prefix=true yirangmq-node readwrite /q/",
        "etcdctl role grant-permission --prefix=true yirangmq-node readwrite /queue/",
        "etcdctl role grant-permission yirangmq-node read /yirangmq/main/leader",
        "etcdctl role add yirangmq-jobs-producer-ann",
        "etcdctl role grant-permission --prefix=true yirangmq-jobs-producer-ann write /q/jobs/p/ann/",
        "etcdctl role grant-permission yirangmq-jobs-producer-ann read /q/jobs/s",
    ]
