"""One client process of a comparison: it connects, says that it is ready, waits for the word, works, and writes how
far it is into a shared file. Knows: roles and progress. Does not know: any broker.

It needs nothing but Python, because it runs in the environment of whichever client library is measured."""

import json
import mmap
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

SIZE = 2000
"""Bytes of each message."""
FOREVER = 1 << 60
SLOT = struct.Struct("<qdd")
"""Of each worker: how many are confirmed, when it began, when the last one was confirmed (system-wide clock)."""


class Progress:
    """One slot of the shared file; whoever watches sees it without asking."""

    def __init__(self, path: Path, slot: int) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._at = slot * SLOT.size
        self._begin = 0.0
        self.count = 0

    def begin(self) -> None:
        self._begin = time.monotonic()
        self.add(0)

    def add(self, count: int) -> None:
        """So many more are confirmed by the broker."""
        self.count += count
        SLOT.pack_into(self._memory, self._at, self.count, self._begin, time.monotonic())

    def read(self) -> tuple[int, float, float]:
        found: tuple[int, float, float] = SLOT.unpack_from(self._memory, self._at)
        return found


class Client(Protocol):
    """What a broker's module gives: the fastest way its client library has for each of these."""

    def publish_singly(self, count: int, progress: Progress) -> None:
        """One after another, each confirmed before the next."""

    def publish_many(self, count: int, progress: Progress) -> None:
        """As fast as confirms allow, many under way."""

    def consume(self, count: int, progress: Progress) -> None:
        """Take and acknowledge; ``FOREVER``: until killed. What it did not get confirmed does not count."""

    def publish_paced(self, moments: list[float], bodies: Callable[[float], bytes]) -> None:
        """Send one at each moment, never waiting for a confirm before the next; ``bodies`` makes it say when. All
        are confirmed at the end."""

    def consume_timed(self, count: int, seen: Callable[[bytes], None]) -> None:
        """Take each as soon as it is there, call ``seen`` with its body, acknowledge."""

    def clean(self) -> None:
        """Remove the queue and all that is in it."""


def body() -> bytes:
    return b'{"reading":"' + b"x" * (SIZE - 14) + b'"}'


def stamped(moment: float) -> bytes:
    """A body that says when it was sent."""
    head = b'{"at":%.9f,"reading":"' % moment
    return head + b"x" * (SIZE - 2 - len(head)) + b'"}'


def stamp(payload: bytes) -> float:
    return float(payload[6 : payload.index(b",")])


def work(connect: Callable[[dict[str, Any]], Client]) -> None:
    """The whole life of a worker; its orders are the first argument."""
    orders = json.loads(sys.argv[1])
    client = connect(orders)
    progress = Progress(Path(orders["progress"]), orders["slot"])
    print("ready", flush=True)
    sys.stdin.readline()
    progress.begin()
    print(json.dumps(_perform(orders, client, progress)), flush=True)
    sys.stdin.read()  # stay until told, so that the time spent can be read


def _perform(orders: dict[str, Any], client: Client, progress: Progress) -> Any:
    role, count = orders["role"], orders["count"]
    if role == "clean":
        client.clean()
    elif role == "publish_paced":
        first = time.monotonic() + 0.2
        client.publish_paced([first + n / orders["rate"] for n in range(count)], stamped)
    elif role == "consume_timed":
        return _latencies(client, count)
    else:
        getattr(client, role)(count, progress)
    return None


def _latencies(client: Client, count: int) -> list[float]:
    found: list[float] = []
    client.consume_timed(count, lambda payload: found.append(time.monotonic() - stamp(payload)))
    return found
