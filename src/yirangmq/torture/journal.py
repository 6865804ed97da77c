"""What a store asked of the disk, in order. Knows: names, files, bytes; it follows which name stands for which file.
Does not know: what of it is safe (shadow.py), who asks (recording_disk.py, recording_vfs.py)."""

from pathlib import Path, PurePath
from typing import NamedTuple

from yirangmq.torture.tree import Tree

TOP = 0
"""The number of the folder that holds everything."""


class Name(NamedTuple):
    """A name in a folder; the folder by its number, so that moving it does not matter."""

    folder: int
    text: str


class Write(NamedTuple):
    node: int
    offset: int
    data: bytes


class Truncate(NamedTuple):
    node: int
    size: int


class SyncFile(NamedTuple):
    node: int


class SyncFolder(NamedTuple):
    node: int


class SyncAll(NamedTuple):
    pass


class Bind(NamedTuple):
    """The name stands for this file or folder from now on."""

    name: Name
    node: int
    is_folder: bool = False


class Unbind(NamedTuple):
    name: Name


class Move(NamedTuple):
    """A rename: ``new`` stands for what ``old`` stood for."""

    old: Name
    new: Name


class Called(NamedTuple):
    """The workload made its call of this number."""

    call: int


class Returned(NamedTuple):
    """The call came back: what it did is confirmed."""

    call: int


Event = Write | Truncate | SyncFile | SyncFolder | SyncAll | Bind | Unbind | Move | Called | Returned


class Journal:
    """The list of events, and the names as a running system sees them."""

    def __init__(self, top: Path, start: Tree | None = None) -> None:
        self._top = top
        self.start: Tree = start or {}
        self.names, _ = number(self.start)
        self._next = len(self.names) + 1
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        self.events.append(event)

    # -- names ----------------------------------------------------------------------------------------------------

    def holds(self, path: PurePath | str) -> bool:
        """Whether the path lies below the folder this journal is about."""
        return PurePath(path).is_relative_to(self._top)

    def name(self, path: PurePath | str) -> Name:
        *folders, last = PurePath(path).relative_to(self._top).parts
        folder = TOP
        for part in folders:
            folder = self.names[Name(folder, part)]
        return Name(folder, last)

    def node(self, path: PurePath | str) -> int | None:
        """What the path stands for; None: nothing."""
        if PurePath(path) == self._top:
            return TOP
        return self.names.get(self.name(path))

    def create(self, path: PurePath | str, *, is_folder: bool = False) -> int:
        node = self._next
        self._next += 1
        name = self.name(path)
        self.names[name] = node
        self.add(Bind(name, node, is_folder))
        return node

    def link(self, old: PurePath | str, new: PurePath | str) -> None:
        name = self.name(new)
        self.names[name] = self.names[self.name(old)]
        self.add(Bind(name, self.names[name]))

    def remove(self, path: PurePath | str) -> None:
        name = self.name(path)
        del self.names[name]
        self.add(Unbind(name))

    def rename(self, old: PurePath | str, new: PurePath | str) -> None:
        before, after = self.name(old), self.name(new)
        if before == after or self.names.get(after) == self.names[before]:
            return
        self.names[after] = self.names.pop(before)
        self.add(Move(before, after))


def number(tree: Tree) -> tuple[dict[Name, int], dict[int, bytes | None]]:
    """Give every file and folder of a tree its number; names to numbers, numbers to contents."""
    nodes: dict[str, int] = {".": TOP}
    names: dict[Name, int] = {}
    contents: dict[int, bytes | None] = {TOP: None}
    for count, (path, content) in enumerate(tree.items(), 1):
        place = PurePath(path)
        nodes[path] = count
        names[Name(nodes[str(place.parent)], place.name)] = count
        contents[count] = content
    return names, contents
