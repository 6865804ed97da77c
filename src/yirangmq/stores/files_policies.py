"""Each queue's ``config/policy.json``, which a person may edit at any time: read again when it has changed.

Knows: one file per queue. Does not know: transactions."""

import os

from yirangmq.core.errors import BadInput, BadPolicy
from yirangmq.core.policy import QueuePolicy, read_policy
from yirangmq.format.json_codec import loads

FILE = "config/policy.json"
_Stamp = tuple[int, int, int]


class Policies:
    """One per opening of a store."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._texts: dict[str, tuple[_Stamp, str]] = {}
        self._read: dict[str, tuple[str | None, QueuePolicy]] = {}

    def path(self, queue: str) -> str:
        return f"{self._root}/{queue}/{FILE}"

    def text(self, queue: str) -> str | None:
        """What the file says now; None: there is none."""
        try:
            about = os.stat(self.path(queue))
            stamp = (about.st_mtime_ns, about.st_size, about.st_ino)
            known = self._texts.get(queue)
            if known is None or known[0] != stamp:
                with open(self.path(queue), "rb") as file:
                    known = self._texts[queue] = (stamp, file.read().decode())
            return known[1]
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise BadPolicy(f"{self.path(queue)} is not UTF-8 text: {error}") from None

    def policy(self, queue: str, text: str | None) -> QueuePolicy:
        """Text to values; the same text is read once."""
        known = self._read.get(queue)
        if known is None or known[0] != text:
            known = self._read[queue] = (text, self._parsed(queue, text))
        return known[1]

    def _parsed(self, queue: str, text: str | None) -> QueuePolicy:
        try:
            return read_policy({} if text is None else loads(text.encode()), queue)
        except BadInput as error:
            problem = BadPolicy(f"in {self.path(queue)}: {error}")
            problem.field = error.field
            raise problem from None
