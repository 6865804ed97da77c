"""Time, chance and our own name, the real ones. Everything else is handed these."""

import os
import random
import socket
import time


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class TimeOrderedIds:
    """UUIDs of version 7: they sort by time, so that an index of them grows at its end.

    One batch shares one draw of 73 random bits and counts up from it."""

    def new(self, count: int) -> list[str]:
        stamp = f"{time.time_ns() // 1_000_000:012x}"
        drawn = int.from_bytes(os.urandom(10))
        group, variant = drawn & 0xFFF, 0x8000 | drawn >> 12 & 0x3FFF
        head = f"{stamp[:8]}-{stamp[8:]}-7{group:03x}-{variant:04x}-"
        first = drawn >> 26 & 0x7FFF_FFFF_FFFF
        return [f"{head}{number:012x}" for number in range(first, first + count)]

    def fraction(self) -> float:
        return random.random()


def default_consumer() -> str:
    """Who we are if nobody says: host and process."""
    host = "".join(c if c.isalnum() or c in "_-" else "-" for c in socket.gethostname())[:40] or "host"
    return f"{host}-{os.getpid()}"
