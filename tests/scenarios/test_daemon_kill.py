"""kill -9 of the server under load, again and again: what was confirmed is delivered, nothing is stuck, nothing that
was acked comes again. Twenty kills with three producers and three consumers; ``make soak-daemon`` has more of all."""

import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import clients
from tests.support.queues import unsettled
from tests.support.server_process import Daemon, daemon, until
from tests.support.wait import PATIENCE
from tests.support.worker_processes import crew
from yirangmq.client.connect import connect
from yirangmq.stores.open import open_store

KILLS = int(os.environ.get("YIRANGMQ_DAEMON_KILLS", "20"))
EACH = int(os.environ.get("YIRANGMQ_DAEMON_CLIENTS", "3"))
pytestmark = [pytest.mark.process, pytest.mark.timeout(300 + 10 * KILLS)]
LONGEST_LIFE = 0.4
"""Seconds a server lives at most before it is killed."""
LEASE_SECONDS = 2
POLICY = {
    "visibilityTimeoutSec": LEASE_SECONDS,
    "retry": {"limit": 1_000_000, "initialDelaySec": 0, "maxDelaySec": 0, "backoff": "fixed"},
    "archive": {"enabled": False},
}


class Heard:
    """All that the clients told."""

    def __init__(self, facts: list[tuple[str, Any]]) -> None:
        self.published = {id for what, ids in facts if what == "published" for id in ids}
        self.taken = [one for what, several in facts if what == "taken" for one in several]
        self.acked = {id: attempt for what, several in facts if what == "acked" for id, attempt in several}

    def late(self) -> list[float]:
        """How long after the end of a lease its message came again, where it did."""
        ends = {(id, attempt): until for id, attempt, until, _ in self.taken}
        return [at - ends[id, attempt - 1] for id, attempt, _, at in self.taken if (id, attempt - 1) in ends]


def killed_again_and_again(server: Daemon, chance: random.Random) -> None:
    for _ in range(KILLS):
        time.sleep(chance.uniform(0, LONGEST_LIFE))  # the moment of the kill is the point of the test
        server.kill()
        server.start()


def work_through_kills(server: Daemon, folder: Path) -> Heard:
    stop_producing, stop_consuming = folder / "stop-producing", folder / "stop-consuming"
    with crew() as team:
        producers = [team.start(clients.produce, server.address, f"p{n}", str(stop_producing)) for n in range(EACH)]
        kinds = [clients.consume, clients.subscribe]
        consumers = [team.start(kinds[n % 2], server.address, f"c{n}", str(stop_consuming)) for n in range(EACH)]
        facts: list[tuple[str, Any]] = []
        hearing = threading.Thread(target=lambda: facts.extend(team.hear_all(producers + consumers)))
        hearing.start()
        killed_again_and_again(server, random.Random(20260113))
        with connect(server.address) as client:
            until(lambda: client.counts("work").published > KILLS)
            stop_producing.touch()
            until(lambda: not any(worker.process.is_alive() for worker in producers), PATIENCE)
            until(lambda: unsettled(client, "work") == 0, PATIENCE)
        stop_consuming.touch()
        hearing.join(PATIENCE)
        assert not hearing.is_alive()
    return Heard(facts)


def test_server_kill_under_load_loses_no_confirmed_message_and_repeats_no_acked_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with daemon(tmp_path) as server:
        with connect(server.address) as client:
            client.set_policy("work", POLICY)
        heard = work_through_kills(server, tmp_path)
        with connect(server.address) as client:
            counts = client.counts("work")
        assert server.stop() == 0
    delivered = {id for id, *_ in heard.taken}
    late = heard.late()
    figures = {
        "kills": KILLS,
        "published": len(heard.published),
        "delivered": len(heard.taken),
        "acked": len(heard.acked),
        "again": len(late),
        "latestSec": round(max(late, default=0), 3),
    }
    with capsys.disabled():
        print(f"\nkill -9 of the server: {json.dumps(figures)}")
    assert len(heard.published) > KILLS
    assert heard.published - delivered == set(), "confirmed and never delivered"
    assert counts.dead == counts.parked == 0
    again = [(id, attempt) for id, attempt, *_ in heard.taken if id in heard.acked and attempt > heard.acked[id]]
    assert again == [], "acked and delivered again"
    store = open_store(server.url)
    assert list(store.check(repair=False)) == []
    store.close()
