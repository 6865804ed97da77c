"""What a power cut, a kill or a bad disk leaves of a log: half a write is cut off, a damaged segment is set aside, and
everything else is there."""

import shutil
from pathlib import Path
from random import Random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.segment_log import SMALL, fill, names, new, open_log, segments, sequences
from yirangmq.core.errors import StoreDamaged, StoreError, StoreTooNew, WrongEpoch
from yirangmq.core.topics import Gap, NewRecord, Record
from yirangmq.stores.log.log import LogSettings
from yirangmq.stores.log.readonly import SegmentView
from yirangmq.stores.log.segment_format import HEAD_SIZE, stray_records


class Made:
    """A log as it lies on disk, and the records it held."""

    def __init__(self, folder: Path, count: int, batch: int, settings: LogSettings = SMALL) -> None:
        self.folder = folder
        with open_log(folder, settings) as log:
            self.records = fill(log, count - batch, batch=batch, size=60)
            self.begin = log.chain[-1].tail.end
            """Where the last write begins, in the last segment."""
            self.records = fill(log, batch, batch=batch, size=60)
            self.path = Path(log.chain[-1].path)
            self.end = log.chain[-1].tail.end
            self.epoch = log.epoch
            self.firsts = [segment.first for segment in log.chain]

    def copy(self, target: Path) -> Path:
        shutil.copytree(self.folder, target)
        return target


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made") / "log", 9, 3)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("long") / "log", 100, 5)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def check_log(folder: Path, expected: list[Record], made: Made) -> None:
    """Opened, read, written to and opened again it holds these records and nothing else."""
    assert list(SegmentView(folder).reader().records(1)) == expected
    with open_log(folder, SMALL) as log:
        assert log.epoch == made.epoch
        assert list(log.reader().records(1)) == expected
        assert log.append(new(1)).first == len(expected) + 1
    with open_log(folder, SMALL) as log:
        assert sequences(log.reader().records(1)) == list(range(1, len(expected) + 2))
        assert log.gaps() == []


# -- half a write -----------------------------------------------------------------------------------------------------


def test_torn_tail_cut_at_any_byte_keeps_every_complete_record(tmp_path: Path, made: Made) -> None:
    whole = made.path.read_bytes()
    ends = _ends(made)
    for at in range(made.begin, made.end):
        folder = made.copy(tmp_path / str(at))
        size = made.end - at
        tails = (bytes(size) + whole[made.end :], Random(at).randbytes(size) + whole[made.end :], b"")
        (folder / made.path.name).write_bytes(whole[:at] + tails[at % 3])
        kept = sum(end <= at for end in ends)
        check_log(folder, made.records[: len(made.records) - 3 + kept], made)
        shutil.rmtree(folder)


def _ends(made: Made) -> list[int]:
    """Where the records of the last write end."""
    with open_log(made.folder, SMALL) as log:
        pieces = [next(iter(log.reader().pieces(n, n + 1))) for n in (7, 8, 9)]
    return [piece.offset + piece.length for piece in pieces]


@given(st.sets(st.integers(0, 2)), st.integers(1, 3))
def test_torn_tail_records_never_confirmed_do_not_reappear_behind_later_appends(
    tmp_path_factory: pytest.TempPathFactory, made: Made, lost: set[int], count: int
) -> None:
    """The first record of a write is lost, later ones are not: they must not follow what is written in its place."""
    folder = made.copy(tmp_path_factory.mktemp("ghost") / "log")
    path = folder / made.path.name
    edges = [made.begin, *_ends(made)]
    for n in {0} | lost:
        overwrite(path, edges[n], bytes(edges[n + 1] - edges[n]))
    with open_log(folder, SMALL) as log:
        assert log.last == 6
        again = [NewRecord("again", b".".ljust(55)) for _ in range(count)]
        log.append([again[0]._replace(topic=("trades", "quotes")[0], payload=made.records[6].payload)])
    with open_log(folder, SMALL) as log:
        assert log.last == 7
        assert log.gaps() == []
    with path.open("rb") as file:
        assert list(stray_records(file.fileno(), 0, 8, 100)) == []


def test_torn_tail_keeps_a_complete_record_written_but_not_confirmed_before_a_kill(tmp_path: Path, made: Made) -> None:
    """The publisher was killed between the write and the sync: it is in the file, so it is a record."""
    check_log(made.copy(tmp_path / "log"), made.records, made)


def test_segment_reusing_a_retired_file_ignores_old_records_behind_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with open_log(folder) as log:
        fill(log, 60)
        log.trim(55)
        fill(log, 13, size=301)
        last = log.last
    with open_log(folder) as log:
        assert (log.last, log.gaps(), log.notes) == (last, [], [])


# -- damage -----------------------------------------------------------------------------------------------------------


