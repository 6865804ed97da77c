"""What the tests of the command line share: what a call gives back, and where it may be made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from yirangmq.format.json_codec import loads

BACKENDS = ("sqlite", "fs")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Every line of stdout, as JSON."""
        return [loads(line.encode()) for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        (document,) = self.lines
        return document

    @property
    def complaint(self) -> Any:
        """The one document on stderr."""
        (line,) = self.err.splitlines()
        return loads(line.encode())


Cli = Callable[..., Result]
Published = Callable[..., list[str]]
Killed = Callable[..., None]
