"""The programs of a run with processes, each a whole process that may be killed at any moment: the server, a publisher
and a durable subscriber, which are written with the client library as anybody's would be."""

import os
import random
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.soak.judge import Seen, seen
from yirangmq.cli.main import run as run_command
from yirangmq.client.connect import connect
from yirangmq.core.errors import QueueError

RECONNECT = 0.05
SIZES = (0, 1, 100, 2000, 4064, 4065)


def serve(folder: str, pipe: Connection, options: tuple[str, ...]) -> None:
    log = os.open(Path(folder) / "serve.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.exit(run_command(["serve", "--json", "--data", str(Path(folder) / "d"), *options]))


def publish(address: str, pipe: Connection, seed: int, topics: tuple[str, ...], stop: str) -> None:
    """Batches of all sizes at all paces until the file ``stop`` is there. What may be stored twice, because an answer
    was lost, is two records."""
    chance = random.Random(seed)
    pause = chance.choice((0.0, 0.001, 0.02))
    most = chance.choice((1, 16, 200))
    while not Path(stop).exists():
        try:
            with connect(address, retries=2, timeout=5) as client:
                while not Path(stop).exists():
                    batch = [(chance.choice(topics), _payload(chance)) for _ in range(chance.randint(1, most))]
                    client.topics.publish_many(batch)
                    time.sleep(pause * chance.random())
        except QueueError:
            time.sleep(RECONNECT)


def _payload(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice(SIZES))


def subscribe(address: str, pipe: Connection, name: str, wanted: tuple[str, ...], output: str, seed: int) -> None:
    """Follow for ever. What it has had stands in a file, a line each; the last whole line is how far it is, and what
    comes again after it was killed, because the server had not heard so, is passed over. ``pipe`` is told of whatever
    comes twice, or out of order, within one life: the library must not let that through."""
    chance = random.Random(seed)
    file = Path(output)
    last = done[-1].sequence if (done := read_output(file)) else 0
    is_slow = chance.random() < 0.3
    latest = 0
    with file.open("ab", buffering=0) as out:
        while True:
            try:
                with connect(address, retries=2, timeout=5) as client:
                    following = client.topics.subscribe(
                        wanted, name=name, start="beginning", reconnect=RECONNECT, progress=0.2
                    )
                    for batch in following.batches():
                        for record in batch:
                            if record.sequence <= latest:
                                pipe.send(("again", record.sequence, latest))
                            latest = record.sequence
                        fresh = [seen(record) for record in batch if record.sequence > last]
                        out.write(b"".join(b"%d %s %d %d\n" % _line(one) for one in fresh))
                        last = max(last, latest)
                        if is_slow:
                            time.sleep(0.02 * chance.random())
            except QueueError as error:
                pipe.send(("trouble", type(error).__name__, str(error)))
                time.sleep(RECONNECT)
                latest = 0


def _line(one: Seen) -> tuple[int, bytes, int, int]:
    return one.sequence, one.topic.encode(), one.topic_sequence, one.checksum


def read_output(file: Path) -> list[Seen]:
    """Whole lines; half a line, of a subscriber that was killed while it wrote, is cut off."""
    if not file.exists():
        return []
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(file, len(whole))
    found = []
    for line in whole.decode().splitlines():
        sequence, topic, topic_sequence, checksum = line.split()
        found.append(Seen(int(sequence), topic, int(topic_sequence), int(checksum)))
    return found


def read_tail(file: Path) -> int:
    """The sequence in the last whole line; 0: there is none."""
    if not file.exists():
        return 0
    with file.open("rb") as lines:
        lines.seek(max(0, file.stat().st_size - 400))
        whole = lines.read().rpartition(b"\n")[0]
    return int(whole.rpartition(b"\n")[2].split()[0]) if whole else 0
