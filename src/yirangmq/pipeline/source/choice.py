"""Which records of a range are wanted: by topic, and by their numbers within it. Patterns mean what they mean to every
other subscriber (``core.topic_filter``); a test holds the two together."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from yirangmq.pipeline.source.errors import SourceError
from yirangmq.pipeline.source.frames import Frames
from yirangmq.pipeline.source.options import Options

if TYPE_CHECKING:
    from yirangmq.pipeline.source.frames import Numbers


class Choice(NamedTuple):
    """No topics and no patterns: all. ``only``: of those, these alone (pushed down by Spark). ``floors`` are the first
    offsets of topics that are wanted, ``ceilings`` the last."""

    topics: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    floors: Mapping[str, int] = {}
    ceilings: Mapping[str, int] = {}
    only: frozenset[str] | None = None

    def wants(self, topic: str) -> bool:
        if self.only is not None and topic not in self.only:
            return False
        if not self.topics and not self.patterns:
            return True
        return topic in self.topics or any(matches(pattern, topic) for pattern in self.patterns)

    def rows(self, found: Frames) -> "Numbers | None":
        """Which of them; None: all."""
        import numpy as np

        codes, names = found.topics()
        wanted = np.array([self.wants(name) for name in names], bool)
        kept = None if wanted.all() else wanted[codes]
        for bounds, is_floor in ((self.floors, True), (self.ceilings, False)):
            for topic, bound in bounds.items():
                if topic in names:
                    outside = found.topic_sequence < bound if is_floor else found.topic_sequence > bound
                    inside = ~((codes == names.index(topic)) & outside)
                    kept = inside if kept is None else kept & inside
        return kept

    def narrowed(self, topics: frozenset[str]) -> "Choice":
        return self._replace(only=topics if self.only is None else self.only & topics)


def choice_of(options: Options) -> Choice:
    topics, patterns = options.names("subscribe"), options.names("subscribePattern")
    if topics and patterns:
        raise SourceError("give subscribe or subscribePattern, not both")
    if not topics and not patterns:
        raise SourceError("say what to read: the option subscribe (topics, split by commas) or subscribePattern")
    floors, ceilings = _by_topic(options, "startingOffsets"), _by_topic(options, "endingOffsets")
    made = Choice(topics, () if "*" in patterns else patterns, floors, ceilings)
    for name, bounds in (("startingOffsets", floors), ("endingOffsets", ceilings)):
        for topic in bounds:
            if not made.wants(topic):
                raise SourceError(f"{name} names the topic {topic!r}, which is not subscribed to")
    return made


def _by_topic(options: Options, name: str) -> dict[str, int]:
    found = options.offsets(name)
    return {} if isinstance(found, str) or "global_seq" in found else found


def matches(pattern: str, name: str) -> bool:
    """``*`` is any characters, ``?`` is one, ``+`` is one level: at least one character, and no dot. Takes time in
    proportion to the pattern times the name, whatever they are."""
    here = {0}  # places in the pattern that fit what was read so far
    for letter in name:
        here = _after(pattern, _open(pattern, here), letter)
        if not here:
            return False
    return len(pattern) in _open(pattern, here)


def _open(pattern: str, here: set[int]) -> set[int]:
    """A ``*`` may also be nothing."""
    found = set(here)
    for place in here:
        while place < len(pattern) and pattern[place] == "*":
            place += 1
            found.add(place)
    return found


def _after(pattern: str, here: set[int], letter: str) -> set[int]:
    found: set[int] = set()
    for place in here:
        sign = pattern[place] if place < len(pattern) else ""
        if sign == "*":
            found.add(place)
        elif sign == "+" and letter != ".":
            found |= {place, place + 1}
        elif sign and sign in ("?", letter) and sign != "+":
            found.add(place + 1)
    return found
