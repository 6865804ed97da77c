"""What a reader asks of one open segment. Knows: a segment and a descriptor of its file. Does not know: the others."""

from collections.abc import Callable, Iterator

from yirangmq.core.errors import BadInput, StoreDamaged
from yirangmq.core.topics import Piece, Place, Record, Wanted
from yirangmq.stores import segments_scan as scan
from yirangmq.stores.segments_chain import Segment
from yirangmq.stores.segments_layout import State, Topic
from yirangmq.wire import records


def offsets(segment: Segment, fd: int, start: int, stop: int) -> tuple[int, int]:
    """Where in the file the records from ``start`` up to ``stop`` begin and end."""
    tail = segment.tail
    begin, end = segment.head.begin, tail.end
    if start <= segment.first and stop > tail.last:
        return begin, end
    try:
        marks = segment.summary(fd).marks
        low = begin if start <= segment.first else scan.offset_of(fd, marks, start, begin, end)
        return low, end if stop > tail.last else scan.offset_of(fd, marks, stop, begin, end)
    except StoreDamaged as error:
        raise StoreDamaged(f"{segment.path}: {error}") from None


def cut(segment: Segment, whole: Piece, size: int | None) -> Iterator[Piece]:
    """The same in pieces of at least ``size`` bytes, as the index has them, each of whole frames."""
    fd, begin, length, first, last = whole
    end = begin + length
    if size is not None and length > size:
        for mark in list(segment.summary(fd).marks):
            if begin + size <= mark.offset < end:
                yield Piece(fd, begin, mark.offset - begin, first, mark.sequence - 1)
                begin, first = mark.offset, mark.sequence
    yield Piece(fd, begin, end - begin, first, last)


def holds(segment: Segment, fd: int, wanted: Wanted) -> bool:
    """Whether any record of the segment is of a wanted topic."""
    state = segment.summary(fd).state
    return any(topic.sequence >= segment.first and wanted(name) for name, topic in list(state.items()))


def state_before(segment: Segment, fd: int) -> State:
    return scan.state_of(fd, segment.head)


def state_after(segment: Segment, fd: int) -> State:
    return dict(segment.summary(fd).state)


def state_at(segment: Segment, fd: int, sequence: int) -> State:
    """Each topic's numbers before that record."""
    state = scan.state_of(fd, segment.head)
    for step in scan.walk(fd, segment.head.begin, segment.tail.end):
        head = step.head
        if head.sequence >= sequence:
            break
        name = str(records.topic_at(step.data, step.at, head), "utf-8", "replace")
        state[name] = Topic(head.topic_sequence, head.sequence, head.at_ns, 0)
    return state


def sequence_at(segment: Segment, fd: int, at_ns: int) -> int | None:
    return scan.sequence_at(fd, segment.summary(fd).marks, at_ns, segment.head.begin, segment.tail.end)


def places(segment: Segment, fd: int) -> list[Place]:
    """Its marks, with the bytes of its records before each."""
    return [Place(mark.sequence, mark.offset - segment.head.begin) for mark in list(segment.summary(fd).marks)]


def remembered(wanted: Wanted | None) -> Callable[[bytes], bool] | None:
    """The same question for names as they stand in frames, asked once for each."""
    if wanted is None:
        return None
    known: dict[bytes, bool] = {}

    def ask(name: bytes) -> bool:
        answer = known.get(name)
        if answer is None:
            answer = known[name] = wanted(str(name, "utf-8", "replace"))
        return answer

    return ask


def decoded(segment: Segment, step: scan.Step) -> Record:
    try:
        return records.decode(step.data, step.at, step.head)
    except (BadInput, StoreDamaged) as error:
        raise StoreDamaged(f"{segment.path}: {error}") from None


def see_all(segment: Segment, reached: int, end: int) -> None:
    """A walk that stopped early stopped at damage."""
    if reached != end:
        raise StoreDamaged(
            f"{segment.path}: the frame at byte {reached} cannot be read; 'yirangmq log check' says more"
        )
