"""How each thing that can be wrong in a files store is mended: moved, removed, set aside, told anew.

Knows: the disk, names. Does not know: what is wrong (files_survey.py), when to mend it (files_recover.py)."""

import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from yirangmq.core.message import Failure, Reason
from yirangmq.core.policy import read_policy
from yirangmq.format.filenames import Card
from yirangmq.stores.files_aside import quarantine
from yirangmq.stores.files_content import Sort, write_failure
from yirangmq.stores.files_deeds import Deeds
from yirangmq.stores.files_view import failure_path


class Problem(NamedTuple):
    kind: str
    where: str
    text: str
    mend: Callable[[], object] | None


class Mender:
    """For one queue; paths are below its folder."""

    def __init__(self, root: str, queue: str, deeds: Deeds) -> None:
        self._root = root
        self.queue = queue
        self._deeds = deeds

    def where(self, path: str) -> str:
        return f"{self.queue}/{path}"

    def unlinked(self, kind: str, path: str, text: str) -> Problem:
        full = self._full(path)
        return Problem(kind, self.where(path), text, lambda: self._deeds.unlink(full))

    def rejected(self, kind: str, path: str, text: str) -> Problem:
        full, why = self._full(path), f"{kind}: {text}"
        aside = partial(quarantine, self._root, self._deeds, self.queue, full, why)
        return Problem(kind, self.where(path), text, aside)

    def moved(self, path: str, card: Card) -> Problem:
        source, target = self._full(path), self._full(path_of(card))
        return Problem(
            "misplaced", self.where(path), f"belongs to {card.folder}", lambda: self._deeds.rename(source, target)
        )

    def changed(self, problem: tuple[str, str], card: Card, after: Card, then: Callable[[], object]) -> Problem:
        """A message that must be in another state: kind and text, before, after, and what follows from it."""
        source, target = self._full(path_of(card)), self._full(path_of(after))

        def mend() -> None:
            self._deeds.rename(source, target)
            then()

        kind, text = problem
        return Problem(kind, self.where(path_of(card)), text, mend)

    def _full(self, path: str) -> str:
        return f"{self._root}/{self.queue}/{path}"

    def explain(self, card: Card) -> None:
        """All that is left of a failure stands in the name."""
        message = card.message
        text = "the text of this failure was lost"
        failure = Failure(message.reason or Reason.CORRUPT, text, message.changed_at, message.attempt, message.consumer)
        path = failure_path(self._root, message, card.failure)
        sort = Sort(message.id, message.queue, read_policy({}, message.queue).dlq.queue)
        self._deeds.folder(os.path.dirname(path))
        self._deeds.write_files([(path, write_failure(failure, sort))])


def by_settling() -> None:
    """The counter is written anew when all is done."""


def path_of(card: Card) -> str:
    """Below its queue's folder."""
    return f"{card.folder}/{card.name}"
