"""STOMP in any split of its bytes, in each version; what is not STOMP is refused as soon as that can be seen."""

import random
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden_files import golden
from tests.support.stomp_examples import EXAMPLES, HARD, Example
from yirangmq.core.errors import BadInput, QueueError, TooLarge
from yirangmq.wire.stomp import (
    MAX_HEAD,
    MAX_HEADERS,
    MAX_LINE,
    V10,
    V11,
    V12,
    VERSIONS,
    StompFrame,
    StompReader,
    encode,
)

WRITTEN = dict(line.split("  ", 1) for line in golden("wire/stomp.txt").decode().splitlines())
STREAM = b"\n\r\n".join(example.bytes() for example in EXAMPLES if example.version == V12) + b"\n\n"


def reader(version: str = V12, most_body: int = 1 << 20) -> StompReader:
    made = StompReader(most_body)
    made.version = version
    return made


def fed(made: StompReader, *pieces: bytes) -> list[StompFrame]:
    return [frame for piece in pieces for frame in made.feed(piece)]


FRAMES = fed(reader(), STREAM)


# -- golden ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_stomp_frame_bytes_equal_the_golden_bytes(example: Example) -> None:
    assert example.bytes().hex() == WRITTEN[example.name]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_stomp_frame_golden_bytes_are_read_back(example: Example) -> None:
    [frame] = fed(reader(example.version), bytes.fromhex(WRITTEN[example.name]))
    assert (frame.command, frame.body) == (example.command, example.body)
    if example.version != V10 and "return" not in example.headers:
        assert {name: frame.headers[name] for name in example.headers} == example.headers


def test_stomp_frame_golden_examples_are_complete() -> None:
    assert WRITTEN.keys() == {example.name for example in EXAMPLES}


# -- splits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(len(STREAM) + 1))
def test_stomp_stream_may_be_split_at_any_point(at: int) -> None:
    made = reader()
    assert fed(made, STREAM[:at], STREAM[at:]) == FRAMES
    assert made.held == 0


