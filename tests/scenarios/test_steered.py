"""A real server told to pause, to stay small, to tell of itself; killed and started again."""

from pathlib import Path

import pytest

from tests.support.server_process import daemon, run_command, until
from yirangmq.client.connect import connect
from yirangmq.core.errors import QuotaExceeded
from yirangmq.observe.prometheus import METRICS

pytestmark = pytest.mark.process
PARTS = ("topic_", "feed_", "subscriber", "bridge_", "stomp_", "pair_", "cluster_", "alert")
OF_OTHER_DOORS = tuple(f"yirangmq_{part}" for part in PARTS)
"""Told where these are in use, or something came of them."""


def test_pause_survives_a_server_kill_and_waiting_consumers_are_served_on_resume(tmp_path: Path) -> None:
    with daemon(tmp_path) as server:
        with connect(server.address) as client:
            client.publish("mail", 1)
            assert client.pause("mail") is True
        server.kill()
        server.start()
        with connect(server.address) as waiting, connect(server.address) as client:
            assert client.lease("mail") == []
            with waiting.subscribe("mail", idle=30) as pushed:
                client.publish("mail", 2)
                assert client.counts("mail").ready == 2
                assert client.resume("mail") is True
                assert sorted(next(pushed).value() for _ in range(2)) == [1, 2]


def test_metrics_of_a_server_are_all_those_documented_and_a_dead_letter_is_an_event(tmp_path: Path) -> None:
    with daemon(tmp_path) as server, connect(server.address) as client:
        client.set_policy("mail", {"retry": {"limit": 0}, "quota": {"maxMessages": 5}})
        client.publish_many("mail", [b"x" * 100] * 4)
        one, two, three = client.lease("mail", 3)
        client.extend(one.lease_id)
        client.ack(one.lease_id)
        client.nack(two.lease_id, "HANDLER_ERROR")
        client.release(three.lease_id)
        client.drop("mail", [three.id])
        with pytest.raises(QuotaExceeded):
            client.publish_many("mail", [1] * 6)
        text = run_command(tmp_path, "metrics", "--store", server.address).stdout
        told = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
        rest = {name for name in set(METRICS) - told if not name.startswith(OF_OTHER_DOORS)}
        assert rest == {  # nobody was sent away or refused, and no queue has a strategy
            *("yirangmq_sent_away_total", "yirangmq_clients_refused_total", "yirangmq_deliveries_total")
        }
        [died] = [event for event in server.events() if event["event"] == "messages_dead_lettered"]
        assert (died["level"], died["queue"], died["reason"], died["count"]) == ("info", "mail", "HANDLER_ERROR", 1)


def test_max_store_bytes_refuses_publishes_above_it_until_messages_are_acked(tmp_path: Path) -> None:
    with daemon(tmp_path, "--max-store-bytes", "4MiB") as server, connect(server.address) as client:
        client.set_policy("mail", {"archive": {"enabled": False}, "tombstoneSec": 0})

        def is_refused() -> bool:
            try:
                client.publish_many("mail", [b"x" * 10_000] * 20)
                return False
            except QuotaExceeded as error:
                return error.retry_after == 5

        until(is_refused)
        health = client.call("health")
        assert (health["status"], [reason["code"] for reason in health["reasons"]]) == ("degraded", ["quota_exceeded"])
        while taken := client.lease("mail", 100):
            client.ack([delivery.lease_id for delivery in taken])
        until(lambda: not is_refused())
