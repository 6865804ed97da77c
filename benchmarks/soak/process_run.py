"""One run with whole processes: a server, publishers and durable subscribers, of which the seed kills, stops and starts
some while the feed goes on. The same seed is the same plan; what the machine makes of its moments differs."""

import os
import random
import signal
import socket
import time
from pathlib import Path

from benchmarks.soak import bridged, roles
from benchmarks.soak.judge import Seen, Verdict, judge, seen
from tests.support.ports import free_port
from tests.support.wait import PATIENCE
from tests.support.worker_processes import Crew, Worker
from yirangmq.client.connect import connect
from yirangmq.core.errors import NotFound, QueueError
from yirangmq.core.topic_filter import Filter, make_filter
from yirangmq.stores.log.readonly import SegmentView

TOPICS = ("a", "a.b", "b", "c.d.e")
FILTERS: tuple[tuple[str, ...], ...] = ((), ("a",), ("a*",), ("b", "c.+.e"))
BEGIN_SECONDS = 2.0
"""A slow publisher may have sent little when the first thing happens."""


class ProcessRun:
    def __init__(self, seed: int, folder: Path, team: Crew) -> None:
        self._chance = chance = random.Random(seed)
        self._folder = folder
        self._team = team
        self._stop = folder / "stop"
        buffer = chance.choice((4096, 65_536, 2 << 20))
        self._port = free_port()
        self._is_bridged = chance.random() < 0.4
        store = f"sqlite:{folder / 'queue.db'}" if self._is_bridged else "memory:"
        self._options = (
            "--http", "off", "--log-level", "warning", "--store", store, "--stop-seconds", "0", "--durability", "os",
            "--tcp", f"127.0.0.1:{self._port}",
            "--topic-buffer-bytes", str(buffer), "--recovery-workers", str(chance.randint(1, 3)),
            "--topic-durability", chance.choice(("full", "os")),
        )  # fmt: skip
        self._truth: dict[int, Seen] = {}
        self._last = 0
        filters = chance.sample(FILTERS, chance.randint(1, 2))
        self._names = {f"s{n}": filter for n, filter in enumerate(filters)}
        self._followers: dict[str, Worker] = {}
        self._feeders: list[Worker] = []
        self.troubles: list[object] = []
        """What subscribers said."""

    @property
    def _address(self) -> str:
        """Over either door."""
        unix, tcp = f"unix:{self._folder / 'd' / 'yirangmq.sock'}", f"tcp://127.0.0.1:{self._port}"
        return self._chance.choice((unix, tcp))

    def play(self) -> list[Verdict]:
        self._serve()
        if self._is_bridged:
            bridged.build(self._address, "a*")
        for name in self._names:
            self._follow(name)
        for _ in range(self._chance.randint(1, 2)):
            self._feed()
        deeds = (
            self._kill_server,
            self._kill_server,
            self._kill_subscriber,
            self._kill_publisher,
            self._stall,
            self._trim,
        )
        enough = self._chance.randint(1, 200)
        try:
            until = time.monotonic() + BEGIN_SECONDS
            while self._last < enough and time.monotonic() < until:
                time.sleep(0.02)
                self._witness()
            for _ in range(self._chance.randint(2, 5)):
                time.sleep(self._chance.uniform(0.05, 0.4))  # the moment is the point
                self._chance.choice(deeds)()
            return self._end()
        finally:
            for worker in (self._server, *self._followers.values(), *self._feeders):
                worker.kill()

    def _end(self) -> list[Verdict]:
        self._stop.touch()
        for feeder in self._feeders:
            feeder.process.join(PATIENCE)
        self._witness()
        until = time.monotonic() + PATIENCE
        while not all(self._has_all(name) for name in self._names) and time.monotonic() < until:
            time.sleep(0.01)
        verdicts = []
        for name in self._names:
            self._hear(self._followers[name].kill())
            verdicts.append(judge(self._truth, self._filter(name), roles.read_output(self._output(name))))
        if self._is_bridged:
            verdicts.append(judge(self._truth, make_filter(["a*"]), bridged.taken(self._address, self._last)))
        again = sum(1 for one in self.troubles if isinstance(one, tuple) and one[0] == "again")
        return [verdict._replace(duplicates=verdict.duplicates + again) for verdict in verdicts]

    def _has_all(self, name: str) -> bool:
        wanted = [one.sequence for one in self._truth.values() if self._filter(name).wants(one.topic)]
        had = roles.read_tail(self._output(name))
        return not wanted or had >= wanted[-1]

    def _filter(self, name: str) -> Filter:
        return make_filter(self._names[name])

    def _output(self, name: str) -> Path:
        return self._folder / f"{name}.txt"

    def _hear(self, facts: list[tuple[str, str]]) -> None:
        self.troubles += facts

    # -- the parts

    def _serve(self) -> None:
        self._server = self._team.start(roles.serve, str(self._folder), self._options)
        path, until = str(self._folder / "d" / "yirangmq.sock"), time.monotonic() + PATIENCE
        while time.monotonic() < until:
            assert self._server.process.is_alive(), (self._folder / "serve.log").read_text()[-2000:]
            with socket.socket(socket.AF_UNIX) as line:
                try:
                    line.connect(path)
                    return
                except OSError:
                    time.sleep(0.01)
        raise AssertionError("the server did not come up")

    def _feed(self) -> None:
        seed = self._chance.randrange(2**32)
        self._feeders.append(self._team.start(roles.publish, self._address, seed, TOPICS, str(self._stop)))

    def _follow(self, name: str) -> None:
        roles.read_output(self._output(name))
        output, seed = str(self._output(name)), self._chance.randrange(2**32)
        self._followers[name] = self._team.start(roles.subscribe, self._address, name, self._names[name], output, seed)

    # -- what may happen

    def _kill_server(self) -> None:
        self._server.kill()
        self._serve()

    def _kill_subscriber(self) -> None:
        name = self._chance.choice([*self._names])
        self._hear(self._followers[name].kill())
        self._follow(name)

    def _kill_publisher(self) -> None:
        self._feeders.pop(self._chance.randrange(len(self._feeders))).kill()
        self._feed()

    def _stall(self) -> None:
        """A subscriber that reads nothing for a while."""
        process = self._followers[self._chance.choice([*self._names])].process
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(self._chance.uniform(0.05, 0.3))
        os.kill(process.pid, signal.SIGCONT)

    def _trim(self) -> None:
        """As far as every subscriber has confirmed, if all of them have told of themselves."""
        self._witness()
        try:
            with connect(self._address, retries=2, timeout=5) as client:
                rows = client.topics.subscribers()
                confirmed = {row["name"]: row["confirmed"] for row in rows if row["name"] in self._names}
                needed = [*confirmed.values(), *(row["sequence"] for row in client.call("bridges"))]
                if confirmed.keys() == self._names.keys():
                    client.topics.trim(before=min(*needed, self._last) + 1)
        except QueueError as error:
            self.troubles.append(("trim", str(error)))

    def _witness(self) -> None:
        """Every record that was ever in the log; it is trimmed by us alone, and never before we looked."""
        try:
            view = SegmentView(self._folder / "d" / "topics")
        except NotFound:
            return  # nothing was published yet
        with view:
            for record in view.reader().records(max(self._last + 1, view.first)):
                self._truth[record.sequence] = seen(record)
                self._last = record.sequence
