"""Readers: by sequence, by time, by topic; as records, as frames, as pieces of files; while the writer goes on."""

import os
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import START_NS, NanosecondClock
from tests.support.segment_log import SECOND, SMALL, fill, new, open_log, segments, sent, sequences
from yirangmq.core.errors import BadInput, NotFound, Retired, StoreDamaged, WrongEpoch
from yirangmq.core.topics import Gap, NewRecord
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.stores.log.reader import Chain, SegmentReader
from yirangmq.stores.log.readonly import SegmentView
from yirangmq.wire.records import RecordReader


def only(topic: str) -> Callable[[str], bool]:
    return lambda name: name == topic


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    with open_log(tmp_path / "log") as log:
        yield log


def test_reader_of_history_and_concurrent_appends_do_not_disturb_each_other(log: SegmentLog) -> None:
    """Elsewhere reader and writer shared one position in the file: after ten puts, a read of the third and two more
    puts, records 4, 5, 11 and 12 could not be read."""
    log.append(new(10))
    reader = log.reader()
    assert sequences(reader.records(3, 4)) == [3]
    log.append(new(1))
    log.append(new(1))
    for number in range(1, 13):
        assert sequences(reader.records(number, number + 1)) == [number]
    slow = reader.records(1)
    first = next(slow)
    log.append(new(40))
    assert [first.sequence, *sequences(slow)] == list(range(1, 13))
    assert sequences(reader.records(1)) == list(range(1, 53))


def test_reader_returns_and_counts_exactly_the_requested_span(log: SegmentLog) -> None:
    found = fill(log, 40)
    reader = log.reader()
    for start in range(1, 42):
        for stop in (start, start + 1, start + 9, 41, None):
            wanted = found[start - 1 : (41 if stop is None else stop) - 1]
            assert list(reader.records(start, stop)) == wanted
            assert reader.count(start, stop) == len(wanted)


def test_pieces_of_segment_files_sent_by_sendfile_are_the_records(log: SegmentLog) -> None:
    found = fill(log, 40)
    reader = log.reader()
    assert sent(reader.pieces(1)) == found
    assert sent(reader.pieces(7, 33)) == found[6:32]
    pieces = [(piece.first, piece.last) for piece in reader.pieces(7, 33)]
    assert pieces[0][0] == 7
    assert pieces[-1][1] == 32
    assert len(pieces) < 8
    assert sent(reader.pieces(7, 33, only("quotes"))) == [r for r in found[6:32] if r.topic == "quotes"]


def test_frames_of_a_filtered_topic_are_joined_into_parts_of_bounded_size(log: SegmentLog) -> None:
    found = [record for record in fill(log, 40) if record.topic == "quotes"]
    parts = list(log.reader().frames(1, wanted=only("quotes"), size=1500))
    assert [record for part in parts for record in RecordReader().feed(part.data)] == found
    assert sum(part.records for part in parts) == len(found)
    assert parts[0].first == found[0].sequence
    assert max(len(part.data) for part in parts) < 1500 + 400


topics = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=60)


@given(topics, st.sets(st.sampled_from(["a", "b", "c", "d", "e"])), st.data())
def test_filter_selects_the_same_records_as_records_pieces_frames_and_count(
    tmp_path_factory: pytest.TempPathFactory, order: list[str], wanted: set[str], data: st.DataObject
) -> None:
    with open_log(tmp_path_factory.mktemp("log"), SMALL._replace(durability="os", segment_bytes=1024)) as log:
        for number, topic in enumerate(order):
            log.append([NewRecord(topic, b"%d" % number, None, {"pad": "x" * (number % 90)})])
        start = data.draw(st.integers(1, log.last + 1))
        stop = data.draw(st.integers(start, log.last + 1))
        reader = log.reader()
        expected = [r for r in reader.records(1) if start <= r.sequence < stop and r.topic in wanted]
        assert [n + 1 for n, topic in enumerate(order) if topic in wanted and start <= n + 1 < stop] == sequences(
            expected
        )
        assert list(reader.records(start, stop, wanted.__contains__)) == expected
        assert sent(reader.pieces(start, stop, wanted.__contains__)) == expected
        frames = b"".join(part.data for part in reader.frames(start, stop, wanted.__contains__))
        assert list(RecordReader().feed(frames)) == expected
        assert reader.count(start, stop, wanted.__contains__) == len(expected)


def test_filter_is_called_once_for_each_topic(log: SegmentLog) -> None:
    fill(log, 40)
    asked: list[str] = []

    def wanted(topic: str) -> bool:
        asked.append(topic)
        return True

    assert len(list(log.reader().records(1, 3, wanted))) == 2
    assert len(asked) <= 4  # once for the segment, once for the frames


