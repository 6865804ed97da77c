"""The files of a log are held still: what was written before opens, and what is written now is the same."""

import re
import shutil
from pathlib import Path

import pytest

from tests.stores.log.log_golden import EPOCH, GOLDEN, make
from tests.support.clock import START_NS
from tests.support.pages import code_blocks
from tests.support.record_examples import frame_of
from tests.support.segment_log import SECOND, open_log, segments
from yirangmq.core.topics import NO_HEADERS, Record
from yirangmq.stores.log import segment_format as layout
from yirangmq.stores.log.readonly import SegmentView
from yirangmq.wire import records

PAGE = (Path(__file__).parents[3] / "docs" / "log.md").read_text()
RECORDS = [
    Record(1, 1, START_NS, "trades", None, NO_HEADERS, b"hello"),
    Record(2, 1, START_NS, "quotes", "KRX", {"type": "tick"}, b'{"p":1}'),
    Record(3, 2, START_NS + SECOND, "trades", None, NO_HEADERS, b"x" * 600),
    Record(4, 1, START_NS + 2 * SECOND, "misc", None, NO_HEADERS, b""),
    Record(5, 3, START_NS + 2 * SECOND, "trades", None, NO_HEADERS, b"\x00\xff" * 100),
]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in segments(folder)}


def test_golden_log_is_written_byte_for_byte_as_before(tmp_path: Path) -> None:
    make(tmp_path / "log")
    assert contents(tmp_path / "log") == contents(GOLDEN)
    assert len(contents(GOLDEN)) == 2


def test_golden_log_written_before_is_read() -> None:
    view = SegmentView(GOLDEN)
    assert view.epoch == EPOCH.hex()
    assert list(view.reader().records(1)) == RECORDS


def test_golden_log_written_before_opens_for_writing_with_its_records_and_topics(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "log")
    with open_log(tmp_path / "log") as log:
        assert list(log.reader().records(1)) == RECORDS
        assert {name: state[:3] for name, state in log.topics().items()} == {
            "trades": (3, 5, START_NS + 2 * SECOND),
            "quotes": (1, 2, START_NS),
            "misc": (1, 4, START_NS + 2 * SECOND),
        }


def offsets(heading: str) -> list[int]:
    """The first column of the table under a heading."""
    part = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return [int(number) for number in re.findall(r"^\| (\d+) \|", part, re.MULTILINE)]


def test_log_page_lists_the_offset_of_every_field_of_record_head_and_seal() -> None:
    assert offsets("A record") == [0, 4, 5, 6, 8, 12, 16, 24, 32, 40, 42, 44, 46, records.HEAD]
    assert offsets("The head of a segment") == [0, 8, 10, 12, 16, 32, 48, 56, 64, 72]
    assert offsets("The seal") == [0, 8, 10, 12, 16, 24, 32, 40, 48, 56]
    for number in (layout.HEAD_SIZE, layout.SEAL_SIZE, records.KIND, layout.STATE, layout.INDEX):
        assert re.search(rf"\b{number}\b", PAGE)


@pytest.mark.parametrize("name", ["plain", "all members"])
def test_log_page_example_bytes_are_a_record(name: str) -> None:
    shown = [
        bytes.fromhex("".join(re.findall(r"^([0-9a-f ]+?)(?:  |$)", block, re.MULTILINE)))
        for block in re.findall(r"```\n([0-9a-f]{8}  .*?)```", PAGE, re.DOTALL)
    ]
    assert frame_of(name) in shown


def test_log_page_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [program] = code_blocks(PAGE, "python")
    exec(compile(program, "log.md", "exec"), {})
    out = capsys.readouterr().out
    assert out.startswith("records 1 to 2 are on disk, epoch ")
    assert "\n1 1 b'hello'\n" in out
    assert out.endswith("1 2 [] ['trades', 'quotes']\n")