def test_stomp_stream_may_come_byte_by_byte() -> None:
    assert fed(reader(), *(STREAM[at : at + 1] for at in range(len(STREAM)))) == FRAMES


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_stomp_stream_may_be_split_in_any_way(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert fed(reader(), *(STREAM[begin:end] for begin, end in pairwise(edges))) == FRAMES


@pytest.mark.parametrize("at", range(0, len(STREAM), 7))
def test_stomp_reader_stopped_early_continues_later(at: int) -> None:
    made = reader()
    found: list[StompFrame] = []
    for piece in (STREAM[:at], STREAM[at:]):
        frames = made.feed(piece)
        found += islice(frames, 2)
        frames.close()
    while more := [*islice(made.feed(b""), 3)]:
        found += more
    assert found == FRAMES


def test_stomp_large_body_in_small_pieces_is_not_scanned_at_each_piece() -> None:
    """Otherwise this would take minutes: the work grows with the square of the size."""
    body = b"x" * (1 << 20)
    for data in (encode(V12, "SEND", {"destination": "/queue/a"}, body), b"SEND\n\n" + body + b"\0"):
        made = reader()
        found = fed(made, *(data[at : at + 16] for at in range(0, len(data), 16)))
        assert [frame.body for frame in found] == [body]


# -- bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_stomp_body_with_a_content_length_may_hold_any_bytes(version: str) -> None:
    body = bytes(range(256)) + b"\n\n\0\0"
    assert fed(reader(version), encode(version, "SEND", {}, body))[0].body == body


def test_stomp_body_without_a_content_length_ends_at_the_first_nul() -> None:
    frames = fed(reader(), b"SEND\na:b\n\nhello\0\n\nSEND\n\n\0")
    assert frames == [StompFrame("SEND", {"a": "b"}, b"hello"), StompFrame("SEND", {}, b"")]


def test_stomp_body_longer_than_its_content_length_is_refused() -> None:
    with pytest.raises(BadInput, match="content-length: the body is longer"):
        fed(reader(), b"SEND\ncontent-length:3\n\nhello\0")


@pytest.mark.parametrize("length", ["-1", "x", "1.0", "", "+5", "٣", "9" * 19])
def test_stomp_content_length_that_is_no_number_is_refused(length: str) -> None:
    with pytest.raises(BadInput, match="content-length"):
        fed(reader(), f"SEND\ncontent-length:{length}\n\n".encode())


def test_stomp_body_too_large_is_refused_by_its_head_or_as_it_grows() -> None:
    with pytest.raises(TooLarge, match="content-length: a body of 101 bytes, at most 100"):
        fed(reader(most_body=100), b"SEND\ncontent-length:101\n\n")
    with pytest.raises(TooLarge, match="more than 100 bytes"):
        fed(reader(most_body=100), b"SEND\n\n", b"x" * 101)
    assert fed(reader(most_body=100), b"SEND\n\n" + b"x" * 100 + b"\0")[0].body == b"x" * 100


# -- heads ----------------------------------------------------------------------------------------------------------


def test_stomp_header_given_twice_has_the_first_value() -> None:
    assert fed(reader(), b"SEND\na:1\na:2\n\n\0")[0].headers == {"a": "1"}


@pytest.mark.parametrize("version", VERSIONS)
def test_stomp_lines_may_end_with_a_carriage_return_too(version: str) -> None:
    frames = fed(reader(version), b"\r\nSEND\r\na:b\r\n\r\nx\n\ny\0\r\n")
    assert frames == [StompFrame("SEND", {"a": "b"}, b"x\n\ny")]


def test_stomp_header_escapes_are_read_in_1_1_and_1_2_and_kept_in_1_0() -> None:
    raw = b"SEND\na\\cb:x\\ny\\\\z\n\n\0"
    assert fed(reader(V10), raw)[0].headers == {"a\\cb": "x\\ny\\\\z"}
    assert fed(reader(V11), raw)[0].headers == fed(reader(V12), raw)[0].headers == {"a:b": "x\ny\\z"}


@pytest.mark.parametrize(("version", "text"), [(V11, "\\r"), (V11, "\\t"), (V12, "\\t"), (V12, "\\"), (V12, "a\\")])
def test_stomp_header_escape_without_a_meaning_is_refused(version: str, text: str) -> None:
    with pytest.raises(BadInput, match=f"is not an escape in STOMP {version}"):
        fed(reader(version), f"SEND\na:{text}\n\n\0".encode())


def test_stomp_carriage_return_is_escaped_in_1_2_only() -> None:
    [frame] = fed(reader(V12), encode(V12, "SEND", HARD))
    assert {name: frame.headers[name] for name in HARD} == HARD
    assert b"x\ry" in encode(V11, "SEND", HARD)


def test_stomp_header_spaces_are_kept_except_in_1_0() -> None:
    raw = b"SEND\na: b \n\n\0"
    assert fed(reader(V10), raw)[0].headers == {"a": "b"}
    assert fed(reader(V11), raw)[0].headers == fed(reader(V12), raw)[0].headers == {"a": " b "}


def test_stomp_1_0_headers_are_sent_without_line_ends_and_without_names_that_hold_a_colon() -> None:
    [frame] = fed(reader(V10), encode(V10, "MESSAGE", {"a": "x\nSEND\n\n", "b:c": "d"}))
    assert frame == StompFrame("MESSAGE", {"a": "x SEND"}, b"")


@pytest.mark.parametrize("head", [b"send", b"SEND ME", b"", b"\xff", b"S" * 21, b"SEND\nno-colon", b"SEND\n:x"])
def test_stomp_head_that_is_invalid_is_refused(head: bytes) -> None:
    with pytest.raises(BadInput):
        fed(reader(), b"x" * (not head) + head + b"\n\n\0")


def test_stomp_headers_that_are_not_utf_8_are_refused() -> None:
    with pytest.raises(BadInput, match="UTF-8"):
        fed(reader(), b"SEND\na:\xff\n\n\0")


def test_stomp_frame_that_ends_in_its_head_is_refused() -> None:
    with pytest.raises(BadInput, match="an empty line is missing"):
        fed(reader(), b"SEND\na:b\n\0")


def test_stomp_head_limits_of_number_line_length_and_total_size_are_enforced() -> None:
    most = b"".join(b"h%d:x\n" % n for n in range(MAX_HEADERS))
    assert len(fed(reader(), b"SEND\n" + most + b"\n\0")[0].headers) == MAX_HEADERS
    with pytest.raises(TooLarge, match="201 headers"):
        fed(reader(), b"SEND\n" + most + b"one:more\n\n\0")
    with pytest.raises(TooLarge, match="a header of more than"):
        fed(reader(), b"SEND\na:" + b"x" * MAX_LINE + b"\n\n\0")
    with pytest.raises(TooLarge, match="command and headers"):
        fed(reader(), b"SEND\n", *(b"x" * 1000 for _ in range(MAX_HEAD // 1000 + 1)))
    with pytest.raises(TooLarge, match="command and headers"):
        fed(reader(), b"SEND\n" + (b"a:" + b"x" * 10_000 + b"\n") * 7 + b"\n\0")


# -- anything at all ------------------------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)


@given(st.sampled_from((V11, V12)), st.dictionaries(names, texts, max_size=6), st.binary(max_size=80), st.data())
def test_stomp_frame_written_is_read_back_unchanged(
    version: str, headers: dict[str, str], body: bytes, data: st.DataObject
) -> None:
    if version == V11:  # it has no escape for a return, which would end the line
        headers = {name.replace("\r", ""): value.replace("\r", "") for name, value in headers.items()}
    headers = {name: value for name, value in headers.items() if name and name != "content-length"}
    raw = encode(version, "SEND", headers, body)
    at = data.draw(st.integers(0, len(raw)))
    [frame] = fed(reader(version), raw[:at], raw[at:])
    assert frame.body == body
    assert {name: value for name, value in frame.headers.items() if name != "content-length"} == headers


def refused_or_not(made: StompReader, pieces: list[bytes]) -> None:
    """Anything but an error of ours, naming a field, is a fault."""
    refusal: QueueError | None = None
    try:
        fed(made, *pieces)
    except QueueError as error:
        refusal = error
    assert refusal is None or refusal.field


@given(st.sampled_from(VERSIONS), st.lists(st.binary(max_size=40), max_size=10))
def test_stomp_reader_turns_any_bytes_into_frames_or_a_defined_error(version: str, pieces: list[bytes]) -> None:
    refused_or_not(reader(version, 100), pieces)


def test_stomp_reader_turns_frames_with_changed_bytes_into_frames_or_a_defined_error() -> None:
    chance = random.Random(7)
    for _ in range(3000):
        raw = bytearray(STREAM)
        for _ in range(chance.randint(1, 4)):
            raw[chance.randrange(len(raw))] = chance.choice(b"\0\n\r:\\ A7\xff")
        made = reader(chance.choice(VERSIONS))
        refused_or_not(made, [bytes(raw[at : at + 97]) for at in range(0, len(raw), 97)])
        assert made.held <= len(raw)
