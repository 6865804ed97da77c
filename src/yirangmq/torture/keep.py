"""How much of what was written to a file since its last sync a power cut leaves. Knows: bytes and blocks.
Does not know: files, names. Each kind takes the safe content and the changes after it, and gives one content."""

from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Protocol

from yirangmq.torture.journal import Truncate, Write
from yirangmq.torture.shadow import DataChange, apply_all, apply_one, put

SECTORS = (512, 4096)
"""What disks of both kinds write at once; a write may be torn between these, at places that are multiples of them."""


class Keep(Protocol):
    def left(self, safe: bytes, changes: list[DataChange]) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Lost:
    """Nothing reached the disk."""

    def left(self, safe: bytes, changes: list[DataChange]) -> bytes:
        return safe


@dataclass(frozen=True, slots=True)
class Kept:
    """All of it did, although nobody asked."""

    def left(self, safe: bytes, changes: list[DataChange]) -> bytes:
        return apply_all(safe, changes)


@dataclass(frozen=True, slots=True)
class Hollow:
    """The file grew, and the new part is zeros: the size was written, the data was not."""

    def left(self, safe: bytes, changes: list[DataChange]) -> bytes:
        size = len(apply_all(safe, changes))
        return safe + bytes(max(0, size - len(safe)))


@dataclass(frozen=True, slots=True)
class Torn:
    """The first ``whole`` changes, and ``part`` bytes of the next."""

    whole: int
    part: int

    def left(self, safe: bytes, changes: list[DataChange]) -> bytes:
        image = bytearray(apply_all(safe, changes[: self.whole]))
        if self.whole < len(changes):
            change = changes[self.whole]
            if isinstance(change, Write):
                put(image, change.offset, change.data[: self.part])
        return bytes(image)


@dataclass(frozen=True, slots=True)
class Scattered:
    """Each sector of each write kept or not, in no order; ``junk``: a hole in new ground holds rubbish, not zeros."""

    seed: int
    sector: int
    junk: bool

    def left(self, safe: bytes, changes: list[DataChange]) -> bytes:
        chance = Random(self.seed)
        image = bytearray(safe)
        for change in changes:
            if isinstance(change, Truncate):
                if chance.random() < 0.5:
                    apply_one(image, change)
                continue
            for start, end in _sectors(change, self.sector):
                if chance.random() < 0.5:
                    if self.junk and start > len(image):
                        image.extend(chance.randbytes(start - len(image)))
                    put(image, start, change.data[start - change.offset : end - change.offset])
        return bytes(image)


def any_keep(chance: Random, changes: list[DataChange]) -> Keep:
    """One of the kinds, with numbers that fit these changes."""
    kind = chance.randrange(8)
    if kind == 0:
        return Lost()
    if kind == 1:
        return Kept()
    if kind == 2:
        return Hollow()
    if kind <= 4:
        whole = chance.randrange(len(changes))
        change = changes[whole]
        return Torn(whole, chance.randint(0, len(change.data)) if isinstance(change, Write) else 0)
    return Scattered(chance.getrandbits(32), chance.choice(SECTORS), chance.random() < 0.3)


def _sectors(write: Write, size: int) -> list[tuple[int, int]]:
    """The parts of a write that lie in different sectors of the disk."""
    end = write.offset + len(write.data)
    edges = [write.offset, *range((write.offset // size + 1) * size, end, size), end]
    return list(pairwise(edges))
