"""Topic filter of a subscription: names, patterns and masks.

In a pattern ``*`` is any characters, ``?`` is one, ``+`` is one level: at least one character, and no dot. The time of
a match grows with the length of the name alone, for every pattern."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from yirangmq.core import validation
from yirangmq.core.errors import BadInput

MAX_TOPICS = 1000
MAX_PATTERNS = 100
MAX_MASKED_TOPICS = 32
MAX_MASK = 2**32 - 1
PATTERN = re.compile(r"[a-zA-Z0-9._*?+-]{1,200}")
WILD = re.compile(r"[*?+]")


@dataclass(frozen=True)
class Filter:
    """Topic filter of a subscription. ``names`` None is all topics. Filters compare by value."""

    names: frozenset[str] | None = None
    patterns: tuple[str, ...] = ()
    text: str = "*"
    """The filter as the subscriber wrote it."""

    def wants(self, topic: str) -> bool:
        if self.names is None or topic in self.names:
            return True
        return any(glob.matches(topic) for glob in self._globs)

    @property
    def is_all(self) -> bool:
        return self.names is None

    @cached_property
    def _globs(self) -> list["Glob"]:
        return [Glob(pattern) for pattern in self.patterns]


ALL = Filter()
NOTHING = Filter(frozenset(), (), "")


def masked(mask: int, topics: Sequence[str]) -> frozenset[str]:
    """Return the topics with a bit set in ``mask``; the bit of the first topic is 1, of the second 2, of the third
    4."""
    return frozenset(topic for place, topic in enumerate(topics) if mask & (1 << place))


def listed(given: object) -> list[str]:
    """Return the names and patterns that a program gave as one string or several; ``make_filter`` checks each.

    ``BadInput`` for anything else. None is refused: it is more often a missing value than a wish for all topics."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, Iterable) and not isinstance(given, bytes | bytearray | memoryview | Mapping):
        return [*given]
    raise BadInput(
        f"must be a name or a pattern, or a list of them, not {type(given).__name__}; leave it out for all topics",
        field="topics",
    )


def make_filter(wanted: Sequence[object] = (), mask: object = 0, topics: Sequence[str] = ()) -> Filter:
    """Build the filter of a subscription. ``topics``: the topics that have a bit in masks. ``BadInput`` names the
    field."""
    if isinstance(mask, bool) or not isinstance(mask, int) or not 0 <= mask <= MAX_MASK:
        raise BadInput(f"must be a whole number from 0 to {MAX_MASK}, not {mask!r}", field="mask")
    validation.check_many(wanted, "topics")
    if len(wanted) > MAX_TOPICS:
        raise BadInput(f"at most {MAX_TOPICS} names and patterns, not {len(wanted)}", field="topics")
    if not wanted and not mask:
        return ALL
    plain, patterns = _split_patterns(wanted)
    text = ",".join([str(one) for one in wanted] + ([f"mask={mask}"] if mask else []))
    if "*" in patterns:
        return Filter(None, (), text)
    return Filter(plain | masked(mask, topics), patterns, text)


def filter_of_text(text: str, topics: Sequence[str] = ()) -> Filter | None:
    """Return the filter with this ``text``. None if it is no filter, because a cursor may keep any words of its
    subscriber, or if it has a mask and ``topics``, which have the bits, are not known."""
    words = text.split(",") if text != "*" else []
    masks = [word.removeprefix("mask=") for word in words if word.startswith("mask=")]
    try:
        mask = int(masks[0]) if masks else 0
        filter = make_filter([word for word in words if not word.startswith("mask=")], mask, topics)
    except (BadInput, ValueError):
        return None
    return filter if topics or not mask else None


def _split_patterns(wanted: Sequence[object]) -> tuple[frozenset[str], tuple[str, ...]]:
    plain: set[str] = set()
    patterns: set[str] = set()
    for one in wanted:
        if not isinstance(one, str):
            raise BadInput(f"must be names and patterns, not {type(one).__name__}", field="topics")
        if not WILD.search(one):
            plain.add(validation.check_queue(one, "topics"))
        elif PATTERN.fullmatch(one):
            patterns.add(one)
        else:
            raise BadInput(
                f"{one[:60]!r} is not a pattern; use '*', '?', '+' and the characters of a name", field="topics"
            )
    if len(patterns) > MAX_PATTERNS:
        raise BadInput(f"at most {MAX_PATTERNS} patterns, not {len(patterns)}", field="topics")
    return frozenset(plain), tuple(sorted(patterns))


class Glob:
    """Topic pattern, matched by a bit-parallel automaton.

    The pattern is a sequence of steps. Bit n of ``here`` is set if the steps before n match the letters read so far.
    The time is proportional to the length of the name, for every pattern."""

    def __init__(self, pattern: str) -> None:
        self._takes: dict[str, int] = {}
        self._any = self._level = self._stays = self._stays_level = 0
        place = 0
        for letter in pattern:
            bit = 1 << place
            if letter == "*":
                self._stays |= bit
            elif letter == "+":
                self._level |= bit
                self._stays_level |= bit << 1
                place += 1
            elif letter == "?":
                self._any |= bit
            else:
                self._takes[letter] = self._takes.get(letter, 0) | bit
            place += 1
        self._loops = self._stays | self._stays_level
        self._end = 1 << place

    def matches(self, name: str) -> bool:
        here = self._skip(1)
        for letter in name:
            is_dot = letter == "."
            steps = self._takes.get(letter, 0) | self._any | (0 if is_dot else self._level)
            stays = self._stays | (0 if is_dot else self._stays_level)
            here = self._skip((here & steps) << 1 | (here & stays))
            if not here:
                return False
        return bool(here & self._end)

    def _skip(self, here: int) -> int:
        """Add the states after steps that may match no letter (the repetitions)."""
        while (more := here | (here & self._loops) << 1) != here:
            here = more
        return here
