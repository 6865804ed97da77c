"""Mends one sealed segment of a log that is open for writing. Knows: the segment. Does not know: the others."""

from yirangmq.core.errors import StoreDamaged
from yirangmq.stores import segments_scan as scan
from yirangmq.stores.segments_chain import Segment
from yirangmq.stores.segments_check import has_good_index, sound_part
from yirangmq.stores.segments_make import Workshop
from yirangmq.stores.segments_salvage import Case, salvage


def mended(workshop: Workshop, segment: Segment, now_ns: int) -> list[Segment] | None:
    """The segments that take its place; None: nothing is wrong with it."""
    try:
        with segment.opened() as fd:
            state = scan.state_of(fd, segment.head)
            sums = sound_part(segment, fd)
            is_whole = (sums.last, sums.end) == (segment.tail.last, segment.tail.end)
            if is_whole and has_good_index(segment, fd, sums):
                return None
        why = f"the record {sums.last + 1} does not hold what was written"
    except StoreDamaged as error:
        is_whole, state, why = False, {}, str(error)
    if is_whole:
        return [_sealed_again(workshop, segment, sums)]
    head = segment.head
    case = Case(segment.path, head.first, segment.tail.last, head.epoch, head.before, state, why)
    return salvage(workshop, case, now_ns)


def _sealed_again(workshop: Workshop, segment: Segment, sums: scan.Sums) -> Segment:
    fd = workshop.disk.open_update(segment.path)
    try:
        return workshop.seal(Segment(segment.path, segment.head, sums=sums), fd)
    finally:
        workshop.disk.close(fd)
