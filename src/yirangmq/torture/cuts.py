"""Which of the possible disks to look at: all where they are few, the corners and a seeded draw where they are many.
Knows: a shadow, a budget, chance. Does not know: stores."""

from collections.abc import Iterator
from itertools import islice, product
from math import prod
from random import Random
from typing import NamedTuple

from yirangmq.torture.journal import Name
from yirangmq.torture.keep import Keep, Kept, Lost, any_keep
from yirangmq.torture.shadow import Shadow
from yirangmq.torture.tree import Tree, digest

TRIES = 4
"""Different choices often make the same disk; so many choices per wanted disk, then it is enough."""


class Wreck(NamedTuple):
    """One disk a power cut could leave. ``story`` says which names are not the latest, and what files hold."""

    tree: Tree
    digest: bytes
    story: str


def wrecks(shadow: Shadow, budget: int, chance: Random) -> Iterator[Wreck]:
    """Up to ``budget`` different disks, the same ones for the same chance."""
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
    """The classic slips: exactly one name late, or exactly one early."""
    for name in most:
        yield {**most, name: other[name]}, keeps


def _any_picks(ranges: dict[Name, range], chance: Random) -> dict[Name, int]:
    """Leaning to one side or the other, so that both nearly all and nearly none come up."""
    lean = chance.choice((0.1, 0.5, 0.9))
    return {
        name: span[-1] if chance.random() < lean else chance.choice(span[:-1] or span) for name, span in ranges.items()
    }
