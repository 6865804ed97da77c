"""The same consumer at the other end of a socket: work, control, and a server that dies under it."""

import signal
from collections import Counter
from pathlib import Path

import pytest

import yirangmq
from tests.consumer.processes import process, server
from tests.support.consumer import Blocking, running
from tests.support.wait import until
from yirangmq.client.sync_client import Client
from yirangmq.consumer.consumer import Consumer
from yirangmq.consumer.delivery import HandlerDelivery
from yirangmq.consumer.settler import ConsumerSummary

pytestmark = pytest.mark.process


def connect(folder: Path) -> Client:
    client = yirangmq.connect(f"unix:{folder / 'mq.sock'}")
    assert isinstance(client, Client)
    return client


def test_consumer_over_a_socket_handles_every_message_once_and_sends_the_outcomes(tmp_path: Path) -> None:
    with server(tmp_path), connect(tmp_path) as client:
        sent = [stored.id for stored in client.publish_many("mail", list(range(200)))]
        handled: list[str] = []
        consumer = Consumer(f"unix:{tmp_path / 'mq.sock'}", concurrency=4, name="worker-1")

        @consumer.handler("mail", prefetch=20)
        def handle(delivery: HandlerDelivery) -> None:
            handled.append(delivery.id)
            if delivery.value() == 13:
                raise yirangmq.Reject("unlucky")

        assert consumer.run(until_empty=True) == ConsumerSummary(done=199, rejected=1)
        assert sorted(handled) == sorted(sent)
        assert (client.counts("mail").done, client.counts("mail").dead) == (199, 1)


def test_consumer_over_a_socket_is_paused_resumed_and_drained_through_the_server(tmp_path: Path) -> None:
    with server(tmp_path), connect(tmp_path) as client:
        slow = Blocking()
        consumer = Consumer(client, name="worker-1")
        consumer.handler("mail", prefetch=3)(slow)
        with running(consumer) as run:
            client.publish_many("mail", [1, 2, 3, 4])
            slow.wait_begun()
            until(lambda: client.counts("mail").leased == 4)
            with process(
                tmp_path, "consumer", "pause", "worker-1", "--wait", "30", "--store", "unix:mq.sock"
            ) as asking:
                assert asking.ended()[:2] == (0, "asked 1 consumer to pause\n")
            assert client.consumer_list()[0]["state"] == "paused"
            until(lambda: client.counts("mail").ready == 3)
            slow.go.set()
            until(lambda: client.counts("mail").done == 1)
            assert len(slow.begun) == 1
            client.consumer_wish("worker-1", "resume")
            until(lambda: client.counts("mail").done == 4)
            client.consumer_wish("worker-1", "drain")
            assert run.ended().done == 4
        assert client.consumer_list() == []
        assert client.counts("mail").leased == 0


def test_consumer_over_a_socket_loses_and_repeats_nothing_when_the_server_is_killed_and_restarted(
    tmp_path: Path,
) -> None:
    handled: list[str] = []
    slow = Blocking()
    with server(tmp_path) as first, connect(tmp_path) as client:
        sent = [stored.id for stored in client.publish_many("mail", list(range(50)))]
        consumer = Consumer(client, concurrency=2, name="worker-1")

        @consumer.handler("mail")
        def handle(delivery: HandlerDelivery) -> None:
            slow(delivery)
            handled.append(delivery.id)

        with running(consumer) as run:
            slow.wait_begun(2)
            first.signal(signal.SIGKILL)
            first.ended()
            slow.go.set()
            with server(tmp_path):
                until(lambda: client.counts("mail").done == 50)
                assert Counter(handled) == Counter(sent), "results that were on their way are delivered, not done again"
                until(lambda: [card["consumerId"] for card in client.consumer_list()] == ["worker-1"])
                consumer.stop()
                assert run.ended().lost == 0
