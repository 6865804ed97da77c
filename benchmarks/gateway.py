"""A gateway's day in a minute: our server beside Debian's ActiveMQ, both over STOMP, with the same client processes.

    make bench-gateway                    (BENCH_FLAGS=--quick: a tenth of everything)

Measured, in this order: idle memory; the rate of confirmed persistent sends of 2000 bytes, one at a time and with a
window of receipts outstanding; the rate end to end, sent with receipts and taken with acks; the delay of 50 connections
at 170 messages a second; memory again, when all is quiet. The clients are sockets and counted bytes: a client library
would be measured instead of the brokers."""

import argparse
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from activemq import ActiveMQ, Ours, StompServer

SIZE = 2000
SENDERS = 4
WINDOW = 200
"""Receipts a sender waits for at the same time; then it sends half as many more."""
ACK_EVERY = 100
LINES = 50
PER_SECOND = 170
PATIENCE = 120.0
STAMP = re.compile(rb"T(\d{19})")
ACK = re.compile(rb"\nack:([^\n]+)\n")
WANTED = {"send rate": 3.0, "end to end rate": 3.0, "idle memory": 1 / 3, "p99": 100.0}


# -- clients --------------------------------------------------------------------------------------------------------


def dial(port: int) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", port), PATIENCE)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.sendall(b"CONNECT\naccept-version:1.2\nhost:localhost\n\n\0")
    _frames(line, 1)
    return line


def _frames(line: socket.socket, count: int) -> None:
    """So many frames more; their bodies hold no NUL."""
    while count > 0:
        data = line.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed the connection")
        if b"ERROR\n" in data:
            raise RuntimeError(data[:500].decode(errors="replace"))
        count -= data.count(b"\0")


def _receipt(line: socket.socket) -> bytes:
    """Wait for the receipt of a SUBSCRIBE; the messages that came with it."""
    data = b""
    while (at := data.find(b"RECEIPT\n")) < 0 or (end := data.find(b"\0", at)) < 0:
        more = line.recv(1 << 18)
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more
    return data[:at] + data[end + 1 :]


def frame(queue: str, number: int) -> bytes:
    body = (b"T%019d" % time.time_ns()).ljust(SIZE, b"x")
    head = f"SEND\ndestination:/queue/{queue}\npersistent:true\nreceipt:{number}\ncontent-length:{SIZE}\n\n"
    return head.encode() + body + b"\0"


