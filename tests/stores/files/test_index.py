"""The parts of the index by themselves: shards of records, and the calendar."""

import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from yirangmq.stores.files.index import Index
from yirangmq.stores.files.secondary_indexes import FINGERPRINT_BYTES, HashIndex, fingerprint, shard_of
from yirangmq.stores.files.timer_index import TimeBucket, TimerEntry, TimerIndex, bucket_of


def record(text: str, number: int) -> bytes:
    return fingerprint(text) + number.to_bytes(8, "little")


def test_index_finds_added_records_until_they_are_removed(tmp_path: Path) -> None:
    shards = HashIndex(str(tmp_path), FINGERPRINT_BYTES + 8)
    made = [record(f"id-{n}", n) for n in range(1_000)]
    shards.add(made)
    shards.add([record("id-7", 7_000)])
    assert shards.find([fingerprint("id-7"), fingerprint("nobody")]) == {
        fingerprint("id-7"): [made[7], record("id-7", 7_000)]
    }
    shards.remove([made[7], made[8], record("nobody", 1)])
    assert shards.find([fingerprint(f"id-{n}") for n in (7, 8, 9)]) == {
        fingerprint("id-7"): [record("id-7", 7_000)],
        fingerprint("id-9"): [made[9]],
    }


def test_index_matches_a_fingerprint_only_at_the_start_of_a_record(tmp_path: Path) -> None:
    shards = HashIndex(str(tmp_path), FINGERPRINT_BYTES + 8)
    sought = fingerprint("sought")
    other = bytes([sought[0]]) + b"1234567" + sought
    shards.add([other])
    assert shards.find([sought]) == {}
    shards.add([sought + bytes(8)])
    assert shards.find([sought]) == {sought: [sought + bytes(8)]}


@contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """The system cuts writes off at this length, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_index_truncates_a_partially_written_record(tmp_path: Path) -> None:
    shards = HashIndex(str(tmp_path), FINGERPRINT_BYTES + 8)
    first = record("first", 1)
    shards.add([first])
    alike = [bytes([first[0]]) + os.urandom(15) for _ in range(3)]
    with no_file_over(40), pytest.raises(OSError, match="too large"):
        shards.add(alike)
    shards.add(alike[2:])
    assert shards.find([first[:FINGERPRINT_BYTES], alike[0][:FINGERPRINT_BYTES], alike[2][:FINGERPRINT_BYTES]]) == {
        first[:FINGERPRINT_BYTES]: [first],
        alike[2][:FINGERPRINT_BYTES]: [alike[2]],
    }


def test_index_partial_record_that_cannot_be_truncated_leaves_the_others_aligned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = HashIndex(str(tmp_path), FINGERPRINT_BYTES + 8)
    first = record("first", 1)
    torn, behind = (bytes([first[0]]) + os.urandom(15) for _ in range(2))

    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    shards.add([first])
    with monkeypatch.context() as patched, no_file_over(24):
        patched.setattr(os, "ftruncate", refuse)
        with pytest.raises(OSError, match="too large"):
            shards.add([torn])
    assert shards.find([first[:FINGERPRINT_BYTES], torn[:FINGERPRINT_BYTES]]) == {first[:FINGERPRINT_BYTES]: [first]}
    shards.add([behind])
    assert shards.find([first[:FINGERPRINT_BYTES], torn[:FINGERPRINT_BYTES], behind[:FINGERPRINT_BYTES]]) == {
        first[:FINGERPRINT_BYTES]: [first],
        behind[:FINGERPRINT_BYTES]: [behind],
    }


def test_index_state_written_in_part_leaves_the_index_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index(str(tmp_path))
    index.finish(0, 0)
    index.begin()
    whole = os.pwrite

    def half(fd: int, data: bytes, at: int) -> int:
        whole(fd, data[: len(data) // 2], at)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", half)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            index.end()
    assert not index.load()
    index.end()
    assert index.load()
    index.close()


def test_index_replace_all_keeps_only_the_new_records(tmp_path: Path) -> None:
    shards = HashIndex(str(tmp_path), FINGERPRINT_BYTES + 8)
    shards.add([record(f"id-{n}", n) for n in range(100)])
    new = record("new", 1)
    shards.replace_all({shard_of(new): bytearray(new)})
    assert shards.find([fingerprint("new"), fingerprint("id-3")]) == {fingerprint("new"): [new]}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("ahead", "seconds"), [(-5, 1), (0, 1), (119_999, 1), (120_000, 60), (10_799_999, 60), (10_800_000, 3600)]
)
def test_timer_index_bucket_is_longer_for_times_further_ahead(ahead: int, seconds: int) -> None:
    now = 1_768_296_061_234
    stretch = bucket_of(now + ahead, now)
    assert stretch.seconds == seconds
    assert stretch.includes(now + ahead)
    assert stretch.begin % seconds == 0


def test_timer_index_lists_each_folder_once(tmp_path: Path) -> None:
    calendar = TimerIndex(str(tmp_path))
    calendar.add_entries(
        [TimerEntry(1_000, "a"), TimerEntry(1_999, "a"), TimerEntry(1_500, "b"), TimerEntry(2_000, "c")], 0
    )
    calendar.add_entries([TimerEntry(1_000, "b"), TimerEntry(1_001, "d")], 0)
    assert calendar.buckets() == [TimeBucket(1, 1), TimeBucket(2, 1)]
    assert calendar.folders(TimeBucket(1, 1)) == ["a", "b", "d"]
    calendar.remove_bucket(TimeBucket(1, 1))
    calendar.remove_bucket(TimeBucket(1, 1))
    assert calendar.folders(TimeBucket(1, 1)) == []
    calendar.clear()
    assert calendar.buckets() == []


def test_timer_index_line_cut_off_by_a_full_disk_does_not_hide_the_next(tmp_path: Path) -> None:
    calendar = TimerIndex(str(tmp_path))
    calendar.add_entries([TimerEntry(1_000, "a")], 0)
    with no_file_over(6), pytest.raises(OSError, match="space"):
        calendar.add_entries([TimerEntry(1_000, "a-long-name")], 0)
    calendar.add_entries([TimerEntry(1_000, "b")], 0)
    assert {"a", "b"} <= set(calendar.folders(TimeBucket(1, 1)))
