"""Commands in a real terminal: tables that fit, colours, the live views with their keys, and the state afterwards."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import yirangmq
from tests.support.cli import Cli
from tests.support.server import RunningServer
from tests.support.terminal import Terminal
from yirangmq.client.connect import connect
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import ManualClock

pytestmark = pytest.mark.process
COLUMNS = ["queue", "ready", "leased", "delayed", "dead", "oldest", "in/s", "out/s", "consumers"]
HANGUL = "한글로 된 긴 메시지 본문은 한 글자가 두 칸을 차지합니다 그래서 표의 너비 계산이 달라집니다"
LONG = f"orders.{'x' * 120}"


@pytest.fixture
def server(tmp_path: Path, clock: ManualClock) -> Iterator[RunningServer]:
    server = RunningServer(MemoryStore(), tmp_path, clock).start()
    yield server
    server.stop()


def shown(line: str, *, columns: int = 80, env: Mapping[str, str] | None = None) -> Terminal:
    """A command that has run to its end."""
    with Terminal(*line.split(), columns=columns, env=env) as terminal:
        assert terminal.wait() == 0, terminal.output
        return terminal


def fill(queue: str, *payloads: object) -> None:
    with yirangmq.open("sqlite:yirang-data/queue.db", durability="os") as queues:
        queues.publish_many(queue, payloads)


@pytest.fixture
def store(tmp_path: Path) -> None:
    (tmp_path / "yirang-data").mkdir()
    fill("mail", 1, 2, HANGUL)
    fill("telemetry", *range(12))


# -- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 120])
def test_status_at_80_columns_has_the_nine_columns_of_a_server(
    server: RunningServer, clock: ManualClock, columns: int
) -> None:
    with connect(server.unix) as client:
        client.publish_many("mail", [1] * 1200)
        client.publish_many("telemetry-of-7", [1] * 20)
        clock.advance(10_000)
        screen = shown(f"status --store {server.unix}", columns=columns)
    rows = screen.screen()
    title = next(row for row in rows if row.startswith("queue"))
    assert title.split()[:9] == COLUMNS
    mail = next(row for row in rows if row.startswith("mail"))
    assert mail.split()[:9] == ["mail", "1200", "0", "0", "0", "10s", "120", "0.0", "0"]
    for name, value in (("ready", "1200"), ("oldest", "10s")):  # figures end where their titles end
        assert title.index(name) + len(name) == mail.index(value) + len(value)
    assert all(len(row) <= columns for row in rows if not row.startswith(("memory", "unix")))


def test_status_with_a_long_name_shows_the_whole_name_on_a_line_of_its_own(store: None) -> None:
    fill(LONG, 1)
    rows = shown("status").screen()
    at = rows.index(LONG)
    assert rows[at + 1].split()[:4] == ["1", "0", "0", "0"]
    title = next(row for row in rows if row.startswith("queue"))
    assert {"ready", "leased", "delayed", "dead", "oldest", "consumers"} <= {*title.split()}
    mail = next(row for row in rows if row.startswith("mail"))
    assert rows[at + 1].index("1") == mail.index("3")


def test_table_columns_without_content_are_left_out_on_a_terminal_only(cli: Cli, store: None) -> None:
    title = next(row for row in shown("status", columns=200).screen() if row.startswith("queue"))
    assert title.split() == ["queue", "ready", "leased", "delayed", "dead", "oldest", "consumers", "published"]
    assert {"in/s", "parked", "redriven"} <= {*cli("status").out.splitlines()[1].split()}


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_peek_never_cuts_ids_and_fits_wide_characters(cli: Cli, store: None, columns: int) -> None:
    ids = [row["messageId"] for row in cli("peek mail --json").lines]
    terminal = shown("peek mail", columns=columns)
    rows = terminal.screen()
    assert [row.split()[0] for row in rows[1:4]] == ids
    assert terminal.widest() <= columns
    assert "…" in rows[3]
    assert rows[3].split("  ")[-1].startswith('"한글로')


def test_times_are_relative_on_a_terminal_and_instants_elsewhere(cli: Cli, store: None) -> None:
    cli("publish later 1 --delay 7260")
    row = shown("peek later --state delayed", columns=120).screen()[1]
    assert " ago" in row or "now" in row
    assert "in 2h 0m" in row or "in 2h 1m" in row
    assert cli("peek later --state delayed").out.count("Z") == 2


def test_colours_are_shown_on_a_terminal_unless_no_color_is_set(cli: Cli, store: None) -> None:
    assert "\x1b[1mqueue" in shown("status").output
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b[" not in shown("status", env=env).output
    assert "\x1b[" in shown("status", env={"NO_COLOR": ""}).output
    assert "\x1b[" not in cli("status").out
    with Terminal("status", "--db", "/nowhere/x.db", "--direct", "--state") as terminal:
        assert terminal.wait() == 2
        assert "\x1b[31myirangmq: bad_input" in terminal.output


def test_tables_of_an_empty_store_are_a_note(tmp_path: Path) -> None:
    for line in ("status", "queues", "peek mail", "dlq list mail", "top --once"):
        assert "there is no store at" in shown(line).output
    assert list(tmp_path.iterdir()) == []


# -- top --------------------------------------------------------------------------------------------------------------


def names(screen: list[str]) -> list[str]:
    """The names in the table of a view."""
    at = next(number for number, row in enumerate(screen) if row.startswith("queue"))
    return [row.split()[0] for row in screen[at + 1 : -1] if row]


def test_top_sorts_filters_and_quits_by_keys(store: None) -> None:
    fill("alerts", 1)
    with Terminal("top", "--interval", "60") as terminal:
        screen = terminal.wait_for_screen("q quit")
        assert names(screen) == ["alerts", "mail", "telemetry"]
        assert screen[1].startswith("3 queues  ready 16  leased 0")
        terminal.press(">")
        assert names(terminal.wait_for_screen("ready↓")) == ["telemetry", "mail", "alerts"]
        terminal.press("r")
        assert names(terminal.wait_for_screen("ready↑")) == ["alerts", "mail", "telemetry"]
        terminal.press("\x1b[D")
        assert names(terminal.wait_for_screen("queue↑")) == ["alerts", "mail", "telemetry"]
        terminal.press("/el")
        assert names(terminal.wait_for_screen("filter: el_")) == ["telemetry"]
        terminal.press("\x7f\x7fMAI\r")
        assert names(terminal.wait_for_screen("filter MAI")) == ["mail"]
        terminal.press("\x1b")
        assert names(terminal.wait_for_screen("telemetry")) == ["alerts", "mail", "telemetry"]
        terminal.press("/한글\r")
        terminal.wait_for_screen("no queue matches the filter")
        terminal.press("?")
        assert "reverse the order" in "\n".join(terminal.wait_for_screen("keys of yirangmq top"))
        terminal.press("x ")
        terminal.wait_for_screen("PAUSED")
        assert not terminal.is_in_line_mode()
        terminal.press("q")
        assert terminal.wait() == 0
        assert terminal.is_in_line_mode()
        assert terminal.output.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")


def test_top_scrolls_through_a_thousand_queues_and_follows_the_size_of_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "yirang-data").mkdir()
    with yirangmq.open("sqlite:yirang-data/queue.db", durability="os") as queues:
        for number in range(1000):
            queues.publish(f"queue-{number:04}", 1)
    with Terminal("top", "--interval", "60", lines=12) as terminal:
        screen = terminal.wait_for_screen("q quit")
        assert (len(screen), names(screen)) == (12, [f"queue-{number:04}" for number in range(7)])
        terminal.press("\x1b[6~")
        assert names(terminal.wait_for_screen("queue-0007")) == [f"queue-{number:04}" for number in range(7, 14)]
        terminal.press("\x1b[F")
        assert names(terminal.wait_for_screen("queue-0999"))[-1] == "queue-0999"
        terminal.press("\x1b[H\x1b[B")
        assert names(terminal.wait_for_screen("queue-0007", gone="queue-0999"))[0] == "queue-0001"
        terminal.resize(60, 20)
        screen = terminal.wait_for_screen("queue-0015")
        assert (len(screen), len(names(screen))) == (20, 15)
        assert terminal.widest() <= 60
        terminal.press("q")
        assert terminal.wait() == 0


def test_top_shows_changes_after_each_interval(store: None) -> None:
    with Terminal("top", "mail", "--interval", "0.1") as terminal:
        terminal.wait_for_screen("ready 3")
        fill("mail", 4)
        terminal.wait_for_screen("ready 4")
        terminal.press("q")
        assert terminal.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_top_restores_the_terminal_after_a_signal(store: None, number: signal.Signals) -> None:
    with Terminal("top", "--interval", "60") as terminal:
        terminal.wait_for_screen("q quit")
        terminal.process.send_signal(number)
        assert terminal.wait() == (0 if number is signal.SIGINT else 143)
        assert terminal.is_in_line_mode()
        assert terminal.output.endswith("\x1b[?1049l")


def test_top_is_suspended_and_continued_with_the_terminal_restored_meanwhile(store: None) -> None:
    with Terminal("top", "--interval", "60") as terminal:
        terminal.wait_for_screen("q quit")
        terminal.process.send_signal(signal.SIGTSTP)
        assert os.WIFSTOPPED(os.waitpid(terminal.process.pid, os.WUNTRACED)[1])
        terminal.wait_for("\x1b[?1049l")
        assert terminal.is_in_line_mode()
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for("\x1b[?1049h", 2)
        terminal.wait_for_screen("q quit")
        terminal.press("q")
        assert terminal.wait() == 0


# -- watch ------------------------------------------------------------------------------------------------------------


def test_watch_filters_pauses_and_quits_by_keys(server: RunningServer) -> None:
    with connect(server.unix) as client, Terminal("watch", "--store", server.unix) as terminal:
        terminal.wait_for_screen("q quit")
        while "mail  published 1" not in terminal.output:  # from its first request on
            client.publish("mail", 1)
            terminal._read(0.05)
        terminal.press("/post\r")
        terminal.wait_for_screen("filter post")
        before = terminal.output.count("mail  published")
        client.publish("mail", 1)
        client.publish("post", 1)
        terminal.wait_for("post  published")
        assert terminal.output.count("mail  published") == before
        terminal.press(" ")
        terminal.wait_for_screen("PAUSED")
        client.publish("post", [2])
        terminal.wait_for_screen("PAUSED, 1 event")
        printed = terminal.output.count("post  published")
        terminal.press(" ")
        terminal.wait_for("post  published", printed + 1)
        terminal.press("q")
        assert terminal.wait() == 0
        assert terminal.is_in_line_mode()
        assert "\x1b[?1049h" not in terminal.output  # the events stay on the screen


def test_live_views_into_a_pipe_are_plain_lines(store: None) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "yirangmq", "top"], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    assert "\x1b" not in printed.stdout
    assert [line.split()[0] for line in printed.stdout.splitlines()[1:]] == ["queue", "mail", "telemetry"]
