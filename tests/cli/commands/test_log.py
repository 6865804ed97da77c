"""``log check``, ``log repair``, ``log dump``: the files of a log, for people and for programs."""

import sys
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.clock import NanosecondClock
from tests.support.segment_log import fill, new, open_log, segments
from yirangmq.cli.main import run
from yirangmq.core.topics import NewRecord
from yirangmq.wire.records import RecordReader


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_log(tmp_path / "log", now_ns=NanosecondClock()) as log:
        log.append([NewRecord("trades", b'{"price": 1}', "KRX", {"type": "tick"}), NewRecord("raw", b"\xff\x00")])
        fill(log, 38)
    return tmp_path / "log"


def damage(folder: Path, number: int = 0) -> Path:
    path = segments(folder)[number]
    content = bytearray(path.read_bytes())
    content[400] ^= 1
    path.write_bytes(content)
    return path


def test_cli_log_check_of_a_sound_log_reports_its_records_and_no_findings(cli: Cli, folder: Path) -> None:
    result = cli("log check log")
    assert result.code == 0
    assert result.out.startswith("40 records of 3 topics, 1 to 40, in ")
    assert result.out.endswith("in order: nothing is wrong\n")
    found = cli("log check log --json").json
    assert (found["ok"], found["first"], found["last"], found["records"], found["topics"]) == (True, 1, 40, 40, 3)
    assert (found["gaps"], found["findings"]) == ([], [])
    assert len(found["epoch"]) == 32


def test_cli_log_check_names_a_damaged_record_and_changes_no_file(cli: Cli, folder: Path) -> None:
    path = damage(folder)
    before = path.read_bytes()
    result = cli("log check log --json")
    assert result.code == 5
    [finding] = result.json["findings"]
    assert finding["kind"] == "damaged"
    assert finding["where"] == "log/00000000000000000001.log"
    assert finding["text"].startswith("the record 3 is damaged")
    assert cli("log repair log --dry-run").code == 5
    assert path.read_bytes() == before


def test_cli_log_repair_quarantines_the_damaged_file_and_reports_the_gap(cli: Cli, folder: Path) -> None:
    damage(folder)
    result = cli("log repair log --json")
    assert result.code == 5  # what is lost stays lost
    assert result.json["gaps"] == [{"first": 3, "last": 3}]
    assert result.json["records"] == 39
    assert [finding["kind"] for finding in result.json["findings"]] == ["gap", "set-aside"]
    assert len(result.json["done"]) == 1
    assert "done: log/00000000000000000001.log was damaged" not in cli("log repair log").out  # only once


def test_cli_log_repair_restores_a_damaged_index(cli: Cli, folder: Path) -> None:
    path = segments(folder)[0]
    content = bytearray(path.read_bytes())
    content[-90] ^= 1  # in its index
    path.write_bytes(content)
    assert cli("log check log --json").json["findings"][0]["kind"] == "index"
    assert cli("log repair log").code == 0
    assert cli("log check log").code == 0


@pytest.mark.parametrize("verb", ["check", "repair", "dump", "repair --dry-run"])
def test_cli_log_commands_in_a_folder_without_a_log_create_none(cli: Cli, tmp_path: Path, verb: str) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nowhere"):
        result = cli(f"log {verb} {name} --json")
        assert result.code == 3
        assert result.complaint["field"] == "folder"
    assert list((tmp_path / "empty").iterdir()) == []


def test_cli_log_repair_of_a_log_in_use_is_refused_as_busy(cli: Cli, folder: Path) -> None:
    with open_log(folder):
        assert cli("log check log").code == 0
        assert cli("log repair log --json").complaint["code"] == "store_busy"


def test_cli_log_dump_prints_readable_lines(cli: Cli, folder: Path) -> None:
    lines = cli("log dump log --limit 3").out.splitlines()
    assert lines[0] == '1 trades#1 2026-01-13 09:21:00Z key=KRX type=tick {"price": 1}'
    assert lines[1] == "2 raw#1 2026-01-13 09:21:00Z 2 bytes: ff 00"
    assert lines[2].startswith("3 trades#2 2026-01-13 09:21:00Z trades 0 ....")
    assert lines[2].endswith("…")


def test_cli_log_dump_json_is_one_object_per_record(cli: Cli, folder: Path) -> None:
    lines = cli("log dump log --json").lines
    assert [line["sequence"] for line in lines] == list(range(1, 41))
    assert lines[0] == {
        "sequence": 1,
        "topic": "trades",
        "topicSequence": 1,
        "at": "2026-01-13T09:21:00.000000000+00:00",
        "atNs": 1_768_296_060_000_000_000,
        "key": "KRX",
        "headers": {"type": "tick"},
        "payload": {"price": 1},
    }
    assert lines[1]["payloadBase64"] == "/wA="


def test_cli_log_dump_selects_by_sequence_topic_and_limit(cli: Cli, folder: Path) -> None:
    def dumped(words: str) -> list[int]:
        return [line["sequence"] for line in cli(f"log dump log --json {words}").lines]

    assert dumped("--from-seq 10 --to-seq 12") == [10, 11, 12]
    assert dumped("--topic raw") == [2]
    assert dumped("--topic 'tr*' --limit 2") == [1, 3]
    assert dumped("--from-seq 41") == []
    assert dumped("--limit 0") == []


@pytest.mark.parametrize(
    ("words", "field"),
    [("--from-seq 0", "fromSeq"), ("--from-seq 42", "start"), ("--limit -1", "limit"), ("--frames", "frames")],
)
def test_cli_log_dump_refuses_bad_options_by_name(cli: Cli, folder: Path, words: str, field: str) -> None:
    result = cli(f"log dump log --json {words}")
    assert result.code == 2
    assert result.complaint["field"] == field


def test_cli_log_dump_from_a_retired_sequence_names_it_and_the_first_kept_sequence(cli: Cli, folder: Path) -> None:
    with open_log(folder) as log:
        log.trim(30)
        first = log.first
    result = cli("log dump log --from-seq 2 --json")
    assert result.code == 3
    assert result.complaint["code"] == "retired"
    assert result.complaint["error"] == f"start: sequence 2 is no longer kept; the log begins at {first}"


def test_cli_log_dump_of_a_damaged_file_prints_its_sound_records(cli: Cli, folder: Path) -> None:
    path = damage(folder)
    last = int(segments(folder)[1].stem) - 1
    found = [line["sequence"] for line in cli(f"log dump {path} --json").lines]
    assert found == [1, 2, *range(4, last + 1)]
    assert [line["sequence"] for line in cli(f"log dump {path} --topic raw --json").lines] == [2]


def test_cli_log_dump_frames_writes_the_stored_bytes(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["log", "dump", "log", "--frames", "--topic", "trades", "--from-seq", "2"]) == 0
    sys.stdout.flush()
    out, _ = capfdbinary.readouterr()
    found = list(RecordReader().feed(out))
    assert [record.sequence for record in found] == list(range(3, 41, 2))


def test_cli_log_check_and_dump_work_while_a_writer_holds_the_log(cli: Cli, folder: Path) -> None:
    with open_log(folder) as log:
        log.append(new(5))
        assert cli("log check log --json").json["last"] == 45
        assert [line["sequence"] for line in cli("log dump log --from-seq 44 --json").lines] == [44, 45]
