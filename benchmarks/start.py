"""How fast a server starts, what it costs at rest, and how soon it delivers after a kill -9 with much waiting.

    python benchmarks/start.py [--waiting 300000] [--rounds 5]

Each figure is a whole process from exec on, seen from a client that tries to connect all the time; the best and the
median of the rounds."""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind, FrameReader

PAYLOAD = b"x" * 2000
PER_FRAME = 500
MIB = 1024 * 1024


class Peer:
    """A client with nothing around it, so that the server is what is measured."""

    def __init__(self, path: str) -> None:
        self._line = socket.socket(socket.AF_UNIX)
        self._reader = FrameReader(64 * MIB)
        self._number = 0
        until = time.monotonic() + 60
        while True:
            try:
                self._line.connect(path)
                return
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.001)

    def ask(self, kind: FrameKind, body: object) -> object:
        self._number += 1
        self._line.sendall(messages.frame(kind, self._number, body))  # type: ignore[arg-type]
        while True:
            for frame in self._reader.feed(self._line.recv(MIB)):
                if frame.kind == FrameKind.ERROR:
                    raise SystemExit(f"the server says: {messages.read(frame.kind, frame.body)}")
                return messages.read(frame.kind, frame.body)

    def publish(self, count: int) -> None:
        self.ask(FrameKind.PUBLISH, messages.Publish("bench", [messages.OutgoingMessageBody(PAYLOAD, False)] * count))

    def close(self) -> None:
        self._line.close()


def started(folder: Path) -> tuple["subprocess.Popen[bytes]", str]:
    command = [
        sys.executable,
        "-m",
        "yirangmq",
        "serve",
        "--data",
        str(folder),
        "--log-level",
        "error",
        "--http",
        "127.0.0.1:0",
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL), str(folder / "yirangmq.sock")


def first_accepted(folder: Path) -> tuple[float, int]:
    """Seconds from nothing to the first message on disk; bytes of memory at rest."""
    began = time.perf_counter()
    process, path = started(folder)
    peer = Peer(path)
    peer.publish(1)
    seconds = time.perf_counter() - began
    peer.close()
    time.sleep(1)
    resident = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    process.terminate()
    process.wait()
    return seconds, resident


def fill(folder: Path, waiting: int) -> "subprocess.Popen[bytes]":
    process, path = started(folder)
    peer = Peer(path)
    for _ in range(0, waiting, PER_FRAME):
        peer.publish(PER_FRAME)
    peer.close()
    return process


def first_delivery(folder: Path, process: "subprocess.Popen[bytes]") -> tuple[float, "subprocess.Popen[bytes]"]:
    """Seconds from exec after a kill -9 to the first message in a consumer's hands."""
    process.kill()
    process.wait()
    began = time.perf_counter()
    process, path = started(folder)
    peer = Peer(path)
    got = peer.ask(FrameKind.LEASE, messages.Lease("bench", 1, 10_000))
    seconds = time.perf_counter() - began
    assert isinstance(got, messages.Deliver)
    assert got.messages
    peer.close()
    return seconds, process


def shown(name: str, seconds: list[float]) -> None:
    print(f"{name:<58} best {min(seconds):.3f} s   median {statistics.median(seconds):.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as folder:
        cold = [first_accepted(Path(folder) / str(n)) for n in range(args.rounds)]
        shown("cold start to the first accepted message", [seconds for seconds, _ in cold])
        print(f"{'memory at rest':<58} {max(resident for _, resident in cold) / MIB:.1f} MiB")
        process = fill(Path(folder) / "full", args.waiting)
        again: list[float] = []
        for _ in range(args.rounds):
            seconds, process = first_delivery(Path(folder) / "full", process)
            again.append(seconds)
        process.kill()
        process.wait()
        shown(f"kill -9 with {args.waiting} waiting to the first delivery", again)


if __name__ == "__main__":
    main()
