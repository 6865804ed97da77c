"""Whole servers on several machines before the same queues: any door of any node, and nodes that die."""

import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd import EtcdCluster
from tests.support.etcd_servers import Served, served
from tests.support.http_queues import WebQueues
from tests.support.server_process import run_command, until
from tests.support.stomp_server import LiveClient
from yirangmq.client.connect import connect
from yirangmq.core.errors import QueueError, QuotaExceeded

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def two(etcd: EtcdCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """For those who do no harm to them."""
    with served(tmp_path_factory.mktemp("two"), etcd.endpoints, "main", lease=30) as made:
        yield made


def test_served_queue_published_by_socket_at_one_node_is_consumed_over_http_at_the_other(
    two: Served, queue: str
) -> None:
    with connect(two.address("a", "tcp")) as here, connect(two.nodes["b"].address) as there:
        sent = [here.publish(queue, {"n": number}).id for number in range(20)]
        with WebQueues(two.port("b", "http")) as web:
            got = web.lease(queue, limit=20, wait=30)
            assert [one.id for one in got] == sent
            assert web.ack_many([one.lease_id for one in got[:10]]) == [None] * 10
        assert there.ack_many([one.lease_id for one in got[10:]]) == [None] * 10
        assert here.counts(queue).acked == there.counts(queue).acked == 20


def test_stomp_client_of_a_follower_consumes_acks_and_publishes(two: Served, queue: str) -> None:
    client = LiveClient(two.port("b", "stomp")).connect()
    try:
        client.confirm(client.line.subscribe, f"/queue/{queue}", id="1", ack="client-individual")
        with connect(two.address("a", "tcp")) as here:
            here.publish(queue, {"to": "bob"})
            [message] = client.messages(1)
            assert message.body == b'{"to":"bob"}'
            client.ack(message)
            until(lambda: here.counts(queue).acked == 1)
            client.send(f"/queue/{queue}-back", b"done")
            [back] = here.lease(f"{queue}-back", wait=30)
            assert back.payload == b"done"
    finally:
        client.close()


def test_cli_commands_find_the_node_that_leads(two: Served, queue: str, tmp_path: Path) -> None:
    done = run_command(tmp_path, "publish", "-q", queue, '{"n":1}', "--store", two.url)
    assert done.returncode == 0, done.stderr
    shown = run_command(tmp_path, "status", "--store", two.url, "--json")
    assert shown.returncode == 0, shown.stderr
    assert queue in shown.stdout
    told = run_command(tmp_path, "cluster", "leader", "--store", two.url, "--json")
    assert json.loads(told.stdout)["served"]["leader"] == two.leader()


def test_cli_commands_open_a_store_in_etcd_that_has_no_server(etcd: EtcdCluster, queue: str, tmp_path: Path) -> None:
    url = f"etcd://{etcd.endpoints[0]}?name={queue}"
    for words in (["publish", "-q", queue, '{"n":1}'], ["consume", "-q", queue, "--max", "1"], ["check"]):
        done = run_command(tmp_path, *words, "--store", url)
        assert done.returncode == 0, (words, done.stderr)


def test_served_queue_takes_in_messages_put_by_etcdctl(two: Served, etcd: EtcdCluster, queue: str) -> None:
    for key, text in (("p/ann/k1", '{"n":1}'), ("producer/k2", "plain"), ("i/ann/k1", '{"n":1}'), ("p/ann/k1", "new")):
        root = "queue" if key.startswith("producer") else "q"
        etcd.ctl("put", f"/{root}/{queue}/{key}", text)
    with connect(two.address("b", "tcp")) as there:
        got = [there.lease(queue, wait=60)[0] for _ in range(3)]
        assert {one.payload for one in got} == {b'{"n":1}', b"plain", b"new"}
        assert there.ack_many([one.lease_id for one in got]) == [None] * 3
        until(lambda: not etcd.ctl("get", "--prefix", "--keys-only", f"/q/{queue}/").strip())
        assert there.lease(queue) == []


def test_served_store_reports_the_keys_of_etcd_clients_that_it_ignores(
    two: Served, etcd: EtcdCluster, queue: str, tmp_path: Path
) -> None:
    """A name that no served queue can have, and a consumer's key: both belong to dispatched queues."""
    keys = {f"/q/{queue}작업/p/ann/k": f"/q/{queue}작업/", f"/q/{queue}/c/me/": f"/q/{queue}/c/me/"}
    for key in keys:
        etcd.ctl("put", key, "1")
    try:
        leader = two.nodes[two.leader()]
        with connect(leader.address) as client:
            until(lambda: "\nyirangmq_cluster_ignored_keys 2\n" in client.call("metrics"))
            assert client.call("status")["cluster"]["ignoredKeys"] == 2
        reasons = {one["key"]: one["reason"] for one in leader.events() if one["event"] == "etcd_key_ignored"}
        assert set(reasons) == set(keys.values())
        assert "a served queue cannot have this name" in reasons[f"/q/{queue}작업/"]
        told = run_command(tmp_path, "cluster", "status", "--store", two.url, "--json")
        assert json.loads(told.stdout)["ignored"] == [{"key": key, "reason": reasons[key]} for key in sorted(reasons)]
    finally:
        for key in keys:
            etcd.ctl("del", key)


def test_served_and_dispatched_queues_exclude_each_other_in_one_etcd(
    two: Served, etcd: EtcdCluster, queue: str, tmp_path: Path
) -> None:
    here = f"etcd://{etcd.endpoints[0]}"
    done = run_command(tmp_path, "cluster", "serve", "--store", here)
    assert done.returncode == 4
    assert "serves the queues of this etcd" in done.stderr
    etcd.ctl("put", f"/q/{queue}/s", "{}")
    try:
        done = run_command(tmp_path, "serve", "--store", here, "--data", str(tmp_path / "d"))
        assert done.returncode == 4
        assert f"dispatched by nodes of `yirangmq cluster serve`: {queue}" in done.stderr
    finally:
        etcd.ctl("del", f"/q/{queue}/s")


def test_served_queue_loses_nothing_confirmed_when_the_leader_is_killed_under_load(
    etcd: EtcdCluster, queue: str, tmp_path: Path
) -> None:
    with served(tmp_path, etcd.endpoints, queue, lease=8) as nodes:
        first = nodes.leader()
        heir = nodes.other(first)
        confirmed: list[str] = []
        enough, stop = threading.Event(), threading.Event()

        def produce(name: str) -> None:
            with connect(nodes.addresses, consumer=name, retries=300) as client:
                while not stop.is_set():
                    made = client.publish_many(queue, [{"n": number} for number in range(10)])
                    confirmed.extend(receipt.id for receipt in made)
                    if len(confirmed) > 300:
                        enough.set()

        producers = [threading.Thread(target=produce, args=(f"p{number}",)) for number in range(2)]
        for one in producers:
            one.start()
        assert enough.wait(60)
        nodes.nodes[first].kill()
        before = len(confirmed)
        assert nodes.leader(first) == heir
        until(lambda: len(confirmed) > before + 100)
        stop.set()
        for one in producers:
            one.join(60)
        seen: Counter[str] = Counter()
        with connect(nodes.nodes[heir].address) as client:
            while len(seen) < len(set(confirmed)):
                got = client.lease(queue, limit=200, wait=90)
                assert got, "something is missing"
                seen.update(one.id for one in got)
                assert client.ack_many([one.lease_id for one in got]) == [None] * len(got)
            assert client.lease(queue) == []
        assert set(confirmed) <= set(seen)
        assert set(seen.values()) == {1}


def test_fencing_stops_a_leader_that_slept_and_its_leases_outlive_it(
    etcd: EtcdCluster, queue: str, tmp_path: Path
) -> None:
    with served(tmp_path, etcd.endpoints, queue, lease=6) as nodes:
        first = nodes.leader()
        heir = nodes.other(first)
        with connect(nodes.address(first, "tcp"), consumer="ann") as client:
            for number in range(30):
                client.publish(queue, number)
            held = client.lease(queue, limit=10, lease_seconds=3600, wait=30)
        process = nodes.nodes[first].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        assert nodes.leader(first) == heir
        with connect(nodes.address(heir, "tcp"), consumer="ann", retries=100) as client:
            assert client.counts(queue).leased == 10
            assert client.ack_many([one.lease_id for one in held[:5]]) == [None] * 5
            process.send_signal(signal.SIGCONT)
            with connect(nodes.address(first, "tcp"), consumer="ann", retries=100) as woken:
                assert woken.ack_many([one.lease_id for one in held[5:]]) == [None] * 5
                more = woken.lease(queue, limit=100, wait=30)
                assert len(more) == 20
                assert woken.ack_many([one.lease_id for one in more]) == [None] * 20
            counts = client.counts(queue)
            assert (counts.acked, counts.ready, counts.leased) == (30, 0, 0)
        assert nodes.leader() == heir


def test_served_node_killed_releases_the_leases_of_its_clients_and_a_stopped_leader_hands_over(
    etcd: EtcdCluster, queue: str, tmp_path: Path
) -> None:
    with served(tmp_path, etcd.endpoints, queue, lease=60) as nodes:
        first = nodes.leader()
        other = nodes.other(first)
        client = LiveClient(nodes.port(other, "stomp")).connect()
        with connect(nodes.addresses, retries=300) as queues:
            queues.publish(queue, 1)
            client.confirm(client.line.subscribe, f"/queue/{queue}", id="1", ack="client-individual")
            client.messages(1)
            nodes.nodes[other].kill()
            [again] = queues.lease(queue, wait=60)
            assert again.lease_id.endswith("-2")
            queues.release(again.lease_id)
            nodes.start(other)
            assert nodes.nodes[first].stop() == 0
            assert nodes.leader(first) == other  # long before its lease would have ended
        with connect(nodes.nodes[other].address, retries=300) as queues:
            assert queues.counts(queue).ready == 1
        client.close()


def test_quota_refuses_publishing_while_etcd_is_nearly_full(etcd: EtcdCluster, queue: str, tmp_path: Path) -> None:
    """As far as this server knows: it was told of a smaller quota than etcd has."""
    nodes = Served(tmp_path, etcd.endpoints, queue, lease=30)
    nodes.url += "&quota=20000"
    try:
        nodes.start("a")
        with connect(nodes.nodes["a"].address, retries=100) as client:

            def is_refused() -> bool:
                try:
                    client.publish(queue, 1)
                except QuotaExceeded:
                    return True
                return False

            until(is_refused)
            waiting = client.counts(queue).ready
            got = client.lease(queue, limit=1000)
            assert len(got) == waiting
            assert client.ack_many([one.lease_id for one in got]) == [None] * waiting
    finally:
        nodes.kill()


def test_served_node_refuses_unsupported_options_and_addresses(tmp_path: Path) -> None:
    for words in (["--topics", "here"], ["--max-store-bytes", "1"], ["--cluster-listen", "nowhere"]):
        done = run_command(tmp_path, "serve", "--store", "etcd://127.0.0.1:1", *words)
        assert done.returncode == 2, done.stderr
    with pytest.raises(QueueError):
        connect("etcd://127.0.0.1:1")