def check_damaged(folder: Path, made: Made, *, at_least: int) -> list[Gap]:
    """Whatever is read is what was written; what is missing is told, or was the last write."""
    with open_log(folder, SMALL) as log:
        log.mend()
        found = list(log.reader().records(log.first))
        by_sequence = {record.sequence: record for record in made.records}
        assert found == [by_sequence[record.sequence] for record in found]
        assert len(found) >= at_least
        gaps = list(log.gaps())
        told = {number for gap in gaps for number in range(gap.first, gap.last + 1)}
        missing = by_sequence.keys() - {record.sequence for record in found} - told
        assert missing == {number for number in by_sequence if number > log.last}
        assert not told & {record.sequence for record in found}
        following = log.append(new(1)).first
        assert following not in by_sequence or following in missing
        after = list(log.reader().records(log.first))
    with open_log(folder, SMALL) as log:
        assert list(log.reader().records(log.first)) == after
        assert list(log.gaps()) == gaps
        assert log.mend() == []
    return gaps


@given(st.data())
def test_damage_of_one_bit_costs_at_most_one_record_and_is_reported(
    tmp_path_factory: pytest.TempPathFactory, long: Made, data: st.DataObject
) -> None:
    folder = long.copy(tmp_path_factory.mktemp("flip") / "log")
    path = data.draw(st.sampled_from(segments(folder)))
    content = bytearray(path.read_bytes())
    end = long.end if path.name == long.path.name else len(content)
    bit = data.draw(st.integers(0, end * 8 - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    gaps = check_damaged(folder, long, at_least=len(long.records) - 5)
    assert sum(gap.last - gap.first + 1 for gap in gaps) <= 1


@given(st.data())
def test_damage_of_any_kind_is_survived_and_reported(
    tmp_path_factory: pytest.TempPathFactory, long: Made, data: st.DataObject
) -> None:
    """Parts of files overwritten with rubbish or zeros, or cut off."""
    folder = long.copy(tmp_path_factory.mktemp("rot") / "log")
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(segments(folder)))
        content = bytearray(path.read_bytes())
        begin = data.draw(st.integers(0, len(content)))
        size = data.draw(st.sampled_from([1, 8, 60, 500, 5000]))
        how = data.draw(st.sampled_from(["rubbish", "zeros", "cut"]))
        if how == "cut":
            del content[begin:]
        else:
            part = content[begin : begin + size]
            content[begin : begin + size] = bytes(len(part)) if how == "zeros" else Random(begin).randbytes(len(part))
        path.write_bytes(content)
    check_damaged(folder, long, at_least=0)


def test_quarantine_keeps_a_damaged_segment_with_its_reason_and_the_gap_has_both_ends(
    tmp_path: Path, long: Made
) -> None:
    folder = long.copy(tmp_path / "log")
    second = segments(folder)[1]
    content = bytearray(second.read_bytes())
    content[HEAD_SIZE + 150] ^= 1  # in its first record
    second.write_bytes(content)
    first = long.firsts[1]
    with open_log(folder) as log:
        assert log.gaps() == []  # nobody has read it yet
        assert len(log.mend()) == 1
        assert log.gaps() == [Gap(first, first)]
        assert sequences(log.reader().records(1)) == [n for n in range(1, 101) if n != first]
        assert log.epoch == long.epoch
    assert (folder / "quarantine" / second.name).read_bytes() == bytes(content)
    assert f"the record {first} is damaged" in (folder / "quarantine" / f"{second.name}.txt").read_text()
    with open_log(folder) as log:
        assert log.gaps() == [Gap(first, first)]


@pytest.mark.parametrize("place", [0, 5, -1])
@pytest.mark.parametrize("is_repaired_at_open", [False, True])
def test_gap_is_not_counted_among_the_records_of_any_topic(
    tmp_path: Path, place: int, is_repaired_at_open: bool
) -> None:
    """The first, another or the last record of a segment is damaged. RECS of the public layout announces this count."""
    with open_log(tmp_path / "log") as log:
        for n in range(300):
            log.append(new(1, ("trades", "quotes", "rare" if n % 31 == 0 else "news")[n % 3], 60, n))
        segment = log.chain[1]
        damaged = segment.first + place if place >= 0 else segment.tail.last
        [piece] = log.reader().pieces(damaged, damaged + 1)
        if not is_repaired_at_open:
            overwrite(Path(segment.path), piece.offset + piece.length - 1, b"?")
            log.mend()
    if is_repaired_at_open:
        overwrite(Path(segment.path), piece.offset + piece.length - 1, b"?")
        with Path(segment.path).open("r+b") as file:
            file.truncate(Path(segment.path).stat().st_size - 1)  # its seal is damaged too
    with open_log(tmp_path / "log") as log:
        assert log.gaps() == [Gap(damaged, damaged)]
        reader = log.reader()
        for topic in ("trades", "quotes", "rare", "news"):
            only = topic.__eq__
            for start, stop in (
                (1, 301),
                (1, damaged),
                (damaged, 301),
                (damaged + 1, 301),
                (segment.first, damaged + 9),
            ):
                assert reader.count(start, stop, only) == len(list(reader.records(start, stop, only)))
            if topic in log.topics():
                assert log.topics()[topic].records == len(list(reader.records(1, None, only)))


def test_segment_without_a_head_is_rebuilt_from_its_records_and_quarantined(tmp_path: Path, long: Made) -> None:
    folder = long.copy(tmp_path / "log")
    overwrite(segments(folder)[1], 0, bytes(HEAD_SIZE))
    with open_log(folder) as log:
        assert log.gaps() == []
        assert list(log.reader().records(1)) == long.records
        assert "is damaged" in log.notes[0]
    assert names(folder / "quarantine") == [segments(folder)[1].name, f"{segments(folder)[1].name}.txt"]


def test_segment_that_is_missing_is_reported_as_a_gap(tmp_path: Path, long: Made) -> None:
    folder = long.copy(tmp_path / "log")
    segments(folder)[1].unlink()
    with open_log(folder) as log:
        assert log.gaps() == [Gap(long.firsts[1], long.firsts[2] - 1)]
        assert log.epoch == long.epoch


def test_damage_in_the_last_segment_loses_one_record_and_keeps_those_that_follow(tmp_path: Path, long: Made) -> None:
    """The writes after the damaged record prove that it was on disk: it is lost, they are not."""
    folder = long.copy(tmp_path / "log")
    first = long.firsts[-1]
    with SegmentView(folder) as view:
        [piece] = view.reader().pieces(first + 1, first + 2)
    overwrite(long_path(folder), piece.offset + 70, b"\xff")
    with open_log(folder) as log:
        assert log.gaps() == [Gap(first + 1, first + 1)]
        assert sequences(log.reader().records(first)) == [first, *range(first + 2, 101)]
        assert log.append(new(1)).first == 101
        assert log.epoch == long.epoch


def long_path(folder: Path) -> Path:
    return segments(folder)[-1]


def test_epoch_changes_when_the_last_segment_is_lost(tmp_path: Path, long: Made) -> None:
    """Nobody knows how much was lost, so no sequence of the old feed may be taken for one of the new."""
    folder = long.copy(tmp_path / "log")
    long_path(folder).unlink()
    with open_log(folder) as log:
        assert log.epoch != long.epoch
        assert log.last == long.firsts[-1] - 1
        assert "new epoch" in log.notes[0]
        epoch = log.epoch
        log.append(new(1))
    with open_log(folder) as log:
        assert log.epoch == epoch
        assert sequences(log.reader().records(1)) == list(range(1, long.firsts[-1] + 1))


def test_epoch_changes_when_the_whole_log_is_lost(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        fill(log, 10)
        epoch = log.epoch
    shutil.rmtree(tmp_path / "log")
    with open_log(tmp_path / "log") as log:
        assert (log.first, log.last) == (1, 0)
        assert log.epoch != epoch


# -- what is not ours -------------------------------------------------------------------------------------------------


def test_epoch_other_than_expected_is_refused_and_no_file_changes(tmp_path: Path, long: Made) -> None:
    folder = long.copy(tmp_path / "log")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(WrongEpoch, match=long.epoch):
        open_log(folder, epoch="0" * 32)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    open_log(folder, epoch=long.epoch).close()


def test_segment_of_another_log_is_refused_with_wrong_epoch(tmp_path: Path, long: Made) -> None:
    folder = long.copy(tmp_path / "log")
    with open_log(tmp_path / "other") as other:
        fill(other, 100, batch=5, size=60)
    shutil.copy(segments(tmp_path / "other")[1], segments(folder)[1])
    with pytest.raises(WrongEpoch, match=r"belongs to another log; move it away"):
        open_log(folder)


def test_segment_that_was_renamed_is_refused_by_name(tmp_path: Path, long: Made) -> None:
    folder = long.copy(tmp_path / "log")
    segments(folder)[1].rename(folder / "00000000000000000099.log")
    with pytest.raises(StoreDamaged, match=r"00000000000000000099\.log holds the segment that begins at"):
        open_log(folder)


def test_segment_version_from_a_later_release_is_refused(tmp_path: Path, long: Made) -> None:
    folder = long.copy(tmp_path / "log")
    first = segments(folder)[0]
    head = bytearray(first.read_bytes()[:HEAD_SIZE])
    head[8:10] = b"\x00\x02"
    head[12:16] = crc32(head[16:], crc32(head[:12])).to_bytes(4, "big")
    overwrite(first, 0, bytes(head))
    with pytest.raises(StoreTooNew, match="version 2"):
        open_log(folder)


def test_log_folder_of_other_files_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match=r"contains no log but other files, such as 'letter\.txt'"):
        open_log(tmp_path)
    assert names(tmp_path) == ["letter.txt"]


def test_log_folder_with_a_foreign_file_opens_and_keeps_the_file(tmp_path: Path, long: Made) -> None:
    folder = long.copy(tmp_path / "log")
    (folder / "notes.txt").write_text("mine")
    with open_log(folder) as log:
        assert list(log.reader().records(1)) == long.records
    assert (folder / "notes.txt").read_text() == "mine"
