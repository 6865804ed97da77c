"""Power-cut outcomes: how much of unsynced data is left, and which of the possible disks to try.

Each ``UnsyncedOutcome`` computes one content from the durable content of a file and the changes after it: lost, kept,
zeros, torn at a byte, or scattered by sector.

``possible_disks`` yields up to ``budget`` different disks of a ``DiskModel``: all of them if they are few, otherwise
the extremes, cases with exactly one name early or late, and a seeded sample. The same seed gives the same disks."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise, product
from math import prod
from random import Random
from typing import NamedTuple, Protocol

from yirangmq.crashtest.disk_model import (
    DataChange,
    DiskModel,
    Name,
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


class UnsyncedOutcome(Protocol):
    def content_after(self, safe: bytes, changes: list[DataChange]) -> bytes: ...


@dataclass(frozen=True, slots=True)
class AllLost:
    """No unsynced change reached the disk."""

    def content_after(self, safe: bytes, changes: list[DataChange]) -> bytes:
        return safe


@dataclass(frozen=True, slots=True)
class AllKept:
    """All changes reached the disk, although they were not synced."""

    def content_after(self, safe: bytes, changes: list[DataChange]) -> bytes:
        return apply_all(safe, changes)


@dataclass(frozen=True, slots=True)
class ZeroFilled:
    """The file has the new size, and the new part is zeros: the size was written, the data was not."""

    def content_after(self, safe: bytes, changes: list[DataChange]) -> bytes:
        size = len(apply_all(safe, changes))
        return safe + bytes(max(0, size - len(safe)))


@dataclass(frozen=True, slots=True)
class TornWrite:
    """The first ``whole`` changes reached the disk, and ``part`` bytes of the next."""

    whole: int
    part: int

    def content_after(self, safe: bytes, changes: list[DataChange]) -> bytes:
        image = bytearray(apply_all(safe, changes[: self.whole]))
        if self.whole < len(changes):
            change = changes[self.whole]
            if isinstance(change, Write):
                put(image, change.offset, change.data[: self.part])
        return bytes(image)


@dataclass(frozen=True, slots=True)
class ScatteredSectors:
    """Each sector of each write is kept or lost independently.

    With ``junk`` a lost range beyond the old end of the file has random bytes, not zeros."""

    seed: int
    sector: int
    junk: bool

    def content_after(self, safe: bytes, changes: list[DataChange]) -> bytes:
        rng = Random(self.seed)
        image = bytearray(safe)
        for change in changes:
            if isinstance(change, Truncate):
                if rng.random() < 0.5:
                    apply_one(image, change)
                continue
            for start, end in _sectors(change, self.sector):
                if rng.random() < 0.5:
                    if self.junk and start > len(image):
                        image.extend(rng.randbytes(start - len(image)))
                    put(image, start, change.data[start - change.offset : end - change.offset])
        return bytes(image)


def draw_outcome(rng: Random, changes: list[DataChange]) -> UnsyncedOutcome:
    """Draw an outcome with parameters that fit these changes."""
    kind = rng.randrange(8)
    if kind == 0:
        return AllLost()
    if kind == 1:
        return AllKept()
    if kind == 2:
        return ZeroFilled()
    if kind <= 4:
        whole = rng.randrange(len(changes))
        change = changes[whole]
        return TornWrite(whole, rng.randint(0, len(change.data)) if isinstance(change, Write) else 0)
    return ScatteredSectors(rng.getrandbits(32), rng.choice(SECTORS), rng.random() < 0.3)


def _sectors(write: Write, size: int) -> list[tuple[int, int]]:
    """Split a write at the sector borders; return start and end of each part."""
    end = write.offset + len(write.data)
    edges = [write.offset, *range((write.offset // size + 1) * size, end, size), end]
    return list(pairwise(edges))


# -- choice of disks ---------------------------------------------------------------------------------------------------

MAX_TRIES_PER_DISK = 4
"""Maximum number of choices per requested disk. Different choices often give the same disk."""


class PossibleDisk(NamedTuple):
    """A disk that a power cut could leave. ``story`` lists the late names and the contents of unsynced files."""

    tree: Tree
    digest: bytes
    story: str


def possible_disks(model: DiskModel, budget: int, rng: Random) -> Iterator[PossibleDisk]:
    """Yield up to ``budget`` different disks. The same random state gives the same disks."""
    seen: set[bytes] = set()
    for picks, outcomes in islice(_candidates(model, budget, rng), MAX_TRIES_PER_DISK * budget):
        disk = _build(model, picks, outcomes)
        if disk.digest in seen:
            continue
        seen.add(disk.digest)
        yield disk
        if len(seen) == budget:
            return


def _build(model: DiskModel, picks: dict[Name, int], outcomes: dict[int, UnsyncedOutcome]) -> PossibleDisk:
    picks = model.closed(picks)
    contents = {
        node: outcome.content_after(model.contents[node] or b"", model.changes[node])
        for node, outcome in outcomes.items()
    }
    tree = model.rebuild(picks, contents)
    late = [name.text for name, pick in sorted(picks.items()) if pick < len(model.versions[name]) - 1]
    held = [f"#{node} {outcome}" for node, outcome in sorted(outcomes.items())]
    story = f"late names: {', '.join(late) or 'none'}; unsynced contents: {', '.join(held) or 'none'}"
    return PossibleDisk(tree, digest(tree), story)


def _candidates(
    model: DiskModel, budget: int, rng: Random
) -> Iterator[tuple[dict[Name, int], dict[int, UnsyncedOutcome]]]:
    names, nodes = sorted(model.unsynced_names), sorted(model.changes)
    ranges = {name: range(model.least[name], len(model.versions[name])) for name in names}
    oldest = {name: span[0] for name, span in ranges.items()}
    newest = {name: span[-1] for name, span in ranges.items()}
    lost: dict[int, UnsyncedOutcome] = dict.fromkeys(nodes, AllLost())
    kept: dict[int, UnsyncedOutcome] = dict.fromkeys(nodes, AllKept())
    yield oldest, lost
    yield newest, kept
    if not model.has_unsynced():
        return
    yield newest, lost
    yield oldest, kept
    if prod(len(span) for span in ranges.values()) * 2 ** len(nodes) <= budget // 2:
        for picks in product(*ranges.values()):
            for choice in product(*([lost[node], kept[node]] for node in nodes)):
                yield dict(zip(names, picks, strict=True)), dict(zip(nodes, choice, strict=True))
    singles = [*_all_but_one(oldest, newest, kept), *_all_but_one(newest, oldest, kept)]
    rng.shuffle(singles)
    yield from singles[: budget // 2]
    while True:
        yield _any_picks(ranges, rng), {node: draw_outcome(rng, model.changes[node]) for node in nodes}


def _all_but_one(
    most: dict[Name, int], other: dict[Name, int], outcomes: dict[int, UnsyncedOutcome]
) -> Iterator[tuple[dict[Name, int], dict[int, UnsyncedOutcome]]]:
    """Yield the classic cases: exactly one name late, or exactly one early."""
    for name in most:
        yield {**most, name: other[name]}, outcomes


def _any_picks(ranges: dict[Name, range], rng: Random) -> dict[Name, int]:
    """Draw a version of each name. The bias varies, so that disks with nearly all and nearly no changes occur."""
    lean = rng.choice((0.1, 0.5, 0.9))
    return {name: span[-1] if rng.random() < lean else rng.choice(span[:-1] or span) for name, span in ranges.items()}
