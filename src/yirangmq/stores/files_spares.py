"""Files of forgotten messages, blanked and kept to be written again. On ext4 making a file costs many times more for
half a minute after others were removed, and a queue that prunes its history removes as many as it makes; a file that
goes round costs two renames.

They lie in ``meta/spare`` and hold one byte, the brace with which every message begins. After a crash none is used:
recovery removes them. Knows: names. Does not know: what was in the files, what will be."""

from yirangmq.fsio.disk import listdir
from yirangmq.stores.files_deeds import SPARE

SPARE_FOLDER = "meta/spare"
MOST = 500
"""Spare files a queue keeps; what is more is removed."""


class Spares:
    """One per opening of a store; what it remembers is no more than a guess, because others use them too."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known: dict[str, list[str]] = {}
        self._looked: set[str] = set()
        self._taken: set[str] = set()

    def begin(self) -> None:
        """A batch begins: look again where nothing was found."""
        self._looked.clear()
        self._taken.clear()

    def folder(self, queue: str) -> str:
        return f"{self._root}/{queue}/{SPARE_FOLDER}"

    def path(self, queue: str, seq: int) -> str:
        return f"{self.folder(queue)}/{seq}{SPARE}"

    def take(self, queue: str) -> str | None:
        """One to be written; if somebody has taken it already, writing makes a new one."""
        known = self._known.setdefault(queue, [])
        if not known and queue not in self._looked:
            self._looked.add(queue)
            known += [name for name in listdir(self.folder(queue)) if f"{queue}/{name}" not in self._taken]
        if not known:
            return None
        name = known.pop()
        self._taken.add(f"{queue}/{name}")
        return f"{self.folder(queue)}/{name}"

    def room(self, queue: str) -> int:
        """How many more may be kept."""
        return MOST - len(listdir(self.folder(queue)))

    def forget(self, queue: str) -> None:
        self._known.pop(queue, None)
