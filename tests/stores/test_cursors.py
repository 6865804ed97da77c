"""Durable cursors: one contract for every place they may be kept in."""

import errno
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.faulty_disk import UnwillingDisk, full_once
from tests.support.segment_log import CarelessDisk
from yirangmq.core.errors import BadInput, QueueError, StoreDamaged, StoreError
from yirangmq.core.topics import MAX_SEQUENCE, Cursor, Cursors
from yirangmq.stores.cursors import MIN_REWRITE_BYTES, FileCursors, open_cursors

EPOCH = "0123456789abcdef" * 2
Open = Callable[[], Cursors]


def cursor(name: str = "billing", sequence: int = 42, filter: str = "trades.*") -> Cursor:
    return Cursor(name, EPOCH, sequence, filter, 1_768_296_060_123_456_789)


@pytest.fixture(params=["file", "sqlite"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return lambda: open_cursors(f"{request.param}:{tmp_path / 'cursors'}")


def test_cursor_is_kept_after_reopening(reopen: Open) -> None:
    place = reopen()
    assert place.all() == []
    assert place.get("billing") is None
    place.put([cursor(), cursor("audit", 7, '서울 \n "')])
    place.close()
    place = reopen()
    assert place.all() == [cursor("audit", 7, '서울 \n "'), cursor()]
    assert place.get("audit") == cursor("audit", 7, '서울 \n "')
    place.close()


def test_cursor_latest_put_wins_even_with_a_lower_sequence(reopen: Open) -> None:
    place = reopen()
    for sequence in (1, 50, 20):
        place.put([cursor(sequence=sequence)])
    place.close()
    place = reopen()
    assert place.get("billing") == cursor(sequence=20)
    place.close()


def test_cursor_floor_is_the_next_sequence_of_the_slowest_subscriber(reopen: Open) -> None:
    place = reopen()
    assert place.floor() is None
    place.put([cursor("a", 10), cursor("b", 5)])
    assert place.floor() == 6
    assert place.drop("b")
    assert place.floor() == 11
    assert not place.drop("b")
    assert place.drop("a")
    place.close()
    place = reopen()
    assert place.floor() is None
    place.close()


@pytest.mark.parametrize("sequence", [0, 2**32 - 1, 2**32, 2**63 - 1, 2**63, MAX_SEQUENCE])
def test_cursor_with_a_64_bit_sequence_is_kept(reopen: Open, sequence: int) -> None:
    place = reopen()
    place.put([cursor(sequence=sequence)])
    place.close()
    place = reopen()
    assert place.get("billing") == cursor(sequence=sequence)
    place.close()


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (cursor(name="no/slash"), "name"),
        (cursor()._replace(epoch="XYZ"), "epoch"),
        (cursor(sequence=-1), "sequence"),
        (cursor(sequence=MAX_SEQUENCE + 1), "sequence"),
        (cursor(sequence=True), "sequence"),
        (cursor(filter="\ud800"), "filter"),
        (cursor(filter="x" * 20_000), "filter"),
        (cursor()._replace(at_ns=-1), "atNs"),
    ],
    ids=["name", "epoch", "negative", "too-large", "bool", "half-a-character", "long", "time"],
)
def test_cursor_that_is_invalid_is_refused_by_field_and_nothing_of_the_batch_is_kept(
    reopen: Open, wrong: Cursor, field: str
) -> None:
    place = reopen()
    with pytest.raises(BadInput) as caught:
        place.put([cursor("good"), wrong])
    assert caught.value.field == field
    assert place.all() == []
    place.close()


@pytest.mark.parametrize("url", ["", "file:", "redis:here", "here"])
def test_cursor_store_url_that_is_invalid_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="is not a store of cursors"):
        open_cursors(url)


# -- the file ---------------------------------------------------------------------------------------------------------


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_cursor_file_is_readable_text(tmp_path: Path) -> None:
    place = FileCursors(tmp_path / "cursors")
    place.put([cursor()])
    place.drop("billing")
    place.close()
    assert (tmp_path / "cursors").read_text() == (
        f'e4deab25 {{"cursors":[{{"name":"billing","epoch":"{EPOCH}","sequence":42,"filter":"trades.*",'
        f'"atNs":1768296060123456789}}]}}\n73155bb3 {{"dropped":"billing"}}\n'
    )


def test_cursor_file_with_a_torn_tail_drops_the_unconfirmed_line(tmp_path: Path) -> None:
    path = tmp_path / "cursors"
    place = FileCursors(path)
    place.put([cursor(sequence=1)])
    place.put([cursor(sequence=2), cursor("audit")])
    place.close()
    whole = path.read_bytes()
    first = len(lines(path)[0])
    for at in range(first, len(whole)):
        path.write_bytes(whole[:at])
        place = FileCursors(path, disk=CarelessDisk())
        assert place.all() == [cursor(sequence=1)]
        place.put([cursor(sequence=3)])
        place.close()
        place = FileCursors(path, disk=CarelessDisk())
        assert place.all() == [cursor(sequence=3)]
        assert place.notes == []
        place.close()


