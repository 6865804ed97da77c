"""What goes wrong: one line, one code, never a traceback."""

import errno
import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.cli import Cli
from yirangmq.cli import output
from yirangmq.cli.connection import RETRIES, retries_for
from yirangmq.cli.output import EXIT_CODES, EXIT_MEANINGS, exit_code
from yirangmq.core.errors import QueueError, every_error


def test_cli_exit_code_exists_for_every_error_and_has_a_meaning() -> None:
    assert set(EXIT_CODES) == {kind.code for kind in every_error()}
    assert set(EXIT_CODES.values()) <= set(EXIT_MEANINGS)
    assert exit_code("something_new") == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("publsh", "there is no command 'publsh'; did you mean 'publish'?"),
        ("frobnicate", "known: publish, consume"),
        ("publish", "the queue is missing; give QUEUE, or --queue QUEUE; see 'yirangmq publish --help'"),
        ("publish '{}'", "'{}' is not the name of a queue; give QUEUE first, or --queue QUEUE"),
        ("publish -q mail news {}", "QUEUE is 'news' and --queue is 'mail'; give one of them"),
        ("publish -q mail 1 --prioity 3", "unrecognized arguments: --prioity 3; did you mean '--priority'?"),
        ("consume -q mail --most 3", "unrecognized arguments: --most; see 'yirangmq consume --help'"),
        ("dlq list -q mail --loud", "see 'yirangmq dlq list --help'"),
        ("publish -q mail 1 --priority high", "argument --priority: must be a whole number, not 'high'"),
        ("publish -q mail 1 --delay soon", "argument --delay: must be a number, not 'soon'"),
        ("publish -q mail hello", "payload: malformed JSON: invalid character"),
        ("publish -q mail hello", "what is not JSON goes with --raw"),
        ("consume -q mail --foll", "unrecognized arguments: --foll"),
        ("dlq lst -q mail", "did you mean 'list'?"),
        ("status --durability maybe", "known: full, os"),
        ("nack 1-1 --reason TIMEOT", "did you mean 'TIMEOUT'?"),
        ("--store tcp://127.0.0.1:1 status", "--store stands before the command; options follow it, as in 'yirangmq "),
        ("--db=x.db peek mail", "--db stands before the command; options follow it, as in 'yirangmq peek --db …'"),
        ("ack -q mail 1-1", "unrecognized arguments: -q; this command takes no queue; see 'yirangmq ack --help'"),
        ("purge mail", "filter: nothing is selected; give --filter TEXT or --all"),
        ("purge mail --all --filter x=1", "all: --all is given together with another selection; give only one of"),
        ("dlq purge mail --filter ''", "filter: nothing is selected; give --filter TEXT, --id ID or --all"),
        ("dlq redrive mail --id a --all", "all: --all is given together with another selection; give only one of"),
        ("drop mail", "ids: nothing is selected; give the ID of each message, or --whole-queue for the queue"),
        ("drop mail a --whole-queue", "ids: are given together with --whole-queue; give only one of them"),
    ],
)
def test_cli_wrong_command_option_or_value_is_explained_in_one_line_with_exit_code_2(
    cli: Cli, line: str, says: str
) -> None:
    people, program = cli(line), cli(f"{line} --json")
    assert (people.code, program.code) == (2, 2)
    assert people.err.startswith("yirangmq: bad_input: ")
    assert says in people.err
    assert people.err.count("\n") == 1
    assert set(program.complaint) == {"ok", "code", "error", "field"}
    assert says in program.complaint["error"]
    assert people.out == program.out == ""


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ("--store nonsense", "--store"),
        ("--store sqlite:", "--store"),
        ("--store ftp:x", "--store"),
        ("--store sqlite:x --db y", "--store"),
        ("--store sqlite:x --backend fs", "--store"),
        ("--db x --path y", "--db"),
        ("--backend fs --db x", "--db"),
        ("--backend sqlite --path x", "--path"),
    ],
)
def test_cli_store_options_that_are_invalid_or_contradict_each_other_are_refused_by_name(
    cli: Cli, options: str, field: str
) -> None:
    complaint = cli(f"status --json {options}").complaint
    assert (complaint["code"], complaint["field"]) == ("bad_input", field)


