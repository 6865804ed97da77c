"""The bytes of every kind of frame are held still; docs/wire.md shows the same ones."""

import re
from pathlib import Path

import pytest

from tests.support.frame_examples import EXAMPLES, Example, spelled
from tests.support.golden_files import golden
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind, FrameReader

WRITTEN = dict(re.split(r" {2,}", line) for line in golden("wire/frames.txt").decode().splitlines())
PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_frame_bytes_equal_the_golden_bytes(example: Example) -> None:
    assert spelled(example.bytes()) == WRITTEN[example.name]


def test_frame_welcome_of_a_version_before_pairs_is_understood() -> None:
    body = b"\x94\xaeyirangmq 0.1.0\xa5north\xa4full\xce\x01\x00\x00\x00"
    assert messages.read(FrameKind.WELCOME, body) == messages.Welcome(
        "yirangmq 0.1.0", "north", "full", 16 * 1024 * 1024, "", 0
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_frame_golden_bytes_are_read_back(example: Example) -> None:
    data = bytes.fromhex(WRITTEN[example.name].replace("|", ""))
    [frame] = FrameReader().feed(data)
    assert frame.kind == example.kind
    assert frame.request == example.request
    assert messages.read(frame.kind, frame.body) == example.body


def test_frame_kinds_all_have_a_golden_example_and_there_are_no_others() -> None:
    assert {example.kind for example in EXAMPLES} == set(FrameKind)
    assert WRITTEN.keys() == {example.name for example in EXAMPLES}


@pytest.mark.parametrize("kind", FrameKind)
def test_frame_kind_is_documented_with_each_of_its_members(kind: FrameKind) -> None:
    [row] = re.findall(rf"^\| {kind.value} \| `{kind.name}` \|.*$", PAGE, re.MULTILINE)
    members = list(messages.BODIES[kind].__struct_fields__)
    assert [name for name in re.findall(r"`(\w+)`", row.split("|")[4]) if name in members] == members


@pytest.mark.parametrize("body", [messages.OutgoingMessageBody, messages.DeliveredMessageBody, messages.RecordBody])
def test_frame_body_members_of_messages_and_records_are_documented(body: type[messages.OutgoingMessageBody]) -> None:
    rows = re.findall(rf"^\| `{body.__name__}` \| (.*) \|$", PAGE, re.MULTILINE)
    assert [re.findall(r"`(\w+)`", row) for row in rows] == [list(body.__struct_fields__)]


@pytest.mark.parametrize("session", ["A session", "A topic session"])
def test_frame_examples_in_the_documented_session_are_golden_frames(session: str) -> None:
    text = PAGE.partition(f"# {session}\n")[2].partition("\n## ")[0]
    shown = re.findall(r"^[→←] ([0-9a-f]{8} .*?)$", text, re.MULTILINE)
    assert len(shown) >= 6
    assert set(shown) <= set(WRITTEN.values())
