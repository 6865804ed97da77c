"""``make soak-week``: a week of a gateway in compressed time. Three parties send each other messages of 2000 bytes
over a pair of nodes with files by date, four tenths of each weekday's between ten and two o'clock; in the middle the
active node is killed and its backlog adopted, and once it is switched for patching. Time moves by the hour as fast as
the messages are sent; each day both nodes must have their folder for it.

It ends with one line: messages, how many were lost, came twice or were changed, memory, days that are left."""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.soak.shifted import VARIABLE, Shift
from tests.support.lossy_link import Cable, cable
from tests.support.pair import NAMES, Pair
from tests.support.server_process import Daemon, until
from tests.support.wait import PATIENCE
from yirangmq import NewMessage, QueueError
from yirangmq.client.connect import connect

PARTIES = ("atm", "card", "till")
WAYS = [f"{source}-to-{target}" for source, target in permutations(PARTIES, 2)]
WHOLE, SIZE = 3_000_000, 2000
DAYS, AFTER = 7, 2
"""With messages, and after them: on the ninth day the first one is gone."""
RUSH = range(10, 14)
RUSH_SHARE = 0.4
SATURDAY = 5
AT_ONCE = 100
RETRIES = 200
"""A producer outlives every change of places, on a slow machine too."""
KILL_DAY, SWITCH_DAY, NOON = 2, 4, 12
ROOM = 48 << 20
"""Bytes a node may have grown by since the second day."""
OPTIONS = ("--files-by-date", "on", "--pair-interval-seconds", "0.5", "--pair-cooldown-seconds", "1")
POLICY = {"visibilityTimeoutSec": 30 * 86_400, "archive": {"enabled": False}}


def share(day: int, hour: int) -> float:
    """Of a day's messages, those of one hour; Monday is day 0."""
    if day % 7 >= SATURDAY:
        return 1 / 24
    return RUSH_SHARE / len(RUSH) if hour in RUSH else (1 - RUSH_SHARE) / (24 - len(RUSH))


def payload_of(id: str) -> bytes:
    """Any bytes, the same for the same id."""
    return random.Random(id).randbytes(SIZE)


class Told(NamedTuple):
    messages: int
    lost: int
    again: int
    changed: int
    grown: int
    wrong: int
    """Findings in the files by date, of both nodes."""
    days: dict[str, list[str]]


class WeekPair(Pair):
    def _node(self, name: str, options: tuple[str, ...]) -> Daemon:
        made = super()._node(name, options)
        made.program = "benchmarks.soak.shifted"
        return made

    def folder_of(self, name: str, day: str) -> Path:
        return self.nodes[name].folder / "d" / "by-date" / day


class Traffic:
    """Everything that was sent and came, by way and number."""

    def __init__(self, addresses: str) -> None:
        self._addresses = addresses
        self.sent = dict.fromkeys(WAYS, 0)
        self.came = {way: bytearray() for way in WAYS}
        self.again = self.changed = 0
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(len(WAYS))
        self._clients = {way: connect(addresses, retries=RETRIES) for way in WAYS}
        self._consumers = [threading.Thread(target=self._consume, args=(way,)) for way in WAYS]
        for consumer in self._consumers:
            consumer.start()

    def send(self, count: int) -> list[Any]:
        """So many over each way, each batch confirmed before the next; to be waited for."""
        return [self._pool.submit(self._send, way, count) for way in WAYS]

    def _send(self, way: str, count: int) -> None:
        end = self.sent[way] + count
        self.came[way].extend(bytes(count))
        while self.sent[way] < end:
            numbers = range(self.sent[way], min(end, self.sent[way] + AT_ONCE))
            ids = [f"{way}.{number}" for number in numbers]
            batch = [NewMessage(payload=payload_of(id), id=id) for id in ids]
            self._clients[way].publish_many(way, batch)
            self.sent[way] += len(batch)

    def _consume(self, way: str) -> None:
        with connect(self._addresses) as client:
            while not self._is_over.is_set():
                try:
                    taken = client.lease(way, AT_ONCE, wait=0.2)
                    results = client.ack_many([one.lease_id for one in taken]) if taken else []
                except QueueError:
                    continue  # the nodes change places; what was not acked comes again
                for one, error in zip(taken, results, strict=True):
                    if error is None:
                        self._count(way, one.id, one.payload)

    def _count(self, way: str, id: str, payload: bytes) -> None:
        number = int(id.rpartition(".")[2])
        self.again += self.came[way][number]
        self.came[way][number] = 1
        self.changed += sha256(payload).digest() != sha256(payload_of(id)).digest()

    @property
    def missing(self) -> int:
        return sum(self.sent[way] - sum(self.came[way]) for way in WAYS)

    def close(self) -> None:
        self._is_over.set()
        for consumer in self._consumers:
            consumer.join(PATIENCE)
        self._pool.shutdown()
        for client in self._clients.values():
            client.close()


