"""``top``, ``watch`` and ``metrics``, on a store alone and through a server."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cli import Cli, Killed, Published
from tests.support.server import RunningServer
from yirangmq.client.connect import connect
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import ManualClock

WORDS = [
    "queue",
    "ready",
    "leased",
    "delayed",
    "dead",
    "oldest",
    "in/s",
    "out/s",
    "consumers",
    "failed/s",
    "failing",
    "works",
    "waits",
]


@pytest.fixture
def server(tmp_path: Path, clock: ManualClock) -> Iterator[RunningServer]:
    server = RunningServer(MemoryStore(), tmp_path, clock).start()
    yield server
    server.stop()


def play(server: RunningServer, clock: ManualClock) -> None:
    """Ten seconds: twenty published, four taken, three done after two seconds, one failed."""
    with connect(server.unix) as client:
        client.publish_many("mail", [1] * 20)
        leases = [delivery.lease_id for delivery in client.lease("mail", 4)]
        clock.advance(2_000)
        client.ack(leases[:3])
        client.nack(leases[3], "REJECTED")
        clock.advance(8_000)


@contextmanager
def meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """``work`` in a thread of its own, told when it is over."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# -- a store alone ----------------------------------------------------------------------------------------------------


def test_top_of_a_store_alone_shows_counts(at: Cli, published: Published, killed: Killed) -> None:
    killed("mail", "a")
    published("mail", "1", "2")
    at("queue pause mail")
    title, columns, row = at("top --once").out.splitlines()
    assert title.startswith("no server")
    assert columns.split() == WORDS
    assert row.split()[:6] == ["mail", "(paused)", "2", "0", "0", "1"]
    assert row.split()[-7:] == ["-"] * 7
    look = at("top --once --json").json
    assert look["ok"] is True
    assert (look["server"], look["queues"][0]["ready"], look["queues"][0]["rates"]) == (None, 2, None)


def test_top_into_a_pipe_ends_by_itself(at: Cli, published: Published) -> None:
    published("mail", "1")
    published("post", "1")
    assert [line.split()[0] for line in at("top").out.splitlines()[2:]] == ["mail", "post"]
    assert [line.split()[0] for line in at("top -q post").out.splitlines()[2:]] == ["post"]


def test_top_with_an_interval_of_zero_is_refused(cli: Cli) -> None:
    result = cli("top --interval 0 --json")
    assert (result.code, result.complaint["field"]) == (2, "--interval")


def test_metrics_of_a_store_alone_show_queue_counts_without_a_server(at: Cli, published: Published) -> None:
    published("mail", "1", "2")
    result = at("metrics")
    assert 'yirangmq_queue_ready{queue="mail"} 2\n' in result.out
    assert 'yirangmq_published_total{queue="mail"} 2\n' in result.out
    assert "no server" in result.err
    assert len(at("metrics --json").json["metrics"].splitlines()) == len(result.out.splitlines())


def test_watch_of_a_store_alone_prints_changes(at: Cli, published: Published) -> None:
    published("mail", "1")
    place = backend_of(at)

    def publish(over: threading.Event) -> None:
        while not over.wait(0.02):  # whenever the first look is: something is published after it
            subprocess.run(
                [sys.executable, "-m", "yirangmq", "publish", "-q", "mail", "1", *place],
                check=True,
                capture_output=True,
            )

    with meanwhile(publish):
        result = at("watch --limit 1 -q mail --json")
    event = result.json
    assert (event["event"], event["queue"]) == ("published", "mail")
    assert event["count"] >= 1


def backend_of(at: Cli) -> list[str]:
    return ["--backend", str(at("status --json").json["backend"])]


# -- through a server -------------------------------------------------------------------------------------------------


def test_top_of_a_server_shows_rates(cli: Cli, server: RunningServer, clock: ManualClock) -> None:
    play(server, clock)
    title, _, row = cli(f"top --once --store {server.unix}").out.splitlines()
    assert title.startswith("yirangmq test  node here  up 5s  durability none  1 client  ")
    assert row.split() == ["mail", "16", "0", "0", "1", "10s", "2.0", "0.3", "0", "0.1", "25.0%", "2.0", "s", "0", "ms"]
    [queue] = cli(f"top --once --json --store {server.unix}").json["queues"]
    assert queue["rates"]["meanProcessingSec"] == 2.0


def test_status_of_a_server_shows_rates(cli: Cli, server: RunningServer, clock: ManualClock) -> None:
    play(server, clock)
    [queue] = cli(f"status --json --store {server.unix}").json["queues"]
    assert (queue["rates"]["publishedPerSec"], queue["rates"]["failureRate"]) == (2.0, 0.25)


def test_metrics_of_a_server_include_dead_letters_by_reason(
    cli: Cli, server: RunningServer, clock: ManualClock
) -> None:
    play(server, clock)
    result = cli(f"metrics --store {server.unix}")
    assert 'yirangmq_died_total{queue="mail",reason="REJECTED"} 1\n' in result.out
    assert result.err == ""


def test_watch_of_a_server_prints_its_events(cli: Cli, server: RunningServer) -> None:
    def publish(over: threading.Event) -> None:
        while not server.observing.feed.is_followed:
            os.sched_yield()
        with connect(server.unix) as client:
            client.publish("post", 1)
            client.publish_many("mail", [b"12", b"3"])
            client.ack(client.lease("mail")[0].lease_id)

    with meanwhile(publish):
        result = cli(f"watch -q mail --limit 3 --store {server.unix}")
    assert [line.split("  ", 1)[1] for line in result.out.splitlines()] == [
        "mail  published 2  bytes=3",
        "mail  leased 1  meanWaitSec=0.0",
        "mail  acked 1  meanProcessingSec=0.0",
    ]


def test_queue_pause_resume_and_schedule_list_work_through_a_server(cli: Cli, server: RunningServer) -> None:
    cli(f"publish -q mail 1 --store {server.unix}")
    assert cli(f"queue pause mail --store {server.unix}").out == "paused: mail\n"
    assert cli(f"consume -q mail --fail-empty --store {server.unix}").code == 6
    assert cli(f"queue resume mail --store {server.unix}").out == "resumed: mail\n"
    cli(
        f"policy set -q mail --store {server.unix}", '{"schedules": [{"name": "x", "cron": "* * * * *", "message": 1}]}'
    )
    [row] = cli(f"schedule list --json --store {server.unix}").json["schedules"]
    assert row["nextAt"] == "2026-01-13T09:22:00.000+00:00"
