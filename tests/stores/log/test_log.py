"""The log: what is appended is there, in order, with its numbers, also after closing, and until it is given up."""

import threading
from pathlib import Path

import pytest

from tests.support.clock import START_NS, NanosecondClock
from tests.support.segment_log import SECOND, SMALL, fill, make_log, names, new, open_log, segments, sequences
from yirangmq.core.errors import BadInput, Retired, StoreBusy, TooLarge, Unavailable
from yirangmq.core.topics import MAX_SEQUENCE, AppendResult, NewRecord, Retention, TrimResult
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.stores.log.readonly import SegmentView
from yirangmq.wire.records import RecordReader

SIZES = (0, 1, 4064, 4065, 1 << 20)


def test_log_that_is_new_is_empty_and_has_an_epoch(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        assert (log.first, log.last, log.size) == (1, 0, 0)
        assert len(log.epoch) == 32
        assert log.topics() == {}
        assert list(log.reader().records(1)) == []
        assert list(log.reader().pieces(1)) == []


def test_append_and_read_return_the_same_record(tmp_path: Path) -> None:
    clock = NanosecondClock()
    with open_log(tmp_path / "log", now_ns=clock) as log:
        given = NewRecord("trades", b"\x00hello\xff", "key", {"type": "tick"})
        done = log.append([given])
        [record] = log.reader().records(1)
    assert (done.first, done.last, done.at_ns) == (1, 1, START_NS)
    assert record == (1, 1, START_NS, *given[:1], "key", {"type": "tick"}, given.payload)
    assert list(RecordReader().feed(done.data)) == [record]


@pytest.mark.parametrize("size", SIZES)
def test_payload_of_every_size_is_stored_and_read_back(tmp_path: Path, size: int) -> None:
    with open_log(tmp_path / "log") as log:
        log.append([NewRecord("t", b"before"), NewRecord("t", bytes(size)), NewRecord("t", b"after")])
    with open_log(tmp_path / "log") as log:
        assert [len(record.payload) for record in log.reader().records(1)] == [6, size, 5]
        assert [len(record.payload) for record in log.reader().records(2, 3)] == [size]


def test_sequence_has_no_gaps_in_the_log_or_in_any_topic(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        found = fill(log, 60, batch=7)
        assert sequences(found) == list(range(1, 61))
        for topic in ("trades", "quotes"):
            assert [r.topic_sequence for r in found if r.topic == topic] == list(range(1, 31))
        assert len(segments(tmp_path / "log")) > 3
        assert log.gaps() == []


def test_reopen_keeps_epoch_topics_and_records_and_continues_the_sequence(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        epoch, before, topics = log.epoch, fill(log, 50, batch=3), log.topics()
    with open_log(tmp_path / "log") as log:
        assert (log.epoch, log.last, log.topics(), log.notes) == (epoch, 50, topics, [])
        assert list(log.reader().records(1)) == before
        assert log.append(new(1)).first == 51
        [record] = log.reader().records(51)
        assert record.topic_sequence == 26


def test_topic_whose_records_are_all_retired_keeps_its_topic_sequence(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        log.append(new(5, "rare"))
        fill(log, 60)
        log.trim(50)
        state = log.topics()["rare"]
        assert (state.topic_sequence, state.sequence, state.records, state.size) == (5, 5, 0, 0)
    with open_log(tmp_path / "log") as log:
        assert log.topics()["rare"] == state
        log.append(new(1, "rare"))
        assert log.topics()["rare"].topic_sequence == 6


def test_topic_state_counts_only_the_records_that_are_kept(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        kept = fill(log, 60)
        log.trim(30)
        kept = [record for record in kept if record.sequence >= log.first]
        for name, state in log.topics().items():
            own = [record for record in kept if record.topic == name]
            assert state.records == len(own)
            assert state.sequence == own[-1].sequence
            assert state.at_ns == own[-1].at_ns
        assert sum(state.size for state in log.topics().values()) == log.size


def test_sequence_passes_two_to_the_thirty_second_without_error(tmp_path: Path) -> None:
    make_log(tmp_path / "log", 2**32 - 20, {"trades": 2**32 - 5, "quotes": 7})
    with open_log(tmp_path / "log") as log:
        found = fill(log, 40, batch=3)
        assert sequences(found) == list(range(2**32 - 20, 2**32 + 20))
        assert log.topics()["trades"].topic_sequence == 2**32 + 15
    with open_log(tmp_path / "log") as log:
        assert list(log.reader().records(2**32 - 20)) == found
        assert sequences(log.reader().records(2**32 - 1, 2**32 + 2)) == [2**32 - 1, 2**32, 2**32 + 1]
        log.trim(2**32 + 1)
        assert log.first <= 2**32 + 1


def test_sequence_beyond_the_64_bit_maximum_is_refused_as_too_large(tmp_path: Path) -> None:
    make_log(tmp_path / "log", MAX_SEQUENCE - 1, {})
    with open_log(tmp_path / "log") as log:
        log.append(new(2))
        with pytest.raises(TooLarge):
            log.append(new(1))
        assert sequences(log.reader().records(MAX_SEQUENCE - 1)) == [MAX_SEQUENCE - 1, MAX_SEQUENCE]


def test_segment_of_its_own_holds_a_batch_larger_than_a_segment(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        log.append(new(1))
        log.append(new(100))
        log.append(new(1))
        assert sequences(log.reader().records(1)) == list(range(1, 103))
    with open_log(tmp_path / "log") as log:
        assert log.last == 102


def test_segment_that_is_empty_is_replaced_by_a_first_batch_larger_than_it(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        epoch = log.epoch
        log.append(new(30))
        log.append(new(1))
        assert [segment.first for segment in log.chain] == [1, 31]
        assert sequences(log.reader().records(1)) == list(range(1, 32))
    with open_log(tmp_path / "log") as log:
        assert (log.epoch, log.last, log.gaps()) == (epoch, 31, [])


def test_record_time_never_goes_back_when_the_clock_does(tmp_path: Path) -> None:
    clock = NanosecondClock()
    with open_log(tmp_path / "log", now_ns=clock) as log:
        log.append(new(1))
        clock.advance(-5 * SECOND)
        log.append(new(1))
    with open_log(tmp_path / "log", now_ns=clock) as log:
        log.append(new(1))
        assert [record.at_ns for record in log.reader().records(1)] == [START_NS] * 3


# -- callers ----------------------------------------------------------------------------------------------------------


def test_group_commit_of_concurrent_appends_gives_each_caller_its_own_sequences(tmp_path: Path) -> None:
    results: list[AppendResult] = []
    commits: list[list[int]] = []
    with open_log(tmp_path / "log", LogSettings(segment_bytes=1 << 16)) as log:
        log.on_commit(lambda done: commits.append([one.first for one in done]))

        def publish(number: int) -> None:
            for turn in range(20):
                results.append(log.append(new(3, f"topic-{number}", 50, turn)))

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
        with log.pause_appends():  # all of them come to wait before the first may write
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
        found = list(log.reader().records(1))
    assert sequences(found) == list(range(1, 8 * 20 * 3 + 1))
    for number in range(8):
        assert [r.topic_sequence for r in found if r.topic == f"topic-{number}"] == list(range(1, 61))
    firsts = [first for commit in commits for first in commit]
    assert firsts == sorted(firsts) == sorted(result.first for result in results)
    assert len(commits) < len(firsts)


def test_commit_listener_runs_before_the_append_returns(tmp_path: Path) -> None:
    told: list[int] = []
    with open_log(tmp_path / "log") as log:
        log.on_commit(lambda done: told.extend(one.last for one in done))
        for count in (1, 2, 3):
            assert log.append(new(count)).last == told[-1]


@pytest.mark.parametrize(
    ("batch", "field"),
    [
        ([], "records"),
        ([NewRecord("good", b"x"), NewRecord("bad name", b"x")], "topic"),
        ([NewRecord("good", b"x"), NewRecord("good", "text")], "payload"),  # type: ignore[arg-type]
        ([NewRecord(["a"], b"x")], "topic"),  # type: ignore[arg-type]
        ([NewRecord("good", b"x", None, {"a": 1})], "headers"),  # type: ignore[dict-item]
    ],
    ids=["none", "topic", "payload", "topic-type", "headers"],
)
def test_bad_record_is_refused_by_field_and_nothing_of_its_batch_is_stored(
    tmp_path: Path, batch: list[NewRecord], field: str
) -> None:
    with open_log(tmp_path / "log") as log:
        log.append(new(2))
        with pytest.raises(BadInput) as caught:
            log.append(batch)
        assert caught.value.field == field
        assert log.append(new(1)).first == 3
        assert set(log.topics()) == {"trades"}


@pytest.mark.parametrize(
    ("settings", "field"),
    [(LogSettings(segment_bytes=10), "segmentBytes"), (LogSettings(durability="no"), "durability")],  # type: ignore[arg-type]
)
def test_log_settings_that_are_wrong_are_refused_by_field(tmp_path: Path, settings: LogSettings, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_log(tmp_path / "log", settings)
    assert caught.value.field == field


def test_writer_lock_refuses_a_second_writer_as_store_busy(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        log.append(new(1))
        with pytest.raises(StoreBusy):
            open_log(tmp_path / "log")
        assert log.append(new(1)).last == 2


def test_closed_log_refuses_append_and_trim_as_unavailable(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    log.close()
    log.close()
    with pytest.raises(Unavailable):
        log.append(new(1))
    with pytest.raises(Unavailable):
        log.trim(1)


def test_durability_os_keeps_its_records_after_close_and_reports_its_name(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", SMALL._replace(durability="os")) as log:
        assert log.durability == "os"
        before = fill(log, 40)
        log.sync()
    with open_log(tmp_path / "log") as log:
        assert list(log.reader().records(1)) == before


# -- giving up --------------------------------------------------------------------------------------------------------


def test_trim_retires_whole_segments_before_a_sequence(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        before = fill(log, 60)
        firsts = [int(path.stem) for path in segments(tmp_path / "log")]
        done = log.trim(30)
        assert done.first == log.first == max(first for first in firsts if first <= 30)
        assert done.segments == firsts.index(log.first)
        assert list(log.reader().records(log.first)) == before[log.first - 1 :]
    with open_log(tmp_path / "log") as log:
        assert log.first == done.first
        assert log.gaps() == []


def test_trim_of_everything_continues_the_sequence(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        fill(log, 25)
        assert log.trim(26).first == 26
        assert (log.first, log.last, log.size) == (26, 25, 0)
        assert log.append(new(1)).first == 26
    with open_log(tmp_path / "log") as log:
        assert sequences(log.reader().records(26)) == [26]


def test_retention_by_age_retires_older_segments_even_without_new_records(tmp_path: Path) -> None:
    clock = NanosecondClock()
    with open_log(tmp_path / "log", now_ns=clock) as log:
        fill(log, 20)
        clock.advance(10 * SECOND)
        fill(log, 20)
        clock.advance(10 * SECOND)
        assert log.retain(Retention(age_ns=21 * SECOND)) == TrimResult(0, 0, 1)
        log.retain(Retention(age_ns=15 * SECOND))
        assert 1 < log.first <= 21
        log.retain(Retention(age_ns=5 * SECOND))
        assert log.first == 41


def test_retention_by_size_keeps_at_least_that_many_bytes_and_the_last_segment(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        fill(log, 60)
        whole = log.size
        assert log.retain(Retention(size=whole)).segments == 0
        log.retain(Retention(size=whole // 2))
        assert whole // 2 <= log.size < whole // 2 + 4096
        log.retain(Retention(size=0))
        assert len(log.chain) == 1


def test_retention_keeps_records_above_the_floor_of_the_slowest_subscriber(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        fill(log, 60)
        log.retain(Retention(age_ns=0, size=0), floor=20)
        assert log.first <= 20
        assert sequences(log.reader().records(20))[0] == 20
        log.retain(Retention(age_ns=0, size=0), floor=61)
        assert log.first > 20


@pytest.mark.parametrize(
    ("rule", "floor", "field"),
    [
        (Retention(age_ns=-1), None, "ageNs"),
        (Retention(size=-1), None, "size"),
        (Retention(size=1.5), None, "size"),  # type: ignore[arg-type]
        (Retention(), -1, "floor"),
    ],
    ids=["age", "size", "part-of-a-byte", "floor"],
)
def test_retention_with_an_invalid_rule_or_floor_is_refused_by_field_and_deletes_nothing(
    tmp_path: Path, rule: Retention, floor: int | None, field: str
) -> None:
    with open_log(tmp_path / "log") as log:
        fill(log, 60)
        with pytest.raises(BadInput) as caught:
            log.retain(rule, floor)
        assert caught.value.field == field
        assert log.first == 1


def test_retired_sequence_raises_an_error_with_both_sequences(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        fill(log, 60)
        log.trim(30)
        with pytest.raises(Retired, match=f"sequence 5 is no longer kept; the log begins at {log.first}") as caught:
            log.reader().records(5)
        assert (caught.value.asked, caught.value.first) == (5, log.first)


def test_retired_segment_file_is_reused(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with open_log(folder) as log:
        fill(log, 60)
        oldest = segments(folder)[0].stat().st_ino
        log.trim(20)
        found = fill(log, 60)
        assert oldest in {path.stat().st_ino for path in segments(folder)}
        assert sequences(found) == list(range(log.first, 121))
    with open_log(folder) as log:
        assert list(log.reader().records(log.first)) == found


def test_close_leaves_only_segment_files(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with SegmentLog(folder, LogSettings(segment_bytes=1 << 16)) as log:
        fill(log, 400, batch=10)
        log.trim(200)
    assert names(folder) == [path.name for path in segments(folder)]


def test_seal_and_preallocation_in_the_background_lose_no_record(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with SegmentLog(folder, LogSettings(segment_bytes=1 << 16)) as log:
        before = fill(log, 1000, batch=10)
    with SegmentLog(folder, LogSettings(segment_bytes=1 << 16)) as log:
        assert all(segment.seal is not None for segment in log.chain[:-1])
        assert len(log.chain) > 4
        assert list(log.reader().records(1)) == before


def test_direct_io_of_large_appends_between_small_ones_is_read_in_order(tmp_path: Path) -> None:
    """Those go past the page cache, through which everybody reads, and these do not."""
    folder = tmp_path / "log"
    settings = LogSettings(segment_bytes=8 << 20)
    expected: list[bytes] = []
    with SegmentLog(folder, settings) as log, SegmentView(folder) as view:
        for number, (count, size) in enumerate([(1, 10), (300, 10_000), (1, 5000), (260, 9001), (2, 0)] * 3):
            records = new(count, size=size, begin=1000 * number)
            log.append(records)
            expected += [record.payload for record in records]
            view.refresh()
            for reader in (log.reader(), view.reader()):
                assert [record.payload for record in reader.records(1)] == expected
        assert len(log.chain) > 2
    with SegmentLog(folder, settings) as log:
        assert [record.payload for record in log.reader().records(1)] == expected


def test_spare_segment_is_preallocated_after_a_small_append_but_not_after_large_appends(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with SegmentLog(folder, LogSettings(segment_bytes=4 << 20)) as log:
        for number in range(4):
            log.append(new(300, size=10_000, begin=1000 * number))
            log._segment_set._maintenance.wait_idle()
            assert names(folder) == [path.name for path in segments(folder)]
        log.append(new(1))
        log._segment_set._maintenance.wait_idle()
        [spare] = set(names(folder)) - {path.name for path in segments(folder)}
        assert (folder / spare).stat().st_size == 4 << 20