class Week:
    def __init__(self, two: WeekPair, shift: Shift, messages: int) -> None:
        self._two = two
        self._shift = shift
        self._each = messages / DAYS / len(WAYS)
        self._begin = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        self._zero = _monday_after(self._begin)
        self._carried = 0.0
        self._resident: list[int] = []

    def play(self) -> Told:
        self._at(0, 0)
        self._two.begin()
        with connect(self._two.addresses) as client:
            for way in WAYS:
                client.set_policy(way, POLICY)
        traffic = Traffic(self._two.addresses)
        try:
            for day in range(DAYS + AFTER):
                self._day(traffic, day)
            gone = self._name(0)
            until(lambda: not any(self._two.folder_of(name, gone).exists() for name in NAMES), PATIENCE)
            wrong = sum(len(self._checked(name)["findings"]) for name in NAMES)
        finally:
            traffic.close()
        days = {name: sorted(path.name for path in self._two.folder_of(name, "").iterdir()) for name in NAMES}
        grown = max(self._resident[1:]) - self._resident[1]
        return Told(sum(traffic.sent.values()), traffic.missing, traffic.again, traffic.changed, grown, wrong, days)

    def _checked(self, name: str) -> dict[str, Any]:
        with connect(self._two.nodes[name].address, timeout=600) as client:
            found: dict[str, Any] = client.call("files_check")
            return found

    def _day(self, traffic: Traffic, day: int) -> None:
        """It ends when all of it was delivered."""
        self._at(day, 0)
        until(lambda: all(self._two.folder_of(name, self._name(day)).exists() for name in NAMES), PATIENCE)
        for hour in range(24) if day < DAYS else ():
            self._at(day, hour)
            wanted = self._each * share(day, hour) + self._carried
            self._carried = wanted - int(wanted)
            sending = traffic.send(int(wanted))
            if hour == NOON and day == KILL_DAY:
                self._kill()
            elif hour == NOON and day == SWITCH_DAY:
                done = self._two.command("b", "switch")
                assert done.returncode == 0, done
            for one in sending:
                one.result(PATIENCE)
        self._deliver(traffic)
        self._resident.append(sum(node.resident_bytes() for node in self._two.nodes.values()))

    def _deliver(self, traffic: Traffic) -> None:
        """All of it. What a switch left on the disk of a node, because nobody took it in time, waits until that node is
        active again."""
        end = time.monotonic() + PATIENCE
        while traffic.missing:
            assert time.monotonic() < end, f"{traffic.missing} messages were not delivered"
            time.sleep(0.02)
            if time.monotonic() > end - PATIENCE / 2:
                for name in NAMES:
                    found = self._two.status(name)
                    if not found["works"] and sum(found["backlog"].values()):
                        self._two.command(name, "switch")

    def _kill(self) -> None:
        """The active node dies under load; the other one takes over and adopts what it left."""
        dead = self._two.nodes["a"]
        dead.kill()
        self._two.wait_for("b", of=("b",))
        done = self._two.command("b", "adopt", f"sqlite:{dead.folder / 'd' / 'queue.db'}", "--node", "a")
        assert done.returncode == 0, done
        self._two.start("a")

    def _at(self, day: int, hour: int) -> None:
        """The time of both nodes, from here on."""
        now = time.time()
        self._shift.set(round((self._zero + timedelta(days=day, hours=hour)).timestamp() - now) * 1000)

    def _name(self, day: int) -> str:
        return (self._zero + timedelta(days=day)).date().isoformat()


def _monday_after(moment: datetime) -> datetime:
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + timedelta(days=7 - midnight.weekday())


@contextmanager
def environment(shift: Path) -> Iterator[None]:
    root = str(Path(__file__).parents[2])
    before = {name: os.environ.get(name) for name in (VARIABLE, "PYTHONPATH")}
    os.environ |= {VARIABLE: str(shift), "PYTHONPATH": root}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def soak(folder: Path, messages: int, wire: Cable) -> Told:
    path = folder / "shift"
    shift = Shift(path)
    with environment(path):
        two = WeekPair(folder, wire, *OPTIONS)
        try:
            return Week(two, shift, messages).play()
        finally:
            two.kill()
            shift.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=WHOLE)
    parser.add_argument("--folder", help="on the disk that is to be used (default: a temporary one)")
    args = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-week-", dir=args.folder) as folder, cable() as wire:
        told = soak(Path(folder), args.messages, wire)
    seconds = round(time.monotonic() - begun)
    print(json.dumps({**told._asdict(), "seconds": seconds, "perSecond": round(told.messages / max(1, seconds))}))
    is_well = told.lost == told.changed == told.wrong == 0 and told.grown <= ROOM
    print(f"target: a week in compressed time | {told.lost} lost, {told.changed} changed, "
          f"{told.grown >> 20} MiB grown | 0 lost, 0 changed, at most {ROOM >> 20} MiB | "
          f"{'reached' if is_well else 'short'}")  # fmt: skip
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