class GrowingSource:
    """A log that is written to between two looks at it: before look number ``at``."""

    def __init__(self, log: SegmentLog, at: int) -> None:
        self._log = log
        self.left = at

    epoch = property(lambda self: self._log.epoch)

    @property
    def chain(self) -> Chain:
        self.left -= 1
        if self.left == 0:
            fill(self._log, 30)
        return self._log.chain

    def refresh(self, *, reload: bool = False) -> None:
        self._log.refresh(reload=reload)


def test_count_of_a_span_ignores_records_appended_while_counting(tmp_path: Path) -> None:
    for at in range(1, 30):
        with open_log(tmp_path / str(at)) as log:
            fill(log, 20)
            source = GrowingSource(log, at)
            assert SegmentReader(source).count(1, 21, lambda topic: topic == "trades") == 10
        if source.left > 0:
            return  # all looks there are
    raise AssertionError("it looks too often")


def test_sequence_at_finds_the_first_record_at_or_after_a_time(tmp_path: Path) -> None:
    clock = NanosecondClock()
    with open_log(tmp_path / "log", now_ns=clock) as log:
        for _ in range(20):
            log.append(new(2))
            clock.advance(SECOND)
        reader = log.reader()
        assert reader.sequence_at(0) == 1
        for second in range(20):
            assert reader.sequence_at(START_NS + second * SECOND) == 2 * second + 1
            assert reader.sequence_at(START_NS + second * SECOND - 1) == 2 * second + 1
        assert reader.sequence_at(clock.now) == 41
        log.trim(20)
        assert reader.sequence_at(0) == log.first


@pytest.mark.parametrize("start", [-1, 0, 12])
def test_start_outside_the_log_is_refused_by_field(log: SegmentLog, start: int) -> None:
    log.append(new(10))
    with pytest.raises(BadInput) as caught:
        log.reader().pieces(start)
    assert caught.value.field == "start"


def test_reader_finishes_the_segment_it_holds_and_raises_retired_for_the_next(log: SegmentLog) -> None:
    found = fill(log, 60)
    first_segment = log.chain[0]
    slow = log.reader().records(1)
    got = [next(slow)]
    log.trim(50)
    fill(log, 60)  # would write over a file that was used again
    with pytest.raises(Retired) as caught:
        got.extend(slow)
    assert got == found[: first_segment.tail.last]
    assert caught.value.asked == first_segment.tail.last + 1
    assert caught.value.first == log.first


def test_piece_in_flight_keeps_its_bytes_after_its_segment_is_retired(log: SegmentLog) -> None:
    fill(log, 60)
    pieces = log.reader().pieces(1)
    piece = next(pieces)
    before = os.pread(piece.file, piece.length, piece.offset)
    log.trim(50)
    fill(log, 100)
    assert os.pread(piece.file, piece.length, piece.offset) == before
    pieces.close()  # type: ignore[attr-defined]


def test_index_of_a_segment_that_cannot_be_read_is_rebuilt(log: SegmentLog) -> None:
    found = fill(log, 40)
    with segments(log.folder)[0].open("r+b") as file:
        file.seek(log.chain[0].tail.end + 20)
        file.write(b"\xff\xff\xff")
    reader = log.reader()
    assert list(reader.records(3)) == found[2:]
    assert list(reader.records(3, wanted=only("quotes"))) == [r for r in found[2:] if r.topic == "quotes"]


def test_damaged_frame_is_detected_and_named_by_file_and_record(log: SegmentLog) -> None:
    fill(log, 40)
    with segments(log.folder)[0].open("r+b") as file:
        file.seek(log.chain[0].head.begin + 200)
        file.write(b"!")
    with pytest.raises(StoreDamaged, match=r"00000000000000000001\.log: record 1 is damaged"):
        list(log.reader().records(1))
    assert sequences(log.reader().records(2, 6)) == [2, 3, 4, 5]


# -- from outside -----------------------------------------------------------------------------------------------------


def test_view_shows_the_confirmed_records_and_follows_after_refresh(log: SegmentLog) -> None:
    found = fill(log, 20)
    with SegmentView(log.folder) as view:
        assert (view.epoch, view.first, view.last) == (log.epoch, 1, 20)
        assert list(view.reader().records(1)) == found
        assert view.topics() == log.topics()
        assert sent(view.reader().pieces(5, 12)) == found[4:11]
        found = fill(log, 30)
        assert view.last == 20
        assert view.reader().refresh() == 50
        assert list(view.reader().records(1)) == found
        assert view.gaps() == []


