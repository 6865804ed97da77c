"""The public layout as a dialect of the feed: stored frames become topic messages, topics become bits.

Knows: the layout, which topic has which bit. Does not know: who listens. Two of the same mask are equal, so that what
is sent to both is made once."""

from dataclasses import dataclass

from yirangmq.core.errors import StoreDamaged
from yirangmq.topics import dialect_layout as layout
from yirangmq.topics.ports import Batch, Recovering, Subscribed
from yirangmq.wire import records


@dataclass(frozen=True)
class Public:
    """``topics``: those that have a bit. ``mask``: the ones that are sent."""

    topics: tuple[str, ...]
    mask: int
    sends_stored = False
    needs_count = True

    @property
    def approved(self) -> int:
        return self.mask & ((1 << len(self.topics)) - 1)

    def subscribed(self, request: int, about: Subscribed) -> bytes:
        return layout.encode(layout.SubscriptionOk(0, self.approved, _fitting(about.last)))

    def recovering(self, request: int, about: Recovering) -> bytes:
        start, end = _fitting(about.start), _fitting(about.end)
        return layout.encode(layout.RecoveryResponse(0, start, end, _fitting(about.total or 0)))

    def complete(self, request: int, sequence: int, sent: int, at_ns: int) -> bytes:
        return layout.encode(layout.RecoveryComplete(_fitting(sent), at_ns))

    def progress(self, sequence: int, sent: int, last: int, at_ns: int) -> bytes:
        return b""

    def records(self, batch: Batch) -> bytes:
        bits = {topic.encode(): 1 << place for place, topic in enumerate(self.topics)}
        view = memoryview(batch.data)
        found: list[bytes] = []
        at = 0
        while at < len(view):
            head = records.read_head(view, at)
            if head is None or not records.is_sound(view, at, head):  # the layout has no checksum of its own
                raise StoreDamaged("a record does not hold what was written")
            bit = bits[records.topic_at(view, at, head)]
            begin = at + records.HEAD + head.topic_size + head.key_size + head.headers_size
            payload = view[begin : at + head.size]
            found.append(layout.topic_message(bit, head.sequence, head.topic_sequence, head.at_ns, payload))
            at += head.size
        return b"".join(found)


def refused(last: int) -> bytes:
    """To one that cannot follow."""
    return layout.encode(layout.SubscriptionOk(1, 0, _fitting(last)))


def not_kept(asked: int, first: int) -> bytes:
    """To one that asks for what is no longer there: both numbers stand where start and end would."""
    return layout.encode(layout.RecoveryResponse(1, _fitting(asked), _fitting(first), 0))


def _fitting(number: int) -> int:
    """A number that is only told, not counted on."""
    return min(number, layout.MOST)
