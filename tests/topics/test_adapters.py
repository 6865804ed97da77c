"""Pages of a topic log: where a page ends, and from where the next one goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from yirangmq.core.errors import BadInput
from yirangmq.core.topic_filter import ALL, Filter, make_filter
from yirangmq.core.topics import NewRecord, Record
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.topics.adapters import PageLimits, page_after, read_page

ODD = make_filter(["odd"])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    """Sequences 1 to 10; the payload of each has 10 bytes."""
    with SegmentLog(tmp_path / "log", LogSettings(segment_bytes=1 << 15, durability="os")) as log:
        log.append([NewRecord("odd" if number % 2 else "even", b"%010d" % number) for number in range(1, 11)])
        yield log


@pytest.mark.parametrize(
    ("filter", "limits", "sequences", "last"),
    [
        (ALL, PageLimits(100), list(range(1, 11)), 10),
        (ALL, PageLimits(3), [1, 2, 3], 3),
        (ALL, PageLimits(10), list(range(1, 11)), 10),
        (ALL, PageLimits(100, size=20), [1, 2], 2),
        (ALL, PageLimits(100, size=21), [1, 2, 3], 3),
        (ALL, PageLimits(100, size=1), [1], 1),
        (ALL, PageLimits(100, span=4), [1, 2, 3, 4], 4),
        (ODD, PageLimits(100), [1, 3, 5, 7, 9], 10),
        (ODD, PageLimits(2), [1, 3], 3),
        (ODD, PageLimits(100, span=4), [1, 3], 4),
        (make_filter(["none"]), PageLimits(1, span=7), [], 7),
    ],
)
def test_page_ends_at_the_first_limit(
    log: SegmentLog, filter: Filter, limits: PageLimits, sequences: list[int], last: int
) -> None:
    page = read_page(log.reader(), filter, 1, limits)
    assert ([record.sequence for record in page.records], page.last) == (sequences, last)
    assert page_after(log, filter, 0, limits) == page


@pytest.mark.parametrize("limits", [PageLimits(1), PageLimits(2), PageLimits(100, size=15), PageLimits(100, span=3)])
def test_page_sequence_contains_every_matching_record_once(log: SegmentLog, limits: PageLimits) -> None:
    found: list[Record] = []
    seen = 0
    while seen < log.last:
        page = page_after(log, ODD, seen, limits)
        assert page.last > seen
        found += page.records
        seen = page.last
    assert [record.sequence for record in found] == [1, 3, 5, 7, 9]


def test_page_after_the_end_of_the_log_is_empty_and_a_start_beyond_it_is_refused(log: SegmentLog) -> None:
    assert page_after(log, ALL, 10, PageLimits(5)) == ([], 10, b"")
    assert page_after(log, ALL, 11, PageLimits(5)) == ([], 11, b"")
    assert read_page(log.reader(), ALL, 11, PageLimits(5)) == ([], 10, b"")
    with pytest.raises(BadInput):
        read_page(log.reader(), ALL, 12, PageLimits(5))


def test_page_size_limit_counts_the_rendered_bytes(log: SegmentLog) -> None:
    page = page_after(log, ODD, 0, PageLimits(100, size=8), lambda record: b"<%d>\n" % record.sequence)
    assert (page.rendered, page.last) == (b"<1>\n<3>\n", 3)