def test_cli_store_is_chosen_by_option_then_environment_then_default(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def store(options: str = "") -> str:
        return str(cli(f"status --json {options}").json["store"])

    assert store() == "sqlite:yirang-data/queue.db"
    assert store("--backend fs") == store("--path yirang-queues") == "files:yirang-queues"
    assert store("--db a.db") == store("--backend sqlite --db a.db") == store("--store sqlite:a.db") == "sqlite:a.db"
    monkeypatch.setenv("YIRANGMQ_DB", "env.db")
    monkeypatch.setenv("YIRANGMQ_PATH", "env-folder")
    assert (store(), store("--backend fs")) == ("sqlite:env.db", "files:env-folder")
    assert store("--db a.db") == "sqlite:a.db"
    monkeypatch.setenv("YIRANGMQ_STORE", "files:here")
    assert (store(), store("--backend sqlite"), store("--store memory:")) == ("files:here", "sqlite:env.db", "memory:")
    monkeypatch.setenv("YIRANGMQ_STORE", "here")
    assert cli("status --json").complaint["field"] == "YIRANGMQ_STORE"


def test_cli_store_folder_that_cannot_be_created_is_a_store_error(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("--db file/x/y.db", "--path file/x/y"):
        result = cli(f"publish -q mail 1 --json {place}")
        assert (result.code, result.complaint["code"]) == (5, "store_error")


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "store_full"), (errno.EROFS, "store_read_only"), (errno.EIO, "store_error")]
)
def test_cli_store_folder_refused_by_the_disk_has_an_error_code_by_errno(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    def refuse(path: object, *args: object, **more: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    assert cli("publish -q mail 1 --json --db new/x.db").complaint["code"] == code


def test_cli_internal_error_is_one_line_and_a_traceback_only_if_the_environment_asks(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> int:
        raise ZeroDivisionError("for the test")

    monkeypatch.setattr("yirangmq.cli.connection.store_location", broken)
    result = cli("status")
    assert (result.code, result.err) == (1, "yirangmq: internal_error: ZeroDivisionError: for the test\n")
    monkeypatch.setenv("YIRANGMQ_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli("status")


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (SystemExit(output.TERMINATED), 143), (QueueError("x"), 1)],
)
def test_cli_exit_code_of_ctrl_c_and_sigterm_is_130_and_143_without_output(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def stopped(*args: object) -> int:
        raise error

    monkeypatch.setattr("yirangmq.cli.connection.store_location", stopped)
    result = cli("status")
    assert (result.code, result.out) == (code, "")
    assert (result.err == "") == (code != 1)


def test_cli_version_is_printed_as_text_and_json(cli: Cli) -> None:
    assert cli("--version").out == "yirangmq 0.2.0\n"
    assert cli("--version --json").json == {"ok": True, "version": "0.2.0"}


def test_cli_without_a_command_prints_the_help(cli: Cli) -> None:
    assert cli("").out == cli("--help").out
    assert "examples:" in cli("").out


class Terminal:
    """A stderr that is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError(errno.ENOTTY, "has no size")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of the work is drawn."""
    monkeypatch.setattr("yirangmq.cli.progress.QUIET_SECONDS", 0)
    monkeypatch.setattr("yirangmq.cli.progress.STEP_SECONDS", 0)


def drawn(cli: Cli, monkeypatch: pytest.MonkeyPatch, line: str, stdin: bytes = b"") -> str:
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        assert cli(line, stdin=stdin).code == 0
    return terminal.text


@pytest.mark.usefixtures("impatient")
def test_progress_bar_of_publish_export_and_import_is_drawn_on_a_terminal(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.jsonl").write_text("1\n" * 3000)
    publishing = drawn(cli, monkeypatch, "publish -q mail --lines --file m.jsonl")
    assert "publishing [#######.............]  33%  1,000 lines" in publishing
    assert publishing.endswith("\r\x1b[K")
    assert "exporting [#" in drawn(cli, monkeypatch, "export x.jsonl")
    assert "importing [#" in drawn(cli, monkeypatch, "import x.jsonl --db y.db")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("line", ["publish -q mail --lines --file m.jsonl", "export x.jsonl"])
def test_progress_bar_is_not_drawn_with_json_output(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    (tmp_path / "m.jsonl").write_text("1\n" * 10)
    cli("publish -q mail 1")
    assert drawn(cli, monkeypatch, f"{line} --json") == ""


@pytest.mark.usefixtures("impatient")
def test_progress_of_a_stream_without_known_length_is_a_count_of_lines(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn_text = drawn(cli, monkeypatch, "publish -q mail --lines --file -", b"1\n" * 10)
    assert re.search(r"publishing [|/\\-] 10 lines  \d+s", drawn_text)


def test_cli_retries_few_times_for_one_address_and_by_the_client_default_for_several(cli: Cli) -> None:
    people = cli("status --store unix:nowhere.sock")
    assert people.code == EXIT_CODES["unreachable"]
    assert f"tried {RETRIES + 1} times" in people.err
    assert "is a server running there? 'yirangmq serve' starts one" in people.err
    assert retries_for("unix:nowhere.sock") == RETRIES
    assert retries_for("tcp://a:7411,b:7411") is None
