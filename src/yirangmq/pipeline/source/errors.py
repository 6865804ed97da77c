"""What the data source says when something is wrong, and how it says a line in passing."""

import re
import sys


class SourceError(ValueError):
    """Something is wrong with an option, a row or the data; the text says what, and what to do."""


class Retired(SourceError):
    """Records were asked for that are no longer kept: from ``asked`` on, where the log begins at ``first``."""

    def __init__(self, asked: int, first: int) -> None:
        super().__init__(f"sequence {asked} is no longer kept; the log begins at {first}")
        self.asked = asked
        self.first = first

    def __reduce__(self) -> tuple[type["Retired"], tuple[int, int]]:
        return Retired, (self.asked, self.first)


class Refused(SourceError):
    """The server said no; ``code`` is its own word for why."""

    def __init__(self, text: str, code: str = "", status: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.status = status

    def __reduce__(self) -> tuple[type["Refused"], tuple[str, str, int]]:
        return Refused, (str(self), self.code, self.status)


def retired_of(text: str) -> Retired | None:
    """From a server's own words, which name both numbers."""
    found = re.search(r"sequence (\d+) .* begins at (\d+)", text)
    return Retired(int(found[1]), int(found[2])) if found else None


def say(text: str) -> None:
    """One line for whoever watches the driver."""
    print(f"yirangmq: {text}", file=sys.stderr, flush=True)
