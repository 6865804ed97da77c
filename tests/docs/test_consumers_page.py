"""docs/consumers.md and the examples: their programs run and do what the page says of them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import yirangmq
from tests.support.pages import code_blocks
from yirangmq.cli.commands import consume
from yirangmq.consumer.delivery import HandlerDelivery
from yirangmq.consumer.subprocess_handler import MEANING, TAIL
from yirangmq.core.states import State

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "consumers.md").read_text()
PROGRAMS = code_blocks(PAGE, "python")
SCRIPTS = dict(re.findall(r"<!-- test: (\w+) -->\n```sh\n(.*?)```", PAGE, re.DOTALL))


def run(*words: str, folder: Path, stdin: str = "") -> str:
    """What it prints; a program that fails is a failure."""
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    done = subprocess.run(words, cwd=folder, env={"PATH": path}, capture_output=True, text=True, input=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_consumers_page_programs_run(number: int, tmp_path: Path) -> None:
    run(sys.executable, "-c", PROGRAMS[number], folder=tmp_path)


def test_consumers_page_first_program_prints_the_mail_it_handled(tmp_path: Path) -> None:
    assert run(sys.executable, "-c", PROGRAMS[0], folder=tmp_path) == "mail to ann@example.org\n"


def test_consumers_page_handler_runs_from_the_command_line_as_shown(tmp_path: Path) -> None:
    assert run("/bin/sh", "-e", "-c", SCRIPTS["handler"], folder=tmp_path).endswith("mail to ann@example.org\n1 done\n")


def test_consumers_page_exec_program_runs_from_the_command_line_as_shown(tmp_path: Path) -> None:
    assert run("/bin/sh", "-e", "-c", SCRIPTS["exec"], folder=tmp_path).endswith("\n1 done\n")


def test_consumers_page_group_holds_its_second_message_as_shown(tmp_path: Path) -> None:
    shown = run("/bin/sh", "-e", "-c", SCRIPTS["groups"], folder=tmp_path)
    assert re.findall(r'"order": (\d)', shown) == ["1", "3"]


def test_consumers_page_message_reaches_its_target_consumer_as_shown(tmp_path: Path) -> None:
    shown = run("/bin/sh", "-e", "-c", SCRIPTS["targets"], folder=tmp_path)
    assert shown.count('{"do": "restart"}') == 1


def test_consumers_page_numbers_are_those_in_force() -> None:
    assert [f"| {code} " in PAGE for code in MEANING] == [True] * len(MEANING)
    assert f"last {TAIL} bytes" in PAGE
    assert f"(`--drain-seconds`, default {consume.DRAIN_SECONDS:g})" in PAGE
    assert f"`--kill-after` seconds (default {consume.GRACE_SECONDS:g})" in PAGE


def test_consumers_page_explains_every_member_of_a_delivery() -> None:
    members = [name for name in dir(HandlerDelivery) if not name.startswith("_") and name != "envelope_json"]
    assert [name for name in members if f"`{name}`" not in PAGE and f"`{name}()`" not in PAGE] == []


# -- examples ---------------------------------------------------------------------------------------------------------


def test_worker_example_sends_retries_and_rejects(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'mail.db'}"
    people = ["ann@example.org", "bo@busy.example", "nobody", "x"]
    with yirangmq.open(url) as queues:
        ids = [queues.publish("mail", {"to": to, "text": "hello"}).id for to in people]
    out = run(sys.executable, str(ROOT / "examples" / "worker.py"), url, "--until-empty", folder=tmp_path)
    assert out == "sent to ann@example.org: hello\n1 done, 1 to be tried again, 1 rejected\n"
    with yirangmq.open(url) as queues:
        looks = [queues.show("mail", id) for id in ids]
    assert [look.message.state for look in looks] == [State.DONE, State.DELAYED, State.DEAD, State.DEAD]
    assert [look.message.reason for look in looks] == ["", "HANDLER_ERROR", "REJECTED", "VALIDATION_ERROR"]


def test_worker_example_runs_on_a_base_install(tmp_path: Path) -> None:
    """Without the package for JSON Schema, which is an extra."""
    url = f"sqlite:{tmp_path / 'mail.db'}"
    with yirangmq.open(url) as queues:
        queues.publish("mail", {"to": "ann@example.org", "text": "hello"})
    program = (
        "import runpy, sys; sys.modules['jsonschema_rs'] = None; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    worker = str(ROOT / "examples" / "worker.py")
    out = run(sys.executable, "-c", program, worker, url, "--until-empty", folder=tmp_path)
    assert out.endswith("\n1 done, 0 to be tried again, 0 rejected\n")


def test_legacy_script_example_files_valid_invoices_and_rejects_others(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "legacy.sh", tmp_path / "legacy.sh")
    (tmp_path / "yirang-data").mkdir()
    with yirangmq.open(f"sqlite:{tmp_path / 'yirang-data' / 'queue.db'}") as queues:
        good = queues.publish("invoices", {"number": 17}).id
        bad = queues.publish("invoices", {"name": "x"}).id
    command = "yirangmq consume --queue invoices --raw --exec ./legacy.sh --until-empty"
    assert run(*command.split(), folder=tmp_path) == "1 done, 1 rejected\n"
    assert (tmp_path / "invoices" / f"{good}.json").read_text() == '{"number":17}'
    assert len(list((tmp_path / "invoices").iterdir())) == 1
    with yirangmq.open(f"sqlite:{tmp_path / 'yirang-data' / 'queue.db'}") as queues:
        failure = queues.show("invoices", bad).failure
    assert failure is not None
    assert (failure.reason_code, failure.reason_message) == ("REJECTED", "an invoice without a number")
