"""A load client that costs little: raw sockets, requests made in advance, a minimum of parsing, one process for all
connections.

Run as a program it does what its first argument, a JSON object, says, and prints what it found as one line of JSON. A
``job`` gives every connection a script, a generator that yields requests and is sent their answers."""

import json
import os
import re
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

BUFFER = 1 << 20
LENGTH = b"content-length: "
LEASE_ID = re.compile(rb'"leaseId":"([^"]+)"')
FRAME = struct.Struct(">IBBHI")
STORED = 4
PATIENCE = 60.0


class Answer(NamedTuple):
    status: bytes
    body: bytes
    size: int
    """Of all of it, as it came."""


Script = Generator[bytes, Answer, None]
Split = Callable[[bytes], Answer | None]


def split_http(held: bytes) -> Answer | None:
    """One whole answer at the start of what came."""
    end = held.find(b"\r\n\r\n")
    if end < 0:
        return None
    mark = held.find(LENGTH, 0, end)
    size = int(held[mark + 16 : held.find(b"\r", mark)]) if mark >= 0 else 0
    if len(held) < end + 4 + size:
        return None
    return Answer(held[9:12], held[end + 4 : end + 4 + size], end + 4 + size)


def split_frame(held: bytes) -> Answer | None:
    """The same of the socket door; the kind of the frame is its status."""
    if len(held) < FRAME.size:
        return None
    length, _, kind, _, _ = FRAME.unpack_from(held)
    size = FRAME.size + int(length)
    return None if len(held) < size else Answer(b"%d" % kind, held[FRAME.size : size], size)


class Line:
    """One connection: sends what its script yields, one request at a time."""

    def __init__(self, link: socket.socket, script: Script, split: Split) -> None:
        self._link = link
        self._script = script
        self._split = split
        self._held = b""

    def go(self) -> bool:
        return self._send(None)

    def receive(self) -> bool:
        """False: the script is at its end."""
        data = self._link.recv(BUFFER)
        if not data:
            raise RuntimeError(f"the server hung up on {self._held[:200]!r}")
        self._held = self._held + data if self._held else data
        answer = self._split(self._held)
        if answer is None:
            return True
        self._held = self._held[answer.size :]
        return self._send(answer)

    def _send(self, answer: Answer | None) -> bool:
        try:
            request = next(self._script) if answer is None else self._script.send(answer)
        except StopIteration:
            return False
        self._link.sendall(request)
        return True


