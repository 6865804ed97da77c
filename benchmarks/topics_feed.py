"""How fast a feed reaches its subscribers: live, by recovery, both at once, and beside Redis Streams. Part two of
``make bench-topics``.

A real server on a unix socket, records of 2000 bytes, every publish confirmed after its sync. Whoever is compared takes
turns in the same run. Readers are as cheap as they can be (``topics_reader``), or it would be they that are measured.
Each target line at the end has: name | figure | wanted | reached or short."""

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import peers_fetch
import topics_log
from peers_process import Server
from peers_redis import RedisServer
from topics_log import target
from topics_senders import OurLine, RedisLine, dial, following, publishing, pump

from yirangmq.core.topics import NewRecord
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.stores.log.readonly import SegmentView
from yirangmq.wire import records
from yirangmq.wire.frames import FrameReader

HERE = Path(__file__).resolve().parent
PAYLOAD = b"x" * 2000
BATCH = 16
FRAME = len(records.encode_batch([NewRecord("trades.krx", PAYLOAD)], 1, 1, {}, synced=False).data)
"""Bytes of a record on the wire and on disk."""
LIVE_PACE = 30e6
"""Bytes a second that each of ten recovering clients reads beside a live one: a fast network's worth, together."""


class Sizes(NamedTuple):
    deliveries: int
    """Of all subscribers together, in a run of fan-out."""
    backlog: int
    """Records of a log that is recovered from."""
    singles: int
    """Records of a measurement of latency."""
    standing: int
    """Bytes published past a reader that stands still."""
    against: int
    """Records in a comparison with Redis."""
    repeats: int


WHOLE = Sizes(2_000_000, 500_000, 4_000, 1_000_000_000, 400_000, 5)
QUICK = Sizes(100_000, 40_000, 400, 60_000_000, 16_000, 2)


