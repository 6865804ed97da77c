"""``consume --handler`` and ``consume --exec``: a consumer process from the command line, run here until empty."""

import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.support.cli import Cli, Published
from yirangmq.cli.commands import consume
from yirangmq.consumer import subprocess_handler

HANDLERS = """
import pathlib
from yirangmq import Reject, Retry

def note(delivery):
    with pathlib.Path("seen").open("a") as file:
        file.write(f"{delivery.queue} {delivery.attempt} {delivery.value()}\\n")

def reject(delivery):
    raise Reject("no such account")

def retry(delivery):
    return Retry(after=3600, reason="not now")

def fail(delivery):
    raise ValueError("no route to host")

class Box:
    note = staticmethod(note)

async def later(delivery):
    pass

number = 5
"""


@pytest.fixture(autouse=True)
def _handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of the folder one is in, gone again afterwards."""
    (tmp_path / "shop.py").write_text(HANDLERS)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in ("shop", "broken"):
        sys.modules.pop(name, None)


def failure(at: Cli, id: str) -> tuple[str, str, str]:
    document = at(f"show -q mail {id} --json").json
    return document["state"], document["failure"]["reasonCode"], document["failure"]["reasonMessage"]


@pytest.mark.parametrize("name", ["shop:note", "shop:Box.note"])
def test_cli_consume_handler_function_is_called_for_each_message(
    at: Cli, published: Published, tmp_path: Path, name: str
) -> None:
    published("mail", "1", '"two"')
    shown = at(f"consume -q mail --handler {name} --until-empty --json --concurrency 1")
    assert shown.json == {"ok": True, "done": 2, "retried": 0, "rejected": 0, "failed": 0, "lost": 0, "released": 0}
    assert (tmp_path / "seen").read_text() == "mail 1 1\nmail 1 two\n"
    assert at("status -q mail --json").json["queues"][0]["done"] == 2


@pytest.mark.parametrize(
    ("name", "told", "fate"),
    [
        ("reject", "0 done, 1 rejected", ("dead", "REJECTED", "no such account")),
        ("retry", "0 done, 1 retried", ("delayed", "HANDLER_ERROR", "not now")),
        ("fail", "0 done, 1 failed", ("delayed", "HANDLER_ERROR", "ValueError: no route to host")),
    ],
)
def test_cli_consume_handler_outcome_decides_between_reject_retry_and_failure(
    at: Cli, published: Published, name: str, told: str, fate: tuple[str, str, str]
) -> None:
    [id] = published("mail", "1")
    assert at(f"consume -q mail --handler shop:{name} --until-empty").out == told + "\n"
    assert failure(at, id) == fate


def test_cli_consume_handler_logs_failures_to_stderr_with_message_and_trace_id(at: Cli) -> None:
    at("publish -q mail --trace-id t-9 --id m-1", "1")
    shown = at("consume -q mail --handler shop:fail --until-empty --json")
    assert '"messageId":"m-1"' in shown.err
    assert '"traceId":"t-9"' in shown.err
    assert "no route to host" in shown.err


def test_cli_consume_handler_ends_at_the_max_number_of_messages(at: Cli, published: Published) -> None:
    published("mail", "1", "2", "3")
    assert at("consume -q mail --handler shop:note --max 2").out == "2 done\n"


def test_json_schema_of_cli_consume_is_checked_before_the_handler(
    at: Cli, published: Published, tmp_path: Path
) -> None:
    (tmp_path / "schema.json").write_text('{"type": "string"}')
    bad, _ = published("mail", "1", '"two"')
    assert at("consume -q mail --handler shop:note --schema schema.json --until-empty").out == "1 done, 1 failed\n"
    assert failure(at, bad)[:2] == ("dead", "VALIDATION_ERROR")


@pytest.mark.process
def test_cli_consume_exec_program_reads_the_message_and_its_exit_code_decides_the_outcome(
    at: Cli, published: Published, tmp_path: Path
) -> None:
    [id] = published("mail", '{"to": "ann"}')
    assert at("consume -q mail --until-empty --exec", "tee copy").out.endswith("1 done\n")
    assert (tmp_path / "copy").read_text().endswith('"payload":{"to": "ann"}}\n')
    [id] = published("mail", '"x"')
    shown = at("consume -q mail --until-empty --shell --exec", "cat >/dev/null; echo no >&2; exit 65")
    assert shown.out == "0 done, 1 rejected\n"
    assert "no\n" in shown.err
    assert failure(at, id) == ("dead", "REJECTED", "no")


@pytest.mark.process
def test_cli_consume_exec_with_raw_passes_the_bare_payload(at: Cli, published: Published, tmp_path: Path) -> None:
    published("mail", '{"to":   "ann"}')
    at("consume -q mail --until-empty --raw --exec", "tee copy")
    assert (tmp_path / "copy").read_text() == '{"to":   "ann"}'


@pytest.mark.process
def test_cli_consume_exec_program_is_ended_at_its_timeout(at: Cli, published: Published) -> None:
    [id] = published("mail", "1")
    at("consume -q mail --until-empty --timeout 0.2 --kill-after 0.1 --exec", "sleep 60")
    assert failure(at, id) == ("delayed", "TIMEOUT", "the program was ended after 0.2 s")


@pytest.mark.process
def test_cli_consume_exec_exit_code_75_retries_after_the_given_retry_after(at: Cli, published: Published) -> None:
    [id] = published("mail", "1")
    at("consume -q mail --until-empty --retry-after 3600 --shell --exec", "exit 75")
    shown = at(f"show -q mail {id} --json").json
    waits = datetime.fromisoformat(shown["dueAt"]) - datetime.fromisoformat(shown["failure"]["failedAt"])
    assert (shown["state"], waits) == ("delayed", timedelta(hours=1))


def test_poison_message_of_cli_consume_goes_to_the_dead_letters(at: Cli, published: Published) -> None:
    [id] = published("mail", "1")
    at("consume -q mail --handler shop:fail --until-empty --poison-after 1")
    assert failure(at, id)[:2] == ("dead", "POISON")


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("--handler shop", "--handler"),
        ("--handler shop:", "--handler"),
        ("--handler nowhere:note", "--handler"),
        ("--handler broken:note", "--handler"),
        ("--handler shop:nothing", "--handler"),
        ("--handler shop:number", "--handler"),
        ("--handler shop:later", "handler"),
        ("--handler shop:note --exec cat", "--handler"),
        ("--exec 'no-such-program -v'", "--exec"),
        ('--exec "it\'s"', "--exec"),
        ("--exec ''", "--exec"),
        ("--exec cat --timeout 0", "timeout"),
        ("--exec cat --retry-after -1", "retryAfter"),
        ("--exec cat --kill-after -1", "killAfter"),
        ("--handler shop:note --concurrency 0", "concurrency"),
        ("--handler shop:note --timeout 0", "timeout"),
        ("--handler shop:note --prefetch -1", "prefetch"),
        ("--handler shop:note --drain-seconds -1", "drainSeconds"),
        ("--handler shop:note --poison-after -1", "poisonAfter"),
        ("--handler shop:note --lease-seconds 0", "leaseSeconds"),
        ("--handler shop:note --max 0", "limit"),
        ("--handler shop:note --schema list.json", "--schema"),
        ("--handler shop:note --schema nowhere.json", "--schema"),
        ("--handler shop:note --raw", "--raw"),
        ("--handler shop:note --shell", "--shell"),
        ("--handler shop:note --retry-after 5", "--retry-after"),
        ("--handler shop:note --no-ack", "--no-ack"),
        ("--handler shop:note --batch 5", "--batch"),
        ("--exec cat --wait 5", "--wait"),
        ("--exec cat --fail-empty", "--fail-empty"),
        ("--concurrency 5", "--concurrency"),
        ("--until-empty", "--until-empty"),
        ("--prefetch 0", "--prefetch"),
        ("--kill-after 5", "--kill-after"),
    ],
)
def test_cli_consume_handler_bad_options_are_refused_by_name_and_no_message_is_leased(
    cli: Cli, tmp_path: Path, line: str, field: str
) -> None:
    (tmp_path / "list.json").write_text("[]")
    cli("publish -q mail", "1")
    shown = cli(f"consume -q mail {line} --json")
    assert (shown.code, shown.complaint["field"]) == (2, field)
    assert cli("status -q mail --json").json["queues"][0]["ready"] == 1


def test_cli_consume_exec_defaults_and_exit_codes_in_the_help_are_those_in_force() -> None:
    assert consume.GRACE_SECONDS == subprocess_handler.GRACE_SECONDS
    assert (subprocess_handler.EXIT_DONE, subprocess_handler.EXIT_REJECT, subprocess_handler.EXIT_RETRY) == (0, 65, 75)


def test_traceback_of_a_handler_is_shown_by_show_and_dlq_show_and_not_in_lists(at: Cli, published: Published) -> None:
    (id,) = published("mail", "1")
    at("policy set -q mail", '{"retry": {"limit": 0}}')
    at("consume -q mail --handler shop:fail --until-empty")
    record = at(f"dlq show -q mail {id} --json").json["failure"]
    assert record["reasonMessage"] == "ValueError: no route to host"
    assert 'shop.py", line 16, in fail' in record["traceback"]
    assert 'shop.py", line 16, in fail' in at(f"show -q mail {id}").out
    assert at(f"show -q mail {id} --json").json["failure"]["traceback"] == record["traceback"]
    assert at("dlq list -q mail --json").json["reasonMessage"] == "ValueError: no route to host"
    assert "shop.py" not in at("dlq list -q mail").out
