"""Whole servers: killed in the middle, stopped in good order, with readers that stand still."""

import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server_process import Daemon, daemon, until
from tests.support.wait import PATIENCE
from yirangmq.core.topics import Record
from yirangmq.stores.log.log import SegmentLog
from yirangmq.wire import feed as layout
from yirangmq.wire import messages, records
from yirangmq.wire.frames import FrameKind, FrameReader

pytestmark = pytest.mark.process
KILLS = int(os.environ.get("YIRANGMQ_TOPIC_KILLS", "4"))
LONGEST_LIFE = 0.5
QUIET = ("--http", "off", "--log-level", "warning")


class Wire:
    """A blocking connection: frames out, frames in."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE)
        self._frames = FrameReader()
        self._number = 0
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise

    def send(self, kind: FrameKind, body: Any) -> None:
        self._number += 1
        self._socket.sendall(messages.frame(kind, self._number, body))

    def heard(self) -> Iterator[tuple[int, Any]]:
        """What comes next; ends when the server has closed."""
        while data := self._socket.recv(1 << 18):
            for kind, _, body in self._frames.feed(data):
                yield kind, records.read_body(body) if kind == records.KIND else messages.read(kind, body)
        assert self._frames.held == 0, "it ended inside a frame"

    def close(self) -> None:
        self._socket.close()


class Publishing(threading.Thread):
    """Publishes numbered records until told to stop, whatever becomes of the server; remembers what was confirmed."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self.is_over = False
        self.confirmed: dict[int, bytes] = {}

    def run(self) -> None:
        number = 0
        while not self.is_over:
            try:
                wire = Wire(self._path)
            except OSError:
                time.sleep(0.01)  # it is being started
                continue
            try:
                number = self._publish(wire, number)
            except OSError:
                continue
            finally:
                wire.close()

    def _publish(self, wire: Wire, number: int) -> int:
        answers = wire.heard()
        while not self.is_over:
            batch = [b"%d" % n for n in range(number, number + 16)]
            number += 16
            wire.send(
                FrameKind.TOPIC_PUBLISH,
                messages.TopicPublish([messages.RecordBody("abc"[int(n) % 3], n) for n in batch]),
            )
            kind, stored = next(answers, (0, messages.TopicStored("", 0, 0, 0, {})))
            if kind != FrameKind.TOPIC_STORED:
                return number
            self.confirmed |= dict(zip(range(stored.first, stored.last + 1), batch, strict=True))
        return number


class Durable(threading.Thread):
    """A subscriber with a name: takes each record once, confirms now and then, comes again when it is cut off."""

    def __init__(self, path: Path, name: str, topics: list[str]) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._ask = messages.TopicSubscribe(topics, name=name, start="beginning", progress_ms=100)
        self.is_over = False
        self.taken: list[Record] = []
        self.repeated = 0
        self.reached = 0
        self.subscriptions = 0

    def run(self) -> None:
        while not self.is_over:
            try:
                wire = Wire(self._path)
            except OSError:
                time.sleep(0.01)
                continue
            try:
                wire.send(FrameKind.TOPIC_SUBSCRIBE, self._ask)
                self._follow(wire)
            except OSError:
                continue
            finally:
                wire.close()

    def _follow(self, wire: Wire) -> None:
        for kind, value in wire.heard():
            assert kind != FrameKind.ERROR, value
            if kind == FrameKind.TOPIC_SUBSCRIBED:
                self.subscriptions += 1
            elif kind == records.KIND:
                self._take(wire, value)
            elif kind == FrameKind.PROGRESS:
                self.reached = value.sequence
                wire.send(FrameKind.CONFIRM, messages.Confirm(value.sequence))
            if self.is_over:
                return

    def _take(self, wire: Wire, record: Record) -> None:
        if self.taken and record.sequence <= self.taken[-1].sequence:
            self.repeated += 1  # sent before, and not confirmed when the server was killed
            return
        self.taken.append(record)
        if len(self.taken) % 50 == 0:
            wire.send(FrameKind.CONFIRM, messages.Confirm(record.sequence))


def kept(folder: Path) -> list[Record]:
    with SegmentLog(folder) as log:
        return list(log.reader().records(1))


