"""``yirangmq torture``: what it prints, what it returns, what it refuses."""

import argparse
import io
import json
import re
import sys
from pathlib import Path

import pytest

from yirangmq.cli.commands.torture import FaultServer, power_cut_arguments, run_power_cuts
from yirangmq.core.errors import BadInput
from yirangmq.crashtest import backends
from yirangmq.crashtest.backends import STORE, SqliteBackend
from yirangmq.crashtest.faults.runner import FaultPlan, inject
from yirangmq.stores.sqlite.store import SqliteStore


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    power_cut_arguments(parser)
    return parser.parse_args(words)


class OnlyTheSystem(SqliteBackend):
    def _open(self, top: Path, vfs: str | None) -> SqliteStore:
        return SqliteStore(top / STORE, vfs=vfs, durability="os")


def test_power_cut_torture_prints_its_power_cut_points_and_that_every_message_survived(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_power_cuts(parsed("--backend", "sqlite", "--steps", "2", "--states", "2")) == 0
    out = capsys.readouterr().out
    assert "points of power cut" in out
    assert out.endswith("result: every confirmed message survived every cut\n")


def test_power_cut_torture_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_power_cuts(parsed("--backend", "sqlite", "--steps", "2", "--states", "2", "--seed", "3", "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert report["seed"] == 3
    assert report["states"] > 0
    assert report["losses"] == []


def test_power_cut_torture_keeps_the_disk_of_a_loss_and_its_replay_finds_it_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(backends.BACKENDS, "sqlite", OnlyTheSystem)
    words = ("--backend", "sqlite", "--steps", "6", "--states", "2", "--keep-failures", str(tmp_path), "--json")
    assert run_power_cuts(parsed(*words)) == 1
    report = json.loads(capsys.readouterr().out)
    loss = report["losses"][0]
    assert Path(loss["kept"], "disk").is_dir()
    assert loss["replay"].startswith("yirangmq torture --backend sqlite --seed 1 --steps 6 --states 2 --point ")
    assert (
        run_power_cuts(parsed(*loss["replay"].split()[2:], "--keep-failures", str(tmp_path / "again"), "--json")) == 1
    )
    again = json.loads(capsys.readouterr().out)
    assert again["points"] == 1
    assert again["losses"][0]["complaints"] == loss["complaints"]


def test_power_cut_torture_prints_a_loss_with_its_folder_and_replay_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(backends.BACKENDS, "sqlite", OnlyTheSystem)
    words = ("--backend", "sqlite", "--steps", "6", "--states", "2", "--keep-failures", str(tmp_path))
    assert run_power_cuts(parsed(*words)) == 1
    out = capsys.readouterr().out
    assert "\nLOST at point " in out
    assert f"kept:   {tmp_path}" in out
    assert "replay: yirangmq torture " in out
    assert out.endswith("result: something was lost\n")


@pytest.mark.parametrize(("flag", "value"), [("steps", "0"), ("states", "0"), ("steps", "-3"), ("point", "-1")])
def test_power_cut_torture_refuses_bad_numbers_by_name(flag: str, value: str) -> None:
    with pytest.raises(BadInput) as caught:
        run_power_cuts(parsed("--backend", "sqlite", f"--{flag}", value))
    assert caught.value.field == flag


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, backend: str = "log") -> str:
    """What a run draws there."""
    monkeypatch.setattr("yirangmq.cli.progress.QUIET_SECONDS", 0)
    monkeypatch.setattr("yirangmq.cli.progress.STEP_SECONDS", 0)
    monkeypatch.setattr(sys, "stderr", stream)
    assert run_power_cuts(parsed("--backend", backend, "--steps", "2", "--states", "2")) == 0
    return stream.getvalue()


def test_progress_bar_is_drawn_on_a_terminal_and_wiped_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = progress(monkeypatch, Terminal(), "sqlite")
    assert re.search(r"\rtorture sqlite \[#+\.+\] +\d+%  power cuts  \d+ of \d+", drawn.replace("\x1b[K", ""))
    assert drawn.endswith("\r\x1b[K")


def test_progress_without_a_terminal_is_lines_the_first_of_them_before_any_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("yirangmq.cli.progress.LINE_SECONDS", 0)
    first, *_, last = progress(monkeypatch, io.StringIO()).splitlines()
    assert first == "torture log: 0/2 calls recorded"
    assert re.fullmatch(r"torture log: (\d+)/\1 power cuts", last)


def test_progress_with_json_is_drawn_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_power_cuts(parsed("--backend", "log", "--steps", "2", "--states", "2", "--json")) == 0
    assert capsys.readouterr().err == ""


def test_progress_is_shown_while_the_workload_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "calls recorded  0 of 2" in progress(monkeypatch, Terminal()).partition("power cuts")[0]


@pytest.mark.parametrize("steps", ["100000", "60"])
def test_torture_time_limit_ends_the_recording_and_the_power_cuts(
    capsys: pytest.CaptureFixture[str], steps: str
) -> None:
    assert run_power_cuts(parsed("--backend", "log", "--steps", steps, "--seconds", "0.5", "--json")) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["complete"], report["losses"]) == (False, False, [])
    assert (report["points"] > 0) == (steps == "60")
    assert run_power_cuts(parsed("--backend", "log", "--steps", steps, "--seconds", "0.5")) == 1
    assert capsys.readouterr().out.endswith("result: time was over before the last point; nothing was lost so far\n")


def test_torture_time_limit_that_is_not_reached_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run_power_cuts(parsed("--backend", "log", "--steps", "2", "--states", "2", "--seconds", "600", "--json")) == 0
    )
    assert json.loads(capsys.readouterr().out)["complete"] is True


def test_torture_time_limit_ends_the_counting_of_calls_too() -> None:
    phases: list[str] = []
    report = inject(
        FaultPlan(["sqlite"], seconds=0.000_001), FaultServer, lambda phase, done, total: phases.append(phase)
    )
    assert (report.cases, report.is_complete) == (0, False)
    assert len(phases) <= 1
