"""Publishers, servers and subscribers killed with SIGKILL; and who follows misses nothing."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.server_process import Daemon
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect
from yirangmq.client.values import Receipt, TopicRecord

pytestmark = pytest.mark.process
SUBSCRIBER = """
import sys, yirangmq
address, how, journal = sys.argv[1:]
keep = {"name": "ledger"} if how == "name" else {"cursor_file": how}
with yirangmq.connect(address, retries=100) as client, open(journal, "a", buffering=1) as out:
    with client.topics.subscribe("b", start="beginning", reconnect=0.05, **keep) as records:
        records.run(lambda record: out.write(f"{record.sequence}\\n"))
"""


def test_topic_subscribers_get_every_record_once_from_a_server_killed_repeatedly(daemon: Daemon) -> None:
    """Two who follow, one of them with a filter, while records are published and the server is killed."""
    count = 3000
    found: dict[str, list[TopicRecord]] = {"*": [], "b": []}
    receipts: list[Receipt] = []

    def follow(wanted: str) -> None:
        with (
            connect(daemon.address, retries=100) as client,
            client.topics.subscribe(
                wanted, name=f"by-{len(wanted)}-{ord(wanted)}", start="beginning", reconnect=0.05
            ) as records,
        ):
            for record in records:
                found[wanted].append(record)
                if record.key == "end":
                    return

    def given() -> Iterator[tuple[str, int]]:
        for n in range(count):
            if n % 1000 == 500:
                daemon.kill()
                daemon.launch()
            yield "ab"[n % 2], n

    with connect(daemon.address, retries=100) as client:
        threads = [threading.Thread(target=follow, args=(wanted,), daemon=True) for wanted in found]
        for thread in threads:
            thread.start()
        receipts = client.topics.publish_many(given())
        last = client.topics.publish("b", None, key="end")
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), {wanted: len(records) for wanted, records in found.items()}
    assert len(receipts) == count
    assert [one.sequence for one in found["*"]] == list(range(1, last.sequence + 1))
    assert [one.topic_sequence for one in found["b"]] == list(range(1, last.topic_sequence + 1))
    stored = {one.sequence: one.value() for one in found["*"]}
    assert [stored[one.sequence] for one in receipts] == list(range(count))


@pytest.mark.parametrize("how", ["name", "cursor"])
def test_cursor_lets_a_subscriber_killed_repeatedly_continue_where_it_was(
    daemon: Daemon, tmp_path: Path, how: str
) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    keep = how if how == "name" else str(tmp_path / "cursor")
    line = [sys.executable, "-c", SUBSCRIBER, daemon.address, keep, str(journal)]
    starts: list[int] = []
    with connect(daemon.address, retries=100) as client:
        for n in range(3):
            wanted = client.topics.publish_many([("ab"[one % 2], one) for one in range(400)])[-1].sequence
            starts.append(len(journal.read_text().splitlines()))
            with subprocess.Popen(line) as subscriber:
                wait_for(journal, wanted, subscriber, at_least=starts[-1] + 20 if n < 2 else None)
                subscriber.send_signal(signal.SIGKILL)
        everything = [one.sequence for one in client.topics.read("b", limit=10_000).records]
    lines = [int(one) for one in journal.read_text().splitlines()]
    for begin, end in pairwise([*starts, len(lines)]):
        run = lines[begin:end]
        assert run == sorted(set(run))
        assert begin == 0 or run[0] <= lines[begin - 1] + 2  # nothing between them was for it
    assert sorted(set(lines)) == everything


def wait_for(journal: Path, last: int, subscriber: "subprocess.Popen[bytes]", at_least: int | None) -> None:
    """Until it has written the last one, or so many lines: then it is in the middle of something."""
    pause = threading.Event()
    for _ in range(6000):
        lines = journal.read_text().split("\n")[:-1]
        if (at_least is not None and len(lines) >= at_least) or (lines and int(lines[-1]) >= last):
            return
        assert subscriber.poll() is None
        pause.wait(0.01)
    raise AssertionError(lines[-1:])
