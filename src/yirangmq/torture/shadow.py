"""What is surely on the disk, and what may be: the rules of fsync as POSIX states them, read against us.

Syncing a file makes its content safe, not its name. Syncing a folder makes the names in it safe. Until then a file
may hold any part of what was written since its last sync, and a name may stand for anything it stood for since its
folder's. A rename is never lost from both sides: old name, new name, or both.
Does not know: which possibility to pick."""

from collections import defaultdict
from typing import NamedTuple

from yirangmq.torture.journal import (
    TOP,
    Bind,
    Event,
    Move,
    Name,
    SyncAll,
    SyncFile,
    SyncFolder,
    Truncate,
    Unbind,
    Write,
    number,
)
from yirangmq.torture.tree import Tree

DataChange = Write | Truncate


class Version(NamedTuple):
    """What a name stood for at one time. ``needs``: if this has happened, that name has come at least that far."""

    node: int | None
    needs: tuple[Name, int] | None = None


class Shadow:
    """The disk after some events: certain contents, open changes. Feed it events in order."""

    def __init__(self, start: Tree) -> None:
        names, self.contents = number(start)
        self.changes: dict[int, list[DataChange]] = {}
        self.versions: dict[Name, list[Version]] = {name: [Version(node)] for name, node in names.items()}
        self.least: dict[Name, int] = dict.fromkeys(names, 0)
        self.folders: defaultdict[int, set[Name]] = defaultdict(set)
        for name in names:
            self.folders[name.folder].add(name)
        self.open_names: set[Name] = set()

    def feed(self, event: Event) -> None:
        match event:
            case Write(node) | Truncate(node):
                self.changes.setdefault(node, []).append(event)
            case SyncFile(node):
                self._sync_file(node)
            case SyncFolder(node):
                self._sync_folder(node)
            case SyncAll():
                for node in list(self.changes):
                    self._sync_file(node)
                for name in list(self.open_names):
                    self._settle(name, len(self.versions[name]) - 1)
            case Bind(name, node, is_folder):
                self.contents.setdefault(node, None if is_folder else b"")
                self._add(name, Version(node))
            case Unbind(name):
                self._add(name, Version(None))
            case Move(old, new):
                self._move(old, new)
            case _:
                pass  # what the workload does leaves the disk alone

    def is_open(self) -> bool:
        return bool(self.changes or self.open_names)

    def _add(self, name: Name, version: Version) -> int:
        if name not in self.versions:
            self.versions[name] = [Version(None)]
            self.least[name] = 0
            self.folders[name.folder].add(name)
        self.versions[name].append(version)
        self.open_names.add(name)
        return len(self.versions[name]) - 1

    def _move(self, old: Name, new: Name) -> None:
        node = self.versions[old][-1].node
        if node is None:
            raise ValueError(f"{old} stands for nothing and was renamed")
        leaving = len(self.versions[old])
        # A folder has one parent only, so its move is all or nothing.
        arriving = self._add(new, Version(node, (old, leaving) if self.contents[node] is None else None))
        self._add(old, Version(None, (new, arriving)))

    def _sync_file(self, node: int) -> None:
        changes = self.changes.pop(node, None)
        if changes:
            self.contents[node] = apply_all(self.contents[node] or b"", changes)

    def _sync_folder(self, node: int) -> None:
        for name in [name for name in self.open_names if name.folder == node]:
            self._settle(name, len(self.versions[name]) - 1)

    def _settle(self, name: Name, least: int) -> None:
        """The name has come this far, for certain; and so has whatever that needs."""
        known = self.least[name]
        if least <= known:
            return
        self.least[name] = least
        if least == len(self.versions[name]) - 1:
            self.open_names.discard(name)
        for version in self.versions[name][known + 1 : least + 1]:
            if version.needs is not None:
                self._settle(*version.needs)

    # -- possibilities --------------------------------------------------------------------------------------------

    def closed(self, picks: dict[Name, int]) -> dict[Name, int]:
        """The picks, with what they need: a name that was renamed away pulls the name it went to along."""
        picks = dict(picks)
        todo = list(picks)
        while todo:
            name = todo.pop()
            for version in self.versions[name][self.least[name] + 1 : picks[name] + 1]:
                if version.needs is None:
                    continue
                other, index = version.needs
                if picks.get(other, self.least[other]) < index:
                    picks[other] = index
                    todo.append(other)
        return picks

    def rebuild(self, picks: dict[Name, int], contents: dict[int, bytes]) -> dict[str, bytes | None]:
        """The disk on which each name stands at its pick (or where it surely is), with these contents of open files."""
        tree: dict[str, bytes | None] = {}
        todo: list[tuple[str, int]] = [("", TOP)]
        while todo:
            prefix, folder = todo.pop()
            for name in sorted(self.folders[folder]):
                node = self.versions[name][picks.get(name, self.least[name])].node
                if node is None:
                    continue
                content = contents.get(node, self.contents[node])
                tree[prefix + name.text] = content
                if content is None:
                    todo.append((f"{prefix}{name.text}/", node))
        return tree


def apply_all(content: bytes, changes: list[DataChange]) -> bytes:
    """The content after all of these changes."""
    image = bytearray(content)
    for change in changes:
        apply_one(image, change)
    return bytes(image)


def apply_one(image: bytearray, change: DataChange) -> None:
    if isinstance(change, Write):
        put(image, change.offset, change.data)
    elif change.size <= len(image):
        del image[change.size :]
    else:
        image.extend(bytes(change.size - len(image)))


def put(image: bytearray, offset: int, data: bytes) -> None:
    if offset > len(image):
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data
