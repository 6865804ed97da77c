"""Our own protocol: a stored frame is sent as it is, everything else as ``wire.messages`` says."""

from collections.abc import Sequence

from yirangmq.core.topics import Gap
from yirangmq.topics.ports import Batch, Recovering, Subscribed
from yirangmq.wire import messages
from yirangmq.wire.frames import Kind
from yirangmq.wire.messages import MOST_GAPS, frame


class Native:
    sends_stored = True
    needs_count = False

    def subscribed(self, request: int, about: Subscribed) -> bytes:
        body = messages.TopicSubscribed(
            about.epoch, about.next, about.first, about.last, _pairs(about.gaps), about.resumed
        )
        return frame(Kind.TOPIC_SUBSCRIBED, request, body)

    def recovering(self, request: int, about: Recovering) -> bytes:
        body = messages.RecoveryResponse(about.start, about.end, about.total, _pairs(about.gaps))
        return frame(Kind.RECOVERY_RESPONSE, request, body)

    def complete(self, request: int, sequence: int, sent: int, at_ns: int) -> bytes:
        return frame(Kind.RECOVERY_COMPLETE, request, messages.RecoveryComplete(sequence, sent, at_ns))

    def progress(self, sequence: int, sent: int, last: int, at_ns: int) -> bytes:
        return frame(Kind.PROGRESS, 0, messages.Progress(sequence, sent, last, at_ns))

    def records(self, batch: Batch) -> bytes:
        return batch.data


NATIVE = Native()


def _pairs(gaps: Sequence[Gap]) -> list[tuple[int, int]]:
    return [(gap.first, gap.last) for gap in gaps[-MOST_GAPS:]]
