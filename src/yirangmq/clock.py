"""Time and chance, the real ones. Everything else is handed these."""

import os
import random
import time


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class TimeOrderedIds:
    """UUIDs of version 7: they sort by time, so that an index of them grows at its end.

    One batch shares one draw of 74 random bits and counts up from it."""

    def new(self, count: int) -> list[str]:
        head = f"{time.time_ns() // 1_000_000:012x}"
        prefix = f"{head[:8]}-{head[8:]}-7"
        draw = int.from_bytes(os.urandom(9)) & (2**74 - 1 - 2**40)
        made = []
        for number in range(draw, draw + count):
            tail = f"{number >> 62:03x}{0x8000000000000000 | number & 0x3FFFFFFFFFFFFFFF:016x}"
            made.append(f"{prefix}{tail[:3]}-{tail[3:7]}-{tail[7:]}")
        return made

    def fraction(self) -> float:
        return random.random()
