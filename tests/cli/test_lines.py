"""Batches of lines, from a pipe that stays open and from bytes."""

import io
import os
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from yirangmq.cli import lines
from yirangmq.cli.lines import BYTES_PER_BATCH, MAX_PER_BATCH, InputLine, line_batches
from yirangmq.core.errors import TooLarge

MOST = 100


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Its reading and its writing end."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "wb", buffering=0) as writer:
        yield reader, writer


def texts(batch: list[InputLine]) -> list[bytes]:
    return [line.text for line in batch]


def test_line_batch_of_a_pipe_that_stays_open_has_the_lines_so_far(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    reader, writer = pipe
    batches = line_batches(reader, MOST)
    writer.write(b"one\ntwo\nthr")
    assert texts(next(batches)) == [b"one", b"two"]
    writer.write(b"ee\n\nfive\n")
    assert next(batches) == [InputLine(3, b"three"), InputLine(5, b"five")]
    writer.write(b"six")
    writer.close()
    assert next(batches) == [InputLine(6, b"six")]
    assert list(batches) == []


def test_line_batch_is_full_at_its_number_of_lines_and_at_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    many = io.BytesIO(b"x\n" * (2 * MAX_PER_BATCH + 1))
    assert [len(batch) for batch in line_batches(many, MOST)] == [MAX_PER_BATCH, MAX_PER_BATCH, 1]
    large = b"y" * (BYTES_PER_BATCH // 2)
    assert [len(batch) for batch in line_batches(io.BytesIO((large + b"\n") * 5), len(large))] == [2, 2, 1]


def test_line_batch_waits_for_more_input_only_until_its_time_is_over(
    pipe: tuple[BinaryIO, BinaryIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any time a read is a batch, also where more is there already."""
    monkeypatch.setattr(lines, "LINGER_SECONDS", -1)
    monkeypatch.setattr(lines, "BYTES_PER_READ", 2)
    reader, writer = pipe
    writer.write(b"1\n2\n3\n")
    writer.close()
    assert [texts(batch) for batch in line_batches(reader, MOST)] == [[b"1"], [b"2"], [b"3"]]


def test_line_batch_joins_the_lines_that_come_within_its_time(
    pipe: tuple[BinaryIO, BinaryIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LINGER_SECONDS", 600)
    monkeypatch.setattr(lines, "BYTES_PER_READ", 2)
    reader, writer = pipe
    writer.write(b"1\n2\n3\n")
    writer.close()
    assert [texts(batch) for batch in line_batches(reader, MOST)] == [[b"1", b"2", b"3"]]


@pytest.mark.parametrize("data", [b"ab\n" + b"x" * (MOST + 1) + b"\n", b"ab\n" + b"x" * (MOST + 1)])
def test_line_too_long_is_refused_with_the_line_before_it(data: bytes) -> None:
    with pytest.raises(TooLarge, match=r"in\.txt: a line after line [01] is longer than 100 bytes") as caught:
        list(line_batches(io.BytesIO(data), MOST, "in.txt"))
    assert caught.value.field == "file"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_the_same_whatever_the_size_of_a_read(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(lines, "BYTES_PER_READ", size)
    data = b"one\r\n\n  \ntwo\n" + b"z" * MOST + b"\nlast"
    found = [line for batch in line_batches(io.BytesIO(data), MOST) for line in batch]
    assert found == [InputLine(1, b"one"), InputLine(4, b"two"), InputLine(5, b"z" * MOST), InputLine(6, b"last")]


def test_lines_of_empty_input_are_none() -> None:
    assert list(line_batches(io.BytesIO(b""), MOST)) == []