class Tally:
    """What the scripts did, and when it is enough."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self.end = time.perf_counter() + orders.get("seconds", 0)
        self.done = 0

    @property
    def is_over(self) -> bool:
        return time.perf_counter() >= self.end


def request(method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    return f"{head}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def expect(answer: Answer, status: bytes) -> bytes:
    if answer.status != status:
        raise RuntimeError(f"{answer.status!r} instead of {status!r}: {answer.body[:200]!r}")
    return answer.body


# -- what connections do ----------------------------------------------------------------------------------------------


def cycles(orders: dict[str, Any], tally: Tally) -> Script:
    """Draft, set, order, get, complete, again and again."""
    base = f"/mq/{orders['queue']}/messages"
    draft, order = request("POST", base, b'{"priority":null}'), request("GET", base)
    payload = b"x" * orders["size"]
    behind = request("PUT", "", payload, "text/plain").partition(b"PUT ")[2]
    start = base.encode()
    end = b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    while not tally.is_over:
        id = expect((yield draft), b"200")
        expect((yield b"PUT %b/%b%b" % (start, id, behind)), b"204")
        id = expect((yield order), b"200")
        if len(expect((yield b"GET %b/%b%b" % (start, id, end)), b"200")) != len(payload):
            raise RuntimeError("another payload than was sent")
        expect((yield b"PATCH %b/%b/complete%b" % (start, id, end)), b"204")
        tally.done += 1


def ordering(orders: dict[str, Any], tally: Tally) -> Script:
    """Order, and nothing else; there are enough messages."""
    order = request("GET", f"/mq/{orders['queue']}/messages")
    while tally.done < orders["count"]:
        tally.done += 1
        expect((yield order), b"200")


def publishing(orders: dict[str, Any], tally: Tally) -> Script:
    """``batch`` messages in each call; one alone is a document, several are an array."""
    one, batch = b'{"text":"%b"}' % (b"x" * (orders["size"] - 11)), orders["batch"]
    body = one if batch == 1 else b"[%b]" % b",".join([one] * batch)
    publish = request("POST", f"/v1/queues/{orders['queue']}/messages", body)
    while not tally.is_over:
        expect((yield publish), b"200")
        tally.done += batch


def consuming(orders: dict[str, Any], tally: Tally) -> Script:
    """Lease ``batch``, ack them, until ``count`` are done."""
    base, batch = f"/v1/queues/{orders['queue']}", orders["batch"]
    lease = request("POST", f"{base}/lease", b'{"max":%d}' % batch)
    start, rest = request("POST", f"{base}/ack", b"").split(b"0\r\n\r\n")
    while tally.done < orders["count"]:
        leases = LEASE_ID.findall(expect((yield lease), b"200"))
        if not leases:
            return
        ack = b'{"leases":["%b"]}' % b'","'.join(leases)
        expect((yield b"%b%d\r\n\r\n%b%b" % (start, len(ack), rest, ack)), b"200")
        tally.done += len(leases)


def framing(orders: dict[str, Any], tally: Tally) -> Script:
    """The socket door: frames of ``batch`` messages each, by its own ids."""
    from yirangmq.wire import messages
    from yirangmq.wire.frames import FrameKind

    yield messages.frame(FrameKind.HELLO, 1, messages.Hello("bench"))
    batch = orders["batch"]
    one = messages.OutgoingMessageBody(b'{"text":"%b"}' % (b"x" * (orders["size"] - 11)), True)
    publish = messages.frame(FrameKind.PUBLISH, 2, messages.Publish(orders["queue"], [one] * batch))
    while not tally.is_over:
        expect((yield publish), b"%d" % STORED)
        tally.done += batch


JOBS: dict[str, Callable[[dict[str, Any], Tally], Script]] = {
    "cycles": cycles,
    "ordering": ordering,
    "publishing": publishing,
    "consuming": consuming,
    "framing": framing,
}


# -- running them -----------------------------------------------------------------------------------------------------


def connect(orders: dict[str, Any]) -> socket.socket:
    if "socket" in orders:
        link = socket.socket(socket.AF_UNIX)
        link.connect(orders["socket"])
    else:
        link = socket.create_connection(("127.0.0.1", orders["port"]))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link  # blocking, without a time-out: one would cost another system call each time


def run(orders: dict[str, Any]) -> dict[str, Any]:
    job = JOBS[orders["job"]]
    links = [connect(orders) for _ in range(orders["connections"])]
    poll = select.epoll()
    tally = Tally(orders)
    begin = time.perf_counter()
    split = split_frame if "socket" in orders else split_http
    lines = {link.fileno(): Line(link, job(orders, tally), split) for link in links}
    for fd, line in list(lines.items()):
        poll.register(fd, select.EPOLLIN)
        if not line.go():
            del lines[fd]
    while lines:
        found = poll.poll(PATIENCE)
        if not found:
            raise RuntimeError("the server does not answer")
        for fd, _ in found:
            if not lines[fd].receive():
                poll.unregister(fd)
                del lines[fd]
    return {"done": tally.done, "seconds": time.perf_counter() - begin}


def wake(orders: dict[str, Any]) -> dict[str, Any]:
    """How long after a set is sent the order that waits for it is answered, in milliseconds."""
    base = f"/mq/{orders['queue']}/messages"
    waiting, setting = connect(orders), connect(orders)
    draft, order = request("POST", base, b'{"priority":null}'), request("GET", base)
    found = []
    for _ in range(orders["count"]):
        waiting.sendall(order)
        setting.sendall(draft)
        id = _answer(setting)
        time.sleep(orders["pause"])
        content = request("PUT", f"{base}/{id.decode()}", b"x" * orders["size"], "text/plain")
        begin = time.perf_counter()
        setting.sendall(content)
        taken = _answer(waiting)
        found.append((time.perf_counter() - begin) * 1000)
        _answer(setting)
        if taken != id:
            raise RuntimeError("another message than was set")
        setting.sendall(request("DELETE", f"{base}/{id.decode()}"))
        _answer(setting)
    return {"done": len(found), "spans": found}


def _answer(link: socket.socket) -> bytes:
    held = b""
    while (answer := split_http(held)) is None:
        held += link.recv(BUFFER)
    return answer.body


def main() -> None:
    orders = json.loads(sys.argv[1])
    before = os.times()
    found = wake(orders) if orders["job"] == "wake" else run(orders)
    after = os.times()
    found["client_seconds"] = after.user + after.system - before.user - before.system
    print(json.dumps(found))


if __name__ == "__main__":
    main()