@given(st.data())
def test_cursor_file_with_a_damaged_line_keeps_the_other_cursors_and_a_copy(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cursors") / "cursors"
    place = FileCursors(path, disk=CarelessDisk())
    for number in range(5):
        place.put([cursor(f"subscriber-{number}", number)])
    place.close()
    content = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    place = FileCursors(path, disk=CarelessDisk())
    found = place.all()
    assert set(found) <= {cursor(f"subscriber-{number}", number) for number in range(5)}
    assert len(found) >= 3  # a line break that is none joins two lines
    place.put([cursor("after")])
    place.close()
    is_last = not place.notes
    assert is_last or (path.parent / "cursors.damaged").read_bytes() == content
    again = FileCursors(path, disk=CarelessDisk())
    assert set(again.all()) == {*found, cursor("after")}
    assert again.notes == []
    again.close()


def test_cursor_file_much_longer_than_its_cursors_is_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "cursors"
    place = FileCursors(path, disk=CarelessDisk())
    for sequence in range(2000):
        place.put([cursor(sequence=sequence)])
        assert path.stat().st_size < MIN_REWRITE_BYTES + 1000
    assert place.all() == [cursor(sequence=1999)]
    place.close()
    assert FileCursors(path, disk=CarelessDisk()).all() == [cursor(sequence=1999)]
    assert [other.name for other in tmp_path.iterdir()] == ["cursors"]


def test_cursor_file_loses_no_confirmed_cursor_when_any_disk_call_fails(tmp_path: Path) -> None:
    class Touchy(UnwillingDisk, CarelessDisk):
        pass

    filter = "x" * 8000  # so that the file is made anew now and then

    def story(path: Path, disk: Touchy) -> tuple[int, int]:
        confirmed = tried = 0
        try:
            place = FileCursors(path, disk=disk)
        except QueueError:
            return 0, 0
        for sequence in range(1, 40):
            try:
                tried = sequence
                place.put([cursor(sequence=sequence, filter=filter)])
                confirmed = sequence
            except QueueError:
                break
        place.close()
        return confirmed, tried

    disk = Touchy()
    assert story(tmp_path / "whole", disk) == (39, 39)
    calls = len(disk.calls)
    assert "rename" in disk.calls
    for at in range(1, calls + 1):
        disk.start(full_once(at))
        path = tmp_path / f"{at}"
        confirmed, tried = story(path, disk)
        left = FileCursors(path, disk=CarelessDisk()).get("billing")
        assert (left.sequence if left else 0) in {confirmed, tried}


def test_cursor_file_is_rewritten_after_a_failed_sync_that_could_not_be_undone(tmp_path: Path) -> None:
    """The file is made anew from what was confirmed. It used to take no more until a restart."""
    disk = UnwillingDisk()
    place = FileCursors(tmp_path / "cursors", disk=disk)
    place.put([cursor()])
    disk.start(lambda number, name: errno.EIO if name in ("fdatasync", "fsync") else 0)
    for _ in range(2):
        with pytest.raises(StoreError, match="Input/output error"):
            place.put([cursor(sequence=43)])
    assert place.all() == [cursor()]
    disk.start(lambda number, name: 0)
    place.put([cursor(sequence=44)])
    place.close()
    assert FileCursors(tmp_path / "cursors").all() == [cursor(sequence=44)]


# -- SQLite -----------------------------------------------------------------------------------------------------------


def test_cursor_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    theirs = apsw.Connection(str(path))
    theirs.execute("CREATE TABLE theirs (a)")
    theirs.close()
    with pytest.raises(StoreDamaged, match="an SQLite database of another program"):
        open_cursors(f"sqlite:{path}")


def test_cursor_database_is_shared_by_two_connections(tmp_path: Path) -> None:
    one, other = (open_cursors(f"sqlite:{tmp_path / 'cursors.db'}") for _ in range(2))
    one.put([cursor("a", 1)])
    other.put([cursor("b", 2)])
    assert one.all() == other.all() == [cursor("a", 1), cursor("b", 2)]
    one.close()
    other.close()


def test_cursor_database_runs_with_synchronous_full(tmp_path: Path) -> None:
    place = open_cursors(f"sqlite:{tmp_path / 'cursors.db'}")
    assert place._storage._db.pragma("synchronous") == 2  # type: ignore[attr-defined]
    place.close()
