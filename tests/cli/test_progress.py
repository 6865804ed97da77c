"""Progress of long work: every command that may take long shows a bar, with rate and remaining time."""

import io
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import yirangmq
from tests.support.cli import Cli, Published
from tests.support.server import RunningServer
from tests.support.terminal import Terminal as Pty
from yirangmq.cli import progress
from yirangmq.cli.progress import ProgressBar
from yirangmq.format.envelope import NewMessage
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import ManualClock

BAR = r"\[#*\.*\] +\d+%  "


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of the work is drawn, with its rate."""
    for name in ("QUIET_SECONDS", "STEP_SECONDS", "RATE_AFTER"):
        monkeypatch.setattr(progress, name, 0)


@pytest.fixture
def server(tmp_path: Path, clock: ManualClock) -> Iterator[RunningServer]:
    server = RunningServer(MemoryStore(), tmp_path, clock).start()
    yield server
    server.stop()


def drawn(cli: Cli, monkeypatch: pytest.MonkeyPatch, line: str) -> str:
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        result = cli(line)
        assert result.code == 0, (line, result, terminal.getvalue())
    rest = terminal.getvalue().rpartition("\r\x1b[K")[2]
    assert not rest or rest.startswith("yirangmq: note"), line  # the bar is wiped at the end
    return terminal.getvalue().replace("\x1b[K", "")


@pytest.mark.parametrize(
    ("line", "shows"),
    [
        ("publish mail --lines --file lines.jsonl", rf"publishing {BAR}3,000 lines  [\d,.]+/s  0s left"),
        ("export out.jsonl", rf"exporting {BAR}[\d,]+ of 602 messages  [\d,.]+/s  0s left"),
        ("import in.jsonl --db other.db", rf"importing {BAR}602 messages  [\d,.]+/s  0s left"),
        ("purge mail --all", rf"purging {BAR}500 of 600 messages  [\d,.]+/s  0s left"),
        ("dlq redrive jobs --all", rf"redriving {BAR}2 of 2 messages"),
        ("dlq requeue jobs --id a", rf"redriving {BAR}1 of 1 messages"),
        ("dlq quarantine jobs --all", rf"parking {BAR}2 of 2 messages"),
        ("dlq purge jobs --all", rf"purging {BAR}2 of 2 messages"),
        ("dlq stats", r"counting [|/\\-] 0s"),
        ("drop mail --whole-queue", r"dropping [|/\\-] 0s"),
        ("check", r"checking [|/\\-] pages and indexes"),
        ("check", r"checking [|/\\-] consistency, step 9 of 9"),
        ("repair", r"repairing [|/\\-] consistency, step 9 of 9"),
        ("check --path folder", rf"checking {BAR}602 of 602"),
        ("repair --path folder", rf"repairing {BAR}602 of 602"),
        ("topic publish news --lines --file lines.jsonl", rf"publishing {BAR}3,000 records  [\d,.]+/s  0s left"),
        ("topic replay news --to queue:copies", rf"replaying {BAR}5 records  [\d,.]+/s  0s left"),
        ("topic trim --before-seq 2", r"trimming [|/\\-] 0s"),
        ("log check yirang-data/topics", rf"checking {BAR}0 of [\d,]+ MB|checking {BAR}"),
        ("log repair yirang-data/topics", r"repairing [|/\\-] 0s"),
    ],
)
def test_progress_of_long_commands_is_shown(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, shows: str
) -> None:
    (tmp_path / "yirang-data").mkdir()
    with yirangmq.open("sqlite:yirang-data/queue.db", durability="os") as queues:
        queues.set_policy("jobs", {"retry": {"limit": 0}})
        queues.publish_many("mail", [1] * 600)
        queues.publish("jobs", NewMessage(payload=1, id="a"))
        queues.publish("jobs", NewMessage(payload=2, id="b"))
        for delivery in queues.lease("jobs", 2):
            queues.nack(delivery.lease_id, "REJECTED")
    (tmp_path / "lines.jsonl").write_text("1\n" * 3000)
    (tmp_path / "news.txt").write_text("1\n" * 5)
    assert cli("export in.jsonl").code == 0
    if "--path" in line:
        assert cli("import in.jsonl --path folder").code == 0
    if line.startswith(("topic", "log")):
        assert cli("topic publish news --lines --file news.txt").code == 0
    assert re.search(shows, drawn(cli, monkeypatch, line))


def test_progress_of_a_sweep_counts_its_changes(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        cli(f"publish mail {number} --ttl 0.001")
    assert re.search(r"sweeping [|/\\-] 3 changes", drawn(cli, monkeypatch, "sweep"))


@pytest.mark.parametrize(
    ("line", "shows"),
    [
        ("purge mail --all", rf"purging {BAR}0 of 20 messages"),
        ("dlq redrive jobs --all", rf"redriving {BAR}0 of 1 messages"),
        ("dlq purge jobs-dlq --all --limit 1", rf"purging {BAR}0 of 1 messages"),
    ],
)
def test_progress_of_a_move_in_a_server_has_the_total_of_its_queues(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, server: RunningServer, line: str, shows: str
) -> None:
    at = f"--store {server.unix}"
    cli(f"policy set jobs {at}", '{"retry": {"limit": 0}}')
    for number in range(20):
        cli(f"publish mail {number} {at}")
    cli(f"publish jobs 1 {at}")
    lease = cli(f"consume jobs --no-ack --json {at}").json["lease"]["leaseId"]
    cli(f"nack {lease} --reason REJECTED {at}")
    assert re.search(shows, drawn(cli, monkeypatch, f"{line} {at}"))


def test_progress_of_a_call_without_steps_follows_what_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, left = Terminal(), iter(range(90, -1, -10))
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressBar("redriving", shown=True, unit="messages") as show:
        show.update("", 0, 100)
        with progress.polled(show, lambda: 100 - next(left), 0.001):
            while "100 of 100" not in terminal.getvalue():
                show.text(80)
    assert re.search(rf"redriving {BAR}50 of 100 messages  [\d,.]+/s  \d+s left", terminal.getvalue())


@pytest.mark.parametrize("columns", [30, 40, 80, 200])
def test_progress_bar_fits_the_terminal(columns: int) -> None:
    bar = ProgressBar("importing", 1_000_000, shown=False, unit="messages")
    bar(500_000, 123_456)
    text = bar.text(columns)
    assert len(text) < columns
    assert text.startswith("importing [")
    if columns >= 80:
        assert re.search(rf"{BAR}123,456 messages  [\d,]+/s  0s left", text)


@pytest.mark.process
def test_progress_of_waiting_is_shown_in_a_terminal_while_it_lasts(at: Cli, published: Published) -> None:
    published("mail", "1")
    backend = str(at("status --json").json["backend"])
    url = "sqlite:yirang-data/queue.db" if backend == "sqlite" else "files:yirang-queues"
    with yirangmq.open(url) as queues:
        queues.consumer_beat({"consumerId": "box-1", "queues": ["mail"]})
    with Pty("consumer", "drain", "box-1", "--wait", "60", "--store", url) as terminal:
        terminal.wait_for("waiting for 1 consumer")
        terminal.wait_for("1s")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait() == 130
        assert terminal.output.endswith("\r\x1b[K")
