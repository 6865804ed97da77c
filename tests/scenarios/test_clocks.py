"""Whole servers whose wall clock is set by an hour while they run, or between two runs (docs/guarantees.md, Clocks)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.clock import HOUR, WallClock
from tests.support.http_queues import WebQueues
from tests.support.server_process import Daemon, run_command, until
from tests.support.stomp_server import LiveClient
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect
from yirangmq.format.envelope import NewMessage

pytestmark = pytest.mark.process
HERE = "127.0.0.1:0"
LONG = 600
"""Seconds of a lease or a delay that must not end by a clock that is set forward by an hour."""
SHORT = 0.5
"""Seconds of one that must end, although the clock is set back by an hour."""
SOON = 300
"""Seconds that two readings of one clock may lie apart; far less than an hour."""


@contextmanager
def served(folder: Path, clock: WallClock, store: str = "sqlite") -> Iterator[Daemon]:
    url = f"{store}:{folder / 'd' / 'queue.db'}" if store == "sqlite" else f"{store}:{folder / 'd' / 'queues'}"
    (folder / "d").mkdir(exist_ok=True)
    server = Daemon(folder, "--store", url, "--http", HERE, "--stomp", HERE)
    try:
        yield server.start(**clock.env)
    finally:
        server.kill()


def seconds(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()


def set_clock(clock: WallClock, http: WebQueues, by: int) -> None:
    """Set it, and wait until new messages bear its time."""
    clock.set(clock.seconds + by)

    def is_seen() -> bool:
        id = http.publish("probe", 1).id
        stamp = http.get("GET", f"/v1/queues/probe/messages/{id}")["message"]["timestamp"]
        return abs(seconds(stamp) - clock.now()) < SOON

    until(is_seen)


@pytest.mark.parametrize(("store", "by"), [("sqlite", -HOUR), ("files", HOUR)], ids=["sqlite-back", "files-forward"])
def test_clock_set_while_a_server_runs_moves_no_lease_and_no_delay(tmp_path: Path, store: str, by: int) -> None:
    clock = WallClock(tmp_path)
    with served(tmp_path, clock, store) as server, WebQueues(server.port_of("http")) as http:
        stomp = LiveClient(server.port_of("stomp")).connect()
        with connect(server.address) as socket:
            socket.set_policy("again", {"retry": {"initialDelaySec": SHORT}})
            socket.set_policy("stomp", {"visibilityTimeoutSec": LONG})
            for queue in ("socket", "http", "again", "lapses", "stomp"):
                socket.publish(queue, {"n": 1})
            socket.publish("later", NewMessage(payload=2, delay=LONG))
            socket.publish("lives", NewMessage(payload=2, ttl=LONG))
            socket.publish("once", NewMessage(payload=3, deduplication_key="k"))
            [by_socket] = socket.lease("socket", lease_seconds=LONG)
            [by_http] = http.lease("http", lease_seconds=LONG)
            ordered = _taken_from_mq(http)
            stomp.confirm(stomp.line.subscribe, "/queue/stomp", id="1", ack="client-individual")
            [by_stomp] = stomp.messages(1)
            [fails] = socket.lease("again")
            socket.lease("lapses", lease_seconds=SHORT)
            socket.publish("soon", NewMessage(payload=4, delay=SHORT))
            socket.nack(fails.lease_id)

            set_clock(clock, http, by)

            # What must end, ends: a retry's backoff, a lease, a delay.
            for queue, attempt in (("again", 2), ("lapses", 2), ("soon", 1)):
                [delivery] = socket.lease(queue, wait=PATIENCE)
                assert (queue, delivery.attempt) == (queue, attempt)
            # What must not end, does not.
            assert (socket.counts("later").delayed, socket.counts("lives").ready) == (1, 1)
            for queue in ("socket", "http", "stomp"):
                assert (queue, socket.counts(queue).leased, socket.lease(queue)) == (queue, 1, [])
            assert json.loads(http.ask("GET", "/mq/orders/stats"))["active"] == 1
            assert socket.publish("once", NewMessage(payload=3, deduplication_key="k")).duplicate
            socket.extend(by_socket.lease_id, LONG)
            http.extend(by_http.lease_id, LONG)
            socket.ack(by_socket.lease_id)
            http.ack(by_http.lease_id)
            stomp.ack(by_stomp)
            http.ask("PATCH", f"/mq/orders/messages/{ordered}/complete")
            until(lambda: socket.counts("stomp").done == 1)
            # What people read is on the wall clock as it is set now.
            later = http.get("GET", "/v1/queues/later/messages?state=delayed")["messages"][0]
            assert abs(seconds(later["dueAt"]) - LONG - clock.now()) < SOON
            [fresh] = socket.lease("probe", lease_seconds=LONG)
            assert abs(fresh.lease_until - LONG - clock.now()) < SOON
        stomp.line.disconnect()
        until(lambda: "clock_set" in {one["event"] for one in server.events()})


@pytest.mark.parametrize("by", [HOUR, -HOUR], ids=["forward", "back"])
def test_clock_set_between_two_runs_in_one_boot_moves_no_lease_and_no_delay(tmp_path: Path, by: int) -> None:
    clock = WallClock(tmp_path)
    with served(tmp_path, clock) as server:
        with connect(server.address, consumer="me") as socket:
            socket.publish("held", 1)
            socket.publish("lapses", 1)
            socket.publish("later", NewMessage(payload=2, delay=LONG))
            [held] = socket.lease("held", lease_seconds=LONG)
            socket.lease("lapses", lease_seconds=SHORT)
        server.kill()
        clock.set(by)
        server.start(**clock.env)
        with connect(server.address, consumer="me") as socket:
            [again] = socket.lease("lapses", wait=PATIENCE)
            assert again.attempt == 2
            assert (socket.counts("held").leased, socket.counts("later").delayed) == (1, 1)
            socket.ack(held.lease_id)
            # A program that opens the same store itself, with its own wall clock, goes by the same store time.
            found = run_command(tmp_path, "sweep", "--store", server.url, "--dry-run", "--json", YIRANGMQ_DIRECT="1")
            assert "delayed" not in json.loads(found.stdout)["byState"], found
        with WebQueues(server.port_of("http")) as http:
            [shown] = http.get("GET", "/v1/queues/later/messages?state=delayed")["messages"]
        assert abs(seconds(shown["dueAt"]) - LONG - clock.now()) < SOON


def _taken_from_mq(http: WebQueues) -> str:
    """An active message of the queue ``orders``: its time-out is five minutes."""
    id = http.ask("POST", "/mq/orders/messages", {"priority": None}).decode()
    http.ask("PUT", f"/mq/orders/messages/{id}", {"n": 1})
    http.ask("GET", "/mq/orders/messages")
    http.ask("GET", f"/mq/orders/messages/{id}")
    return id
