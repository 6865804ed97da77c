"""Disk model of a power cut: file trees, the recorded I/O, and the possible disks after a cut.

``Tree`` is a disk's content as a value. ``IoJournal`` lists the I/O of a store in order, and tracks which name refers
to which file.

``DiskModel`` is the disk after some of these events, by the worst reading of the POSIX rules for fsync:

- Syncing a file makes its content durable, not its name. Syncing a folder makes the names in it durable.
- Until then a file may have any part of the data written since its last sync. A name may refer to any file that it
  referred to since its folder's last sync.
- A rename leaves the old name, the new name, or both; never neither.

``crashtest.power_cuts`` picks from these possibilities."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import NamedTuple

# -- file trees --------------------------------------------------------------------------------------------------------

Tree = Mapping[str, bytes | None]
"""Map from the path below one folder to a file's bytes, parents first. None is a folder."""


def write_tree(tree: Tree, folder: Path) -> None:
    """Create the files and folders of a tree in an empty folder."""
    for path, content in tree.items():
        location = f"{folder}/{path}"
        if content is None:
            os.mkdir(location)  # noqa: PTH102 — thousands of trees are written, and paths as text take half the time
        else:
            with open(location, "xb", buffering=0) as file:  # noqa: PTH123
                file.write(content)


def read_tree(folder: Path) -> dict[str, bytes | None]:
    """Read a folder as a tree: the inverse of ``write_tree``."""
    found: dict[str, bytes | None] = {}
    for location in sorted(folder.rglob("*")):
        found[location.relative_to(folder).as_posix()] = None if location.is_dir() else location.read_bytes()
    return found


def digest(tree: Tree) -> bytes:
    """Return a hash of the names and contents of a tree."""
    total = hashlib.blake2b(digest_size=16)
    for path in sorted(tree):
        content = tree[path]
        size = -1 if content is None else len(content)
        total.update(f"{path}\0{size}\0".encode(errors="surrogateescape"))
        total.update(content or b"")
    return total.digest()


# -- recorded I/O ------------------------------------------------------------------------------------------------------

TOP = 0
"""Node number of the top folder."""


class Name(NamedTuple):
    """A name in a folder. The folder is a node number, so the name stays valid if the folder is moved."""

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
    """The name refers to this file or folder from now on."""

    name: Name
    node: int
    is_folder: bool = False


class Unbind(NamedTuple):
    name: Name


class RenameEvent(NamedTuple):
    """A rename: ``new`` refers to the node that ``old`` referred to."""

    old: Name
    new: Name


class CallStarted(NamedTuple):
    """The workload started its call of this number."""

    call: int


class CallReturned(NamedTuple):
    """The call returned: its changes are confirmed."""

    call: int


Event = Write | Truncate | SyncFile | SyncFolder | SyncAll | Bind | Unbind | RenameEvent | CallStarted | CallReturned


class IoJournal:
    """Recorded I/O events, and the names as a running system sees them."""

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
        """Return True if the path is below the recorded folder."""
        return PurePath(path).is_relative_to(self._top)

    def name(self, path: PurePath | str) -> Name:
        *folders, last = PurePath(path).relative_to(self._top).parts
        folder = TOP
        for part in folders:
            folder = self.names[Name(folder, part)]
        return Name(folder, last)

    def node(self, path: PurePath | str) -> int | None:
        """Return the node of the path; None if it does not exist."""
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
        self.add(RenameEvent(before, after))


def number(tree: Tree) -> tuple[dict[Name, int], dict[int, bytes | None]]:
    """Number the files and folders of a tree. Return the maps from name to node and from node to content."""
    nodes: dict[str, int] = {".": TOP}
    names: dict[Name, int] = {}
    contents: dict[int, bytes | None] = {TOP: None}
    for count, (path, content) in enumerate(tree.items(), 1):
        location = PurePath(path)
        nodes[path] = count
        names[Name(nodes[str(location.parent)], location.name)] = count
        contents[count] = content
    return names, contents


# -- possible disks ----------------------------------------------------------------------------------------------------

DataChange = Write | Truncate


class NameVersion(NamedTuple):
    """The node that a name referred to at one time.

    ``needs`` is a dependency: if this version is on disk, the other name is at least at the given version."""

    node: int | None
    needs: tuple[Name, int] | None = None


class DiskModel:
    """Possible disks after some events: durable contents and names, and the unsynced changes after them.

    Feed it the events in order. A name has versions; ``least`` is the index of the durable one."""

    def __init__(self, start: Tree) -> None:
        names, self.contents = number(start)
        self.changes: dict[int, list[DataChange]] = {}
        self.versions: dict[Name, list[NameVersion]] = {name: [NameVersion(node)] for name, node in names.items()}
        self.least: dict[Name, int] = dict.fromkeys(names, 0)
        self.folders: defaultdict[int, set[Name]] = defaultdict(set)
        for name in names:
            self.folders[name.folder].add(name)
        self.unsynced_names: set[Name] = set()

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
                for name in list(self.unsynced_names):
                    self._mark_durable(name, len(self.versions[name]) - 1)
            case Bind(name, node, is_folder):
                self.contents.setdefault(node, None if is_folder else b"")
                self._add(name, NameVersion(node))
            case Unbind(name):
                self._add(name, NameVersion(None))
            case RenameEvent(old, new):
                self._move(old, new)
            case _:
                pass  # events of the workload do not change the disk

    def has_unsynced(self) -> bool:
        return bool(self.changes or self.unsynced_names)

    def _add(self, name: Name, version: NameVersion) -> int:
        if name not in self.versions:
            self.versions[name] = [NameVersion(None)]
            self.least[name] = 0
            self.folders[name.folder].add(name)
        self.versions[name].append(version)
        self.unsynced_names.add(name)
        return len(self.versions[name]) - 1

    def _move(self, old: Name, new: Name) -> None:
        node = self.versions[old][-1].node
        if node is None:
            raise ValueError(f"{old} stands for nothing and was renamed")
        leaving = len(self.versions[old])
        # A folder has one parent only, so its move is all or nothing.
        arriving = self._add(new, NameVersion(node, (old, leaving) if self.contents[node] is None else None))
        self._add(old, NameVersion(None, (new, arriving)))

    def _sync_file(self, node: int) -> None:
        changes = self.changes.pop(node, None)
        if changes:
            self.contents[node] = apply_all(self.contents[node] or b"", changes)

    def _sync_folder(self, node: int) -> None:
        for name in [name for name in self.unsynced_names if name.folder == node]:
            self._mark_durable(name, len(self.versions[name]) - 1)

    def _mark_durable(self, name: Name, least: int) -> None:
        """Mark versions of a name up to ``least`` as durable, and the versions of other names that they need."""
        known = self.least[name]
        if least <= known:
            return
        self.least[name] = least
        if least == len(self.versions[name]) - 1:
            self.unsynced_names.discard(name)
        for version in self.versions[name][known + 1 : least + 1]:
            if version.needs is not None:
                self._mark_durable(*version.needs)

    # -- possibilities --------------------------------------------------------------------------------------------

    def closed(self, picks: dict[Name, int]) -> dict[Name, int]:
        """Complete the picks with the versions that they need: the removal of a renamed name needs its new name."""
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
        """Build the disk from the picked version of each name (default: the durable one) and these file contents."""
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
    """Return the content after all changes."""
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
