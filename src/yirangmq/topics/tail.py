"""The latest batches as they were appended, cut to what each subscriber wants; and, while somebody recovers, those of
the last moment, so that the loop can take over from a worker without reading the log.

Knows: appended frames, filters, dialects. Does not know: subscribers."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import Appended
from yirangmq.topics.lines import Batch, Dialect

MOST_KNOWN = 10_000
"""Topics of which a filter's answer is remembered."""


class Live(NamedTuple):
    """One commit: its frames, and the topic of each."""

    appended: Appended
    topics: Sequence[str]


class Cutter:
    """Cuts commits to filters; each filter is asked once for each topic, each commit cut once for each filter."""

    def __init__(self) -> None:
        self._known: dict[Filter, dict[str, bool]] = {}
        self._made: dict[tuple[Dialect, Filter], Batch] = {}
        self._live: Live | None = None

    def cut(self, live: Live, filter: Filter, dialect: Dialect) -> Batch:
        """What a subscriber with this filter is sent of it; the same bytes for all of them."""
        if self._live is not live:
            self._live = live
            self._made.clear()
        batch = self._made.get((dialect, filter))
        if batch is None:
            batch = self._pick(live, filter)
            if not dialect.sends_stored and batch.records:
                batch = Batch(dialect.records(batch), batch.records)
            self._made[dialect, filter] = batch
        return batch

    def forget(self, filter: Filter) -> None:
        """Nobody has this filter any more."""
        self._known.pop(filter, None)

    def rest(self) -> None:
        """Let go of the latest commit."""
        self._live = None
        self._made.clear()

    def _pick(self, live: Live, filter: Filter) -> Batch:
        (_, _, _, data, offsets), topics = live
        if filter.is_all:
            return Batch(data, len(offsets))
        wanted = self._wanted(filter, topics)
        if len(wanted) == len(offsets):
            return Batch(data, len(offsets))
        ends = [*offsets[1:], len(data)]
        view = memoryview(data)
        return Batch(b"".join([view[offsets[n] : ends[n]] for n in wanted]), len(wanted))

    def _wanted(self, filter: Filter, topics: Sequence[str]) -> list[int]:
        known = self._known.setdefault(filter, {})
        if len(known) > MOST_KNOWN:
            known.clear()
        for topic in set(topics) - known.keys():
            known[topic] = filter.wants(topic)
        return [n for n, topic in enumerate(topics) if known[topic]]


class Tail:
    """The commits of the last moment, up to so many bytes; empty while nobody needs them."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._kept: deque[Live] = deque()
        self._size = 0
        self._users = 0
        self.first = 0
        """The first sequence it has; 0: none. Read by workers too."""

    def resize(self, most_bytes: int) -> None:
        self._most = most_bytes

    def hold(self) -> None:
        """Somebody recovers from now on."""
        self._users += 1

    def let_go(self) -> None:
        self._users -= 1
        if not self._users:
            self._kept.clear()
            self._size = self.first = 0

    def add(self, live: Live) -> None:
        if not self._users:
            return
        self._kept.append(live)
        self._size += len(live.appended.data)
        while self._size > self._most and self._kept:
            self._size -= len(self._kept.popleft().appended.data)
        self.first = self._kept[0].appended.first if self._kept else 0

    def since(self, sequence: int) -> list[Live] | None:
        """All commits that follow this sequence; None: it has them no longer, or the sequence is inside of one."""
        found = [live for live in self._kept if live.appended.last > sequence]
        return found if found and found[0].appended.first == sequence + 1 else None
