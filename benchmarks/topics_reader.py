"""Readers of a feed that cost next to nothing: bytes are read into one buffer and counted, because the size of a frame
is known. A program of its own, so that it has a core of its own.

``topics_reader.py ORDERS``, a JSON object: ``path`` of a unix socket; ``clients``; ``ask``, hexadecimal, what each says
first, if anything (a list: the clients take turns at it); ``wanted`` bytes for each; ``pace``, bytes a second of each
(0: as they come); ``again``: each begins anew when it has all, until stdin ends. Prints ``ready`` when each was
answered, and a JSON object at the end."""

import json
import select
import socket
import sys
import time
from typing import Any

BUFFER = 1 << 20
SLICE = 0.01
"""Seconds between two reads of a reader with a pace."""


class Reader:
    def __init__(self, orders: dict[str, Any], number: int) -> None:
        asks = orders["ask"] if isinstance(orders["ask"], list) else [orders["ask"]]
        self._path, self._ask, self._wanted = orders["path"], bytes.fromhex(asks[number % len(asks)]), orders["wanted"]
        self.open()

    def open(self) -> int:
        self.read = 0
        self.line = socket.socket(socket.AF_UNIX)
        self.line.connect(self._path)
        if self._ask:
            self.line.sendall(self._ask)
            self.line.recv(1, socket.MSG_PEEK)
        return self.line.fileno()

    @property
    def is_done(self) -> bool:
        return self.read >= self._wanted


def run(orders: dict[str, Any]) -> dict[str, float]:
    """All of them, until each has what it wants; ``seconds`` from the first one's connection."""
    begin = time.monotonic()
    readers = [Reader(orders, number) for number in range(orders["clients"])]
    print("ready", flush=True)
    poll = select.epoll()
    poll.register(sys.stdin, select.EPOLLIN)
    there = {reader.line.fileno(): reader for reader in readers}
    for number in there:
        poll.register(number, select.EPOLLIN)
    buffer, pace = bytearray(BUFFER), orders.get("pace", 0)
    most = min(BUFFER, int(pace * SLICE) or BUFFER)
    total = 0
    while there:
        begun = time.monotonic()
        for number, _ in poll.poll():
            if number not in there:
                return told(begin, total)
            reader = there[number]
            count = reader.line.recv_into(buffer, most)
            reader.read += count
            total += count
            if not count:
                raise SystemExit("the server has closed")
            if reader.is_done:
                poll.unregister(number)
                reader.line.close()
                del there[number]
                if orders.get("again"):
                    again = reader.open()
                    there[again] = reader
                    poll.register(again, select.EPOLLIN)
        if pace:
            time.sleep(max(0.0, begun + SLICE - time.monotonic()))
    return told(begin, total)


def told(begin: float, total: int) -> dict[str, float]:
    end = time.monotonic()
    return {"end": end, "seconds": end - begin, "bytes": total, "cpu": time.process_time()}


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))), flush=True)