def test_server_kill_repeated_leaves_each_durable_subscriber_every_matching_record_once(tmp_path: Path) -> None:
    path = tmp_path / "d" / "yirangmq.sock"
    chance = random.Random(5)
    with daemon(tmp_path, *QUIET) as server:
        publishing = Publishing(path)
        everybody = [Durable(path, "all", []), Durable(path, "some", ["a", "c*"])]
        for thread in (publishing, *everybody):
            thread.start()
        until(lambda: all(one.subscriptions for one in everybody))
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.05, LONGEST_LIFE))  # the moment of the kill is the point of the test
            server.kill()
            server.start()
        before = len(publishing.confirmed)
        until(lambda: len(publishing.confirmed) > before)
        publishing.is_over = True
        publishing.join(PATIENCE)
        last = max(publishing.confirmed)
        until(lambda: all(one.reached >= last for one in everybody))
        for one in everybody:
            one.is_over = True
            one.join(PATIENCE)
        assert server.stop() == 0
    found = kept(tmp_path / "d" / "topics")
    assert [record.sequence for record in found] == list(range(1, len(found) + 1))
    by_sequence = {record.sequence: record.payload for record in found}
    assert {sequence: by_sequence.get(sequence) for sequence in publishing.confirmed} == publishing.confirmed
    assert everybody[0].taken == [record for record in found if record.sequence <= everybody[0].taken[-1].sequence]
    wanted = [record for record in found if record.topic in "ac"]
    assert everybody[1].taken == wanted[: len(everybody[1].taken)]
    assert len(everybody[0].taken) >= last
    assert min(one.subscriptions for one in everybody) > 1


def publish(wire: Wire, count: int, size: int, topic: str = "a") -> None:
    answers = wire.heard()
    for _ in range(count):
        wire.send(FrameKind.TOPIC_PUBLISH, messages.TopicPublish([messages.RecordBody(topic, b"x" * size)] * 50))
        kind, value = next(answers)
        assert kind == FrameKind.TOPIC_STORED, value


def test_shutdown_ends_a_catchup_after_a_complete_frame_and_sends_bye(tmp_path: Path) -> None:
    path = tmp_path / "d" / "yirangmq.sock"
    with daemon(tmp_path, *QUIET, "--topic-durability", "os") as server:
        wire = Wire(path)
        publish(wire, 200, 2000)
        wire.close()
        following = Wire(path)
        following.send(FrameKind.TOPIC_SUBSCRIBE, messages.TopicSubscribe(start="beginning"))
        heard = following.heard()
        first = [next(heard) for _ in range(20)]
        assert first[0][0] == FrameKind.TOPIC_SUBSCRIBED
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        rest = list(heard)
        stopping.join(PATIENCE)
        following.close()
        assert rest[-1][0] == FrameKind.BYE
        sequences = [value.sequence for kind, value in [*first, *rest] if kind == records.KIND]
        assert sequences == list(range(1, len(sequences) + 1))


def grown(server: Daemon, before: int) -> int:
    return server.resident_bytes() - before


def test_backpressure_keeps_memory_flat_with_subscribers_that_stop_reading(tmp_path: Path) -> None:
    path = tmp_path / "d" / "yirangmq.sock"
    with daemon(tmp_path, *QUIET, "--topic-durability", "os") as server:
        wire = Wire(path)
        publish(wire, 20, 2000)
        standing = [Wire(path) for _ in range(3)]
        for number, one in enumerate(standing):
            start = "beginning" if number else "new"
            one.send(FrameKind.TOPIC_SUBSCRIBE, messages.TopicSubscribe(start=start, progress_ms=0))
        publish(wire, 40, 2000)
        before = server.resident_bytes()
        publish(wire, 600, 2000)  # 60 MB
        assert grown(server, before) < 12 << 20
        for one in standing:
            one.close()
        wire.close()


def test_feed_protocol_listens_on_socket_and_tcp_and_serves_the_log_that_exists_at_start(tmp_path: Path) -> None:
    options = (*QUIET, "--feed-socket", str(tmp_path / "feed.sock"), "--feed-tcp", "127.0.0.1:0")
    with daemon(tmp_path, *options) as server:
        addresses = [one for one in server.ready["addresses"] if one.startswith("feed")]
        assert addresses[0] == f"feed+unix:{tmp_path}/feed.sock"
        wire = Wire(tmp_path / "d" / "yirangmq.sock")
        publish(wire, 1, 10, "TOPIC2")
        wire.close()
        server.stop()
        assert not (tmp_path / "feed.sock").exists()
        server.start()
        port = int(server.ready["addresses"][-1].rpartition(":")[2])
        raw_unix = socket.socket(socket.AF_UNIX)
        raw_unix.connect(str(tmp_path / "feed.sock"))
        for raw in (raw_unix, socket.create_connection(("127.0.0.1", port))):
            raw.settimeout(PATIENCE)
            raw.sendall(layout.encode(layout.FeedSubscribe(1, 2, 0, "x")))
            scanner = layout.FeedDecoder(100)
            heard = list(scanner.feed(raw.recv(16)))
            assert heard == [layout.FeedSubscribeOk(0, 2, 50)]
            raw.sendall(layout.encode(layout.FeedRecoveryRequest(1, 2, 40)))
            while len(heard) < 13:
                heard += scanner.feed(raw.recv(1 << 16))
            assert [one.global_seq for one in heard if isinstance(one, layout.FeedTopicMessage)] == list(range(41, 51))
            raw.close()