def send(port: int, queue: str, count: int, window: int, pipe: Connection) -> None:
    """Each confirmed by a receipt; ``window`` of them may be on their way."""
    line = dial(port)
    pipe.send("ready")
    pipe.recv()
    sent = confirmed = 0
    step = max(1, window // 2)
    while confirmed < count:
        more = min(step, count - sent) if sent - confirmed <= window - step else 0
        if more:
            line.sendall(b"".join([frame(queue, number) for number in range(sent, sent + more)]))
            sent += more
            continue
        data = line.recv(1 << 18)
        if not data or b"ERROR\n" in data:
            raise RuntimeError(data[:500].decode(errors="replace"))
        confirmed += data.count(b"\0")
    pipe.send(time.monotonic())


def take(port: int, queue: str, count: int, pipe: Connection) -> None:
    """``count`` messages, acknowledged by the hundred; then the delays, in milliseconds."""
    line = dial(port)
    subscribe = f"SUBSCRIBE\nid:1\nack:client\nactivemq.prefetchSize:1000\nreceipt:s\ndestination:/queue/{queue}\n\n\0"
    line.sendall(subscribe.encode())
    rest = _receipt(line)
    pipe.send("ready")
    pipe.recv()
    got = unacked = 0
    delays: list[float] = []
    while got < count:
        if b"\0" not in rest:
            more = line.recv(1 << 18)
            if not more:
                raise ConnectionError("the broker closed the connection")
            rest += more
        now = time.time_ns()
        whole = rest.rfind(b"\0") + 1
        data, rest = rest[:whole], rest[whole:]
        found = data.count(b"\0")
        got += found
        unacked += found
        delays += [(now - int(stamp)) / 1e6 for stamp in STAMP.findall(data)]
        if unacked >= ACK_EVERY or got >= count:
            line.sendall(b"ACK\nid:%s\n\n\0" % ACK.findall(data)[-1])
            unacked = 0
    pipe.send((time.monotonic(), delays))
    pipe.recv()


# -- measures -------------------------------------------------------------------------------------------------------


class Crew:
    """Client processes that begin together."""

    def __init__(self, works: list[tuple[Any, tuple[Any, ...]]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes = []
        self.processes = []
        for work, values in works:
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(*values, theirs), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)
        for pipe in self.pipes:
            _hear(pipe)
        self.begun = time.monotonic()
        for pipe in self.pipes:
            pipe.send("go")

    def answers(self) -> list[Any]:
        found = [_hear(pipe) for pipe in self.pipes]
        for pipe in self.pipes:
            try:
                pipe.send("done")
            except OSError:
                continue
        for process in self.processes:
            process.join(10)
            process.kill()
        return found


def _hear(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE * 4):
        raise RuntimeError("a client did not answer")
    return pipe.recv()


def send_rate(server: StompServer, count: int, senders: int, window: int) -> float:
    queue = f"send-{senders}-{window}"
    crew = Crew([(send, (server.address["port"], queue, count // senders, window)) for _ in range(senders)])
    return count // senders * senders / (max(crew.answers()) - crew.begun)


def end_to_end_rate(server: StompServer, count: int) -> float:
    """Two senders and two consumers, each pair with a queue of its own."""
    port = server.address["port"]
    works: list[tuple[Any, tuple[Any, ...]]] = []
    for pair in range(2):
        works.append((take, (port, f"pair-{pair}", count // 2)))
        works.append((send, (port, f"pair-{pair}", count // 2, WINDOW)))
    crew = Crew(works)
    ends = [one[0] if isinstance(one, tuple) else one for one in crew.answers()]
    return count // 2 * 2 / (max(ends) - crew.begun)


def delays(server: StompServer, seconds: float) -> list[float]:
    """Half of the connections send, half take, each pair with a queue; so many messages a second altogether."""
    port = server.address["port"]
    pairs = LINES // 2
    every = pairs / PER_SECOND
    count = max(2, round(seconds / every))
    found: list[list[float]] = [[] for _ in range(pairs)]
    taking = [threading.Thread(target=_listen, args=(port, f"steady-{n}", count, found[n])) for n in range(pairs)]
    sending = [
        threading.Thread(target=_pace, args=(port, f"steady-{n}", count, every, n / pairs)) for n in range(pairs)
    ]
    for thread in [*taking, *sending]:
        thread.start()
    for thread in [*sending, *taking]:
        thread.join()
    return sorted(delay for one in found for delay in one)


def _listen(port: int, queue: str, count: int, found: list[float]) -> None:
    line = dial(port)
    line.sendall(f"SUBSCRIBE\nid:1\nack:auto\nreceipt:s\ndestination:/queue/{queue}\n\n\0".encode())
    rest = _receipt(line)
    while len(found) < count:
        data = rest + line.recv(1 << 16)
        whole = data.rfind(b"\0") + 1
        now = time.time_ns()
        found += [(now - int(stamp)) / 1e6 for stamp in STAMP.findall(data[:whole])]
        rest = data[whole:]
    line.close()


def _pace(port: int, queue: str, count: int, every: float, phase: float) -> None:
    line = dial(port)
    begin = time.monotonic() + 1 + every * phase
    for number in range(count):
        time.sleep(max(0.0, begin + number * every - time.monotonic()))
        line.sendall(frame(queue, number))
        _frames(line, 1)
    line.close()


def resident(server: StompServer) -> float:
    """MiB of all its processes."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in server.pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measured(server: StompServer, quick: bool) -> dict[str, Any]:
    share = 10 if quick else 1
    server.start()
    try:
        time.sleep(2)
        said: dict[str, Any] = {"idle memory": resident(server)}
        send_rate(server, 4000 // share, SENDERS, WINDOW)  # warm: a virtual machine compiles on the way
        said["one at a time"] = send_rate(server, 2000 // share, 1, 1)
        said["send rate"] = send_rate(server, 40_000 // share, SENDERS, WINDOW)
        said["end to end rate"] = end_to_end_rate(server, 40_000 // share)
        late = delays(server, 60 / share)
        time.sleep(2)
        said["memory after"] = resident(server)
        said["p50"], said["p99"] = late[len(late) // 2], late[min(len(late) - 1, len(late) * 99 // 100)]
        return said
    finally:
        server.stop(signal.SIGTERM)


def report(theirs: dict[str, Any] | None, ours: dict[str, Any]) -> None:
    rows = {"idle memory": "MiB", "one at a time": "msg/s", "send rate": "msg/s", "end to end rate": "msg/s"}
    rows |= {"p50": "ms", "p99": "ms", "memory after": "MiB"}
    print(f"{'':18} {'ActiveMQ':>10} {'yirangmq':>10}")
    for name, unit in rows.items():
        shown = "-" if theirs is None else f"{theirs[name]:.1f}"
        print(f"{name:18} {shown:>10} {ours[name]:>10.1f} {unit}")
    if theirs is not None:
        for name in ("send rate", "end to end rate"):
            _target(f"{name} over STOMP", ours[name] / theirs[name], WANTED[name], is_more=True)
        for name, when in (("idle memory", "just started"), ("memory after", "after the work")):
            _target(f"idle memory, {when}", ours[name] / theirs[name], WANTED["idle memory"], is_more=False)
    is_reached = ours["p99"] < WANTED["p99"]
    print(f"target: p99 of {LINES} connections at {PER_SECOND} msg/s | {ours['p99']:.1f} ms | < {WANTED['p99']:g} ms | "
          f"{'reached' if is_reached else 'short'}")  # fmt: skip


def _target(name: str, figure: float, wanted: float, is_more: bool) -> None:
    is_reached = figure >= wanted if is_more else figure <= wanted
    sign = ">=" if is_more else "<="
    print(f"target: {name} | {figure:.2f} x | {sign} {wanted:.2f} x | {'reached' if is_reached else 'short'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--only", choices=["ours"], help="without ActiveMQ")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gateway-"))
    try:
        theirs = None if args.only else measured(ActiveMQ(folder / "activemq"), args.quick)
        ours = measured(Ours(folder / "ours"), args.quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(theirs, ours)
    if args.json:
        Path(args.json).write_text(json.dumps({"ActiveMQ": theirs, "yirangmq": ours}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
