"""Power-cut outcomes: how much of unsynced data is left, and which of the possible disks to try.

Each ``Keep`` computes one content from the durable content of a file and the changes after it: lost, kept, zeros, torn
at a byte, or scattered by sector.

``wrecks`` yields up to ``budget`` different disks of a ``Shadow``: all of them if they are few, otherwise the extremes,
cases with exactly one name early or late, and a seeded sample. The same seed gives the same disks."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise, product
from math import prod
from random import Random
from typing import NamedTuple, Protocol

from yirangmq.crashtest.disk_model import (
    DataChange,
    Name,
    Shadow,
    Tree,
    Truncate,
    Write,
    apply_all,
    apply_one,
    digest,
    put,
)

# -- contents of an unsynced file --------------------------------------------------------------------------------------

SECTORS = (512, 4096)
"""Sector sizes in bytes of both kinds of disks. A sector is written atomically; a write may be torn between sectors."""


class Keep(Protocol):
    def left(self, safe: bytes, changes: list[DataChange]) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Lost:
    """No unsynced change reached the disk."""

    def left(self, safe: bytes, changes: list[DataChange]) -> bytes:
        return safe


@dataclass(frozen=True, slots=True)
class Kept:
    """All changes reached the disk, although they were not synced."""

    def left(self, safe: bytes, changes: list[DataChange]) -> bytes:
        return apply_all(safe, changes)


@dataclass(frozen=True, slots=True)
class Hollow:
    """The file has the new size, and the new part is zeros: the size was written, the data was not."""

    def left(self, safe: bytes, changes: list[DataChange]) -> bytes:
        size = len(apply_all(safe, changes))
        return safe + bytes(max(0, size - len(safe)))


@dataclass(frozen=True, slots=True)
class Torn:
    """The first ``whole`` changes reached the disk, and ``part`` bytes of the next."""

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
    """Each sector of each write is kept or lost independently.

    With ``junk`` a lost range beyond the old end of the file has random bytes, not zeros."""

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
    """Draw an outcome with parameters that fit these changes."""
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
    """Split a write at the sector borders; return start and end of each part."""
    end = write.offset + len(write.data)
    edges = [write.offset, *range((write.offset // size + 1) * size, end, size), end]
    return list(pairwise(edges))


# -- choice of disks ---------------------------------------------------------------------------------------------------

TRIES = 4
"""Maximum number of choices per requested disk. Different choices often give the same disk."""


class Wreck(NamedTuple):
    """A disk that a power cut could leave. ``story`` lists the late names and the contents of unsynced files."""

    tree: Tree
    digest: bytes
    story: str


def wrecks(shadow: Shadow, budget: int, chance: Random) -> Iterator[Wreck]:
    """Yield up to ``budget`` different disks. The same random state gives the same disks."""
    seen: set[bytes] = set()
    for picks, keeps in islice(_candidates(shadow, budget, chance), TRIES * budget):
        wreck = _build(shadow, picks, keeps)
        if wreck.digest in seen:
            continue
        seen.add(wreck.digest)
        yield wreck
        if len(seen) == budget:
            return


def _build(shadow: Shadow, picks: dict[Name, int], keeps: dict[int, Keep]) -> Wreck:
    picks = shadow.closed(picks)
    contents = {node: keep.left(shadow.contents[node] or b"", shadow.changes[node]) for node, keep in keeps.items()}
    tree = shadow.rebuild(picks, contents)
    late = [name.text for name, pick in sorted(picks.items()) if pick < len(shadow.versions[name]) - 1]
    held = [f"#{node} {keep}" for node, keep in sorted(keeps.items())]
    story = f"late names: {', '.join(late) or 'none'}; unsynced contents: {', '.join(held) or 'none'}"
    return Wreck(tree, digest(tree), story)


def _candidates(shadow: Shadow, budget: int, chance: Random) -> Iterator[tuple[dict[Name, int], dict[int, Keep]]]:
    names, nodes = sorted(shadow.open_names), sorted(shadow.changes)
    ranges = {name: range(shadow.least[name], len(shadow.versions[name])) for name in names}
    oldest = {name: span[0] for name, span in ranges.items()}
    newest = {name: span[-1] for name, span in ranges.items()}
    lost: dict[int, Keep] = dict.fromkeys(nodes, Lost())
    kept: dict[int, Keep] = dict.fromkeys(nodes, Kept())
    yield oldest, lost
    yield newest, kept
    if not shadow.is_open():
        return
    yield newest, lost
    yield oldest, kept
    if prod(len(span) for span in ranges.values()) * 2 ** len(nodes) <= budget // 2:
        for picks in product(*ranges.values()):
            for choice in product(*([lost[node], kept[node]] for node in nodes)):
                yield dict(zip(names, picks, strict=True)), dict(zip(nodes, choice, strict=True))
    singles = [*_all_but_one(oldest, newest, kept), *_all_but_one(newest, oldest, kept)]
    chance.shuffle(singles)
    yield from singles[: budget // 2]
    while True:
        yield _any_picks(ranges, chance), {node: any_keep(chance, shadow.changes[node]) for node in nodes}


def _all_but_one(
    most: dict[Name, int], other: dict[Name, int], keeps: dict[int, Keep]
) -> Iterator[tuple[dict[Name, int], dict[int, Keep]]]:
    """Yield the classic cases: exactly one name late, or exactly one early."""
    for name in most:
        yield {**most, name: other[name]}, keeps


def _any_picks(ranges: dict[Name, range], chance: Random) -> dict[Name, int]:
    """Draw a version of each name. The bias varies, so that disks with nearly all and nearly no changes occur."""
    lean = chance.choice((0.1, 0.5, 0.9))
    return {
        name: span[-1] if chance.random() < lean else chance.choice(span[:-1] or span) for name, span in ranges.items()
    }