def test_view_reads_a_log_without_a_writer(log: SegmentLog) -> None:
    found = fill(log, 30)
    log.close()
    view = SegmentView(log.folder)
    assert list(view.reader().records(1)) == found
    assert view.unreadable == []


def test_view_changes_no_file(log: SegmentLog) -> None:
    fill(log, 30)
    log.close()
    before = {path.name: path.read_bytes() for path in log.folder.iterdir()}
    list(SegmentView(log.folder).reader().records(1))
    assert {path.name: path.read_bytes() for path in log.folder.iterdir()} == before


def test_view_raises_retired_for_trimmed_records_and_reads_on_from_the_first(log: SegmentLog) -> None:
    fill(log, 60)
    view = SegmentView(log.folder)
    log.trim(40)
    with pytest.raises(Retired) as caught:
        list(view.reader().records(1))
    assert (caught.value.asked, caught.value.first) == (1, log.first)
    assert sequences(view.reader().records(log.first)) == list(range(log.first, 61))


def test_view_hides_a_torn_tail(log: SegmentLog) -> None:
    fill(log, 8)
    end = log.chain[-1]
    data = log.append(new(3)).data
    log.close()
    with Path(end.path).open("r+b") as file:  # as a writer leaves it in the middle of its write
        file.seek(end.tail.end - len(data) // 3)
        file.write(bytes(len(data)))
    assert SegmentView(log.folder).last == 10


def test_view_refresh_raises_wrong_epoch_when_the_log_was_recreated(log: SegmentLog) -> None:
    fill(log, 10)
    view = SegmentView(log.folder)
    log.close()
    for path in segments(log.folder):
        path.unlink()
    with open_log(log.folder) as again:
        assert again.epoch != view.epoch
        with pytest.raises(WrongEpoch, match=again.epoch):
            view.refresh()
        with pytest.raises(WrongEpoch):
            SegmentView(log.folder, epoch=log.epoch)
        assert SegmentView(log.folder).epoch == again.epoch


def test_view_continues_after_a_segment_was_salvaged(log: SegmentLog) -> None:
    found = fill(log, 40)
    view = SegmentView(log.folder)
    with segments(log.folder)[0].open("r+b") as file:
        file.seek(log.chain[0].head.begin + 200)
        file.write(b"!")
    assert len(log.mend()) == 1
    assert log.gaps() == [Gap(1, 1)]
    assert list(view.reader().records(1)) == found[1:]
    assert view.gaps() == [Gap(1, 1)]


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_view_of_a_folder_without_a_log_is_not_found(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound) as caught:
        SegmentView(tmp_path / name)
    assert caught.value.field == "folder"


def test_view_skips_an_unreadable_segment_and_reports_the_gap(log: SegmentLog) -> None:
    fill(log, 40)
    log.close()
    second = segments(log.folder)[1]
    second.write_bytes(b"?" * 4096)
    view = SegmentView(log.folder)
    firsts = [int(path.stem) for path in segments(log.folder)]
    assert view.unreadable == [str(second)]
    assert view.gaps() == [Gap(firsts[1], firsts[2] - 1)]
    assert sequences(view.reader().records(1)) == [*range(1, firsts[1]), *range(firsts[2], 41)]


def test_view_follows_a_writer_that_rolls_and_retires_and_misses_only_reported_records(tmp_path: Path) -> None:
    """Each sees every record from where it began, in order, or is told what it missed."""
    log = SegmentLog(tmp_path / "log", LogSettings(segment_bytes=1 << 15, durability="os"))
    log.append(new(1))
    stop = threading.Event()
    seen: list[list[int]] = [[], []]
    told: set[tuple[int, int]] = set()
    problems: list[BaseException] = []

    def follow(mine: list[int]) -> None:
        reader = SegmentView(tmp_path / "log").reader()
        at = 1
        try:
            while not (stop.is_set() and at > log.last):
                reader.refresh()
                try:
                    for record in reader.records(at):
                        mine.append(record.sequence)
                        at = record.sequence + 1
                except Retired as error:
                    told.add((mine[-1] + 1 if mine else 1, error.first))  # it may be told twice before it reads on
                    at = error.first
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=follow, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    for turn in range(300):
        log.append(new(10, size=200))
        if turn % 20 == 19:
            log.trim(max(0, log.last - 400))
    stop.set()
    for thread in threads:
        thread.join()
    log.close()
    assert problems == []
    for mine in seen:
        assert mine[-1] == 3001
        assert [(a + 1, b) for a, b in pairwise([0, *mine]) if b != a + 1 and (a + 1, b) not in told] == []