class OurServer(Server):
    """As anybody would start it; only the log is short."""

    name = "ours"
    workers = 2

    def open(self) -> None:
        self.path = str(self.folder / "yirangmq.sock")
        words = ["serve", "--data", str(self.folder), "--log-level", "warning", "--http", "off"]
        words += ["--recovery-workers", str(self.workers)]
        self.launch([sys.executable, "-m", "yirangmq", *words], {})

    def first_message(self) -> bool:
        line = OurLine(self.path, b"x", 1)
        pump(line, 1)
        line.close()
        return True

    def resident(self) -> int:
        return int(Path(f"/proc/{self.pids[0]}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def our_server(folder: Path) -> Iterator[OurServer]:
    server = OurServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Readers:
    """The program ``topics_reader``, from ready to done."""

    def __init__(self, path: str, clients: int, wanted: int, *, ask: bytes | list[bytes] = b"", **more: Any) -> None:
        said = [one.hex() for one in ask] if isinstance(ask, list) else ask.hex()
        orders = {"path": path, "clients": clients, "wanted": wanted, "ask": said, **more}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "topics_reader.py"), json.dumps(orders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("the readers could not begin")

    def result(self) -> dict[str, float]:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        self._process.communicate()  # ends its stdin
        if not said:
            raise RuntimeError("the readers failed")
        found: dict[str, float] = json.loads(said)
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


# -- live fan-out -----------------------------------------------------------------------------------------------------


def fan_out(folder: Path, sizes: Sizes) -> None:
    print("Live fan-out, batches of 16")
    rates = {}
    with our_server(folder / "fan") as server:
        for clients in (10, 100):
            requests = max(sizes.deliveries // clients // BATCH, 50)
            found = [_fan(server, clients, requests) for _ in range(sizes.repeats)]
            rates[clients] = statistics.median(found)
            spread = f"{min(found):,.0f} to {max(found):,.0f}"
            print(f"  to {clients:>3} subscribers: {rates[clients]:>9,.0f} deliveries/s ({spread})", flush=True)
    target("live fan-out to 10 subscribers", rates[10], ">= 250000/s", rates[10] >= 250_000, "/s")
    share = rates[100] / rates[10]
    target("live fan-out to 100, as a share of that to 10", share, ">= 0.8", share >= 0.8)


def _fan(server: OurServer, clients: int, requests: int) -> float:
    records_sent = requests * BATCH
    readers = Readers(server.path, clients, records_sent * FRAME, ask=following("new"))
    line = OurLine(server.path, PAYLOAD, BATCH)
    begin = time.monotonic()
    pump(line, requests)
    done = readers.result()
    line.close()
    return clients * records_sent / (done["end"] - begin)


# -- recovery ---------------------------------------------------------------------------------------------------------


def fill(folder: Path, count: int) -> int:
    """A log as a server would have written it; its bytes of records."""
    folder.mkdir(parents=True)
    with SegmentLog(folder / "topics", LogSettings(durability="os")) as log:
        for begin in range(0, count, 500):
            log.append([NewRecord("trades.krx", PAYLOAD)] * min(500, count - begin))
    return count * FRAME


def recovery(folder: Path, sizes: Sizes) -> None:
    home = folder / "recovery"
    size = fill(home, sizes.backlog)
    print(f"Recovery of {size / 1e9:.2g} GB to one client, in turns with sendfile of the same segments")
    with our_server_in(home) as server:
        ours, theirs = [], []
        for _ in range(sizes.repeats):
            theirs.append(size / plain_sendfile(home / "topics", folder / "plain.sock", size))
            ours.append(size / caught_up(server, sizes.backlog))
        _show_recovery(ours, theirs)
        disturbed(server, sizes, size)
    pool(home, sizes)
    shutil.rmtree(home, ignore_errors=True)


def _show_recovery(ours: list[float], theirs: list[float]) -> None:
    share = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
    print(
        f"  ours {statistics.median(ours) / 1e6:,.0f} MB/s, bare {statistics.median(theirs) / 1e6:,.0f} MB/s",
        flush=True,
    )
    target("recovery, as a share of a plain sendfile", share, ">= 0.6", share >= 0.6)


def pool(home: Path, sizes: Sizes) -> None:
    """What four clients take together, each a quarter of a history that is not in memory: a worker waits for the disk,
    so more of them wait for more of it. In turns; what is in memory, one worker sends as fast as memory goes."""
    print("Four clients recover a quarter each of what is on disk only, and what they take together")
    asks = [following("sequence", 1 + sizes.backlog * quarter // 4) for quarter in range(4)]
    rates: dict[int, list[float]] = {workers: [] for workers in (1, 2, 4)}
    for _ in range(sizes.repeats):
        for workers, found in rates.items():
            with our_server_in(home, workers) as server:
                forget(home / "topics")
                quarter = sizes.backlog // 4 * FRAME
                done = Readers(server.path, 4, quarter, ask=asks).result()
                found.append(done["bytes"] / done["seconds"] / 1e6)
    for workers, found in rates.items():
        spread = f"{min(found):,.0f} to {max(found):,.0f}"
        print(f"  {workers} workers {statistics.median(found):>7,.0f} MB/s ({spread})", flush=True)
    for workers in (2, 4):
        share = statistics.median(more / one for more, one in zip(rates[workers], rates[1], strict=True))
        target(f"four recoveries from disk, {workers} workers beside one", share, ">= 1.2", share >= 1.2)


def forget(log: Path) -> None:
    """The system keeps nothing of these files in memory."""
    for path in log.glob("*.log"):
        file = os.open(path, os.O_RDONLY)
        os.fdatasync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


@contextlib.contextmanager
def our_server_in(folder: Path, workers: int = 2) -> Iterator[OurServer]:
    server = OurServer(folder)
    server.workers = workers
    try:
        server.start_until(lambda: bool(dial(server.path).close() is None))
        yield server
    finally:
        server.stop()


def plain_sendfile(log: Path, path: Path, size: int) -> float:
    """The same bytes by the same system call, from a program that does nothing else."""
    with SegmentView(log) as view:
        files = []
        for piece in view.reader().pieces(1):
            files.append((os.dup(piece.file), piece.offset, piece.length))
    listener = socket.socket(socket.AF_UNIX)
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    listener.listen(1)

    def serve() -> None:
        line, _ = listener.accept()
        for file, offset, length in files:
            while length:
                sent = os.sendfile(line.fileno(), file, offset, length)
                offset, length = offset + sent, length - sent
        line.close()

    child = os.fork()
    if child == 0:
        try:
            serve()
        finally:
            os._exit(0)  # nothing of this program is the child's to clean up
    seconds = Readers(str(path), 1, size).result()["seconds"]
    os.waitpid(child, 0)
    listener.close()
    for file, _, _ in files:
        os.close(file)
    return seconds


def disturbed(server: OurServer, sizes: Sizes, size: int) -> None:
    """How late a live record is, with nobody beside it and with ten clients that recover."""
    print("Latency of live records, one at a time; alone, and beside ten clients that recover")
    alone, beside, flood = [], [], []
    for _ in range(sizes.repeats):
        alone.append(latency(server, sizes.singles))
        for found, pace in ((beside, LIVE_PACE), (flood, 0)):
            readers = Readers(server.path, 10, size, ask=following("beginning"), again=True, pace=pace)
            found.append(latency(server, sizes.singles))
            readers.stop()
    for name, found in (("alone", alone), (f"beside ten at {LIVE_PACE / 1e6:.0f} MB/s", beside), ("beside ten", flood)):
        p50, p99 = (statistics.median(one[place] for one in found) * 1e6 for place in (0, 1))
        print(f"  {name:<26} p50 {p50:>7,.0f} µs, p99 {p99:>7,.0f} µs", flush=True)
    for name, found in (("10 recovering", flood), (f"10 recovering at {LIVE_PACE / 1e6:.0f} MB/s", beside)):
        share = statistics.median(one[1] for one in found) / statistics.median(one[1] for one in alone)
        target(f"live p99 with {name}, beside undisturbed", share, "<= 2", share <= 2)


def latency(server: OurServer, count: int) -> tuple[float, float]:
    """p50 and p99 in seconds, from before a record is sent until a subscriber has it; 500 a second."""
    line, publisher = dial(server.path), OurLine(server.path, b"", 1)
    line.sendall(following("new"))
    frames, late = FrameReader(1 << 24), []

    def listen() -> None:
        while len(late) < count:
            data = line.recv(1 << 16)
            now = time.monotonic_ns()
            for kind, _, body in frames.feed(data):
                if kind == records.KIND:
                    late.append(now - int(records.read_body(body).payload[:20]))

    line.recv(1, socket.MSG_PEEK)
    listening = threading.Thread(target=listen)
    listening.start()
    for _ in range(count):
        publisher.send_frame(publishing(b"%020d" % time.monotonic_ns() + PAYLOAD[20:], 1))
        publisher.answers()
        time.sleep(0.002)
    listening.join(60)
    line.close()
    publisher.close()
    late.sort()
    return late[len(late) // 2] / 1e9, late[int(len(late) * 0.99)] / 1e9


# -- memory -----------------------------------------------------------------------------------------------------------


def standing(folder: Path, sizes: Sizes) -> None:
    print(f"A subscriber that stands still while {sizes.standing / 1e9:.2g} GB are published")
    with our_server(folder / "still") as server:
        still = dial(server.path)
        still.sendall(following("new"))
        line = OurLine(server.path, PAYLOAD, BATCH)
        step = max(sizes.standing // 20 // (BATCH * FRAME), 1)
        pump(line, step * 2)
        seen = [server.resident()]
        for _ in range(18):
            pump(line, step)
            seen.append(server.resident())
        line.close()
        still.close()
    grown = (max(seen) - min(seen)) / 1e6
    print(f"  memory of the server: {min(seen) / 1e6:,.1f} to {max(seen) / 1e6:,.1f} MB", flush=True)
    target("memory with a reader that stands still", grown, "<= 10 MB more", grown <= 10, " MB")


# -- beside Redis -----------------------------------------------------------------------------------------------------


def against_redis(folder: Path, sizes: Sizes) -> None:
    print("Beside Redis Streams, appendfsync always; batches of 16, 32 under way")
    redis = RedisServer(folder / "redis", peers_fetch.find())
    requests = sizes.against // BATCH
    count = requests * BATCH
    publish: dict[str, list[float]] = {"ours": [], "Redis": []}
    catch_up: dict[str, list[float]] = {"ours": [], "Redis": []}
    try:
        redis.start()
        for number in range(sizes.repeats):
            with our_server(folder / f"against-{number}") as server:
                line = OurLine(server.path, PAYLOAD, BATCH)
                publish["ours"].append(count / pump(line, requests))
                line.close()
                catch_up["ours"].append(count / caught_up(server, count))
            theirs = RedisLine(redis.address["path"], PAYLOAD, BATCH, f"p{number}")
            publish["Redis"].append(count / pump(theirs, requests))
            theirs.close()
            catch_up["Redis"].append(count / redis_catch_up(redis, f"c{number}", requests))
    finally:
        redis.stop()
    for name, found, wanted in (("publish", publish, 1.5), ("catch-up", catch_up, 3.0)):
        rates = {who: statistics.median(several) for who, several in found.items()}
        share = rates["ours"] / rates["Redis"]
        print(f"  {name:<9} ours {rates['ours']:>9,.0f}/s, Redis {rates['Redis']:>9,.0f}/s", flush=True)
        target(f"{name}, as a multiple of Redis Streams", share, f">= {wanted}", share >= wanted)


def caught_up(server: OurServer, count: int) -> float:
    """Seconds from the connection to the last byte."""
    return Readers(server.path, 1, count * FRAME, ask=following("beginning")).result()["seconds"]


PAGE = 1000
FIRST_ID = 100_000_000_000


def redis_catch_up(redis: RedisServer, stream: str, requests: int) -> float:
    """XREAD page by page: a client asks for what follows the last id it was sent, and knows that when it has the page.
    Ids are all of one length, so that nothing has to be parsed. In a program of its own, as ours is."""
    line = RedisLine(redis.address["path"], PAYLOAD, BATCH, stream)
    line.number(FIRST_ID)
    pump(line, requests)
    line.close()
    program = [sys.executable, str(HERE / "topics_feed.py"), "--redis-reader", redis.address["path"], stream]
    done = subprocess.run([*program, str(requests * BATCH)], check=True, capture_output=True, text=True)
    return float(done.stdout)


def redis_reader(path: str, stream: str, count: int) -> None:
    begun = time.monotonic()
    line, buffer = RedisLine(path, PAYLOAD, BATCH, stream), memoryview(bytearray(PAGE * 2200))

    def asked(after: int) -> bytes:
        words = (b"XREAD", b"COUNT", b"%d" % PAGE, b"STREAMS", stream.encode(), b"%d-1" % after)
        return b"*6\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)

    def size(entries: int) -> int:
        id = b"%d-1" % FIRST_ID
        entry = b"*2\r\n$%d\r\n%s\r\n*2\r\n$1\r\nb\r\n$%d\r\n%s\r\n" % (len(id), id, len(PAYLOAD), PAYLOAD)
        name = stream.encode()
        return len(b"*1\r\n*2\r\n$%d\r\n%s\r\n*%d\r\n" % (len(name), name, entries)) + entries * len(entry)

    pages = [(begin, min(PAGE, count - begin)) for begin in range(0, count, PAGE)]
    for begin, entries in pages:
        line.ask(asked(FIRST_ID + begin - 1))
        line.read_exactly(size(entries), buffer)
    print(time.monotonic() - begun)


SECTIONS = {"fan-out": fan_out, "recovery": recovery, "memory": standing, "redis": against_redis}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the data, two repeats")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this part alone; more than once")
    parser.add_argument("--folder", help="where to measure (default: a new folder below the temporary one)")
    parser.add_argument("--redis-reader", nargs=3, metavar=("PATH", "STREAM", "COUNT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.redis_reader:
        path, stream, count = args.redis_reader
        redis_reader(path, stream, int(count))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="yirangmq-bench-", dir=args.folder))
    try:
        for name, measure in SECTIONS.items():
            if args.only is None or name in args.only:
                measure(folder, QUICK if args.quick else WHOLE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(topics_log.TARGETS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
