"""``consumer list|status|pause|resume|drain``, beside a consumer that works on the same store."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import yirangmq
from tests.support.cli import Cli
from tests.support.consumer import Running
from tests.support.wait import until
from yirangmq.consumer.consumer import Consumer
from yirangmq.consumer.delivery import HandlerDelivery

URLS = {"sqlite": "sqlite:yirang-data/queue.db", "fs": "files:yirang-queues"}


@pytest.fixture(autouse=True)
def _data_folder(_at_home: None) -> None:
    """These tests open the default store themselves, which makes no folder."""
    Path("yirang-data").mkdir()


@contextmanager
def at_work(backend: str, *names: str, queue: str = "mail") -> Iterator[list[Running]]:
    """Consumers that have told of themselves."""
    with yirangmq.open(URLS[backend]) as queues:
        runs: list[Running] = []
        consumers = [Consumer(queues, name=name) for name in names]
        for consumer in consumers:
            consumer.handler(queue)(_work)
            runs.append(Running(consumer))
        try:
            until(lambda: {card["consumerId"] for card in queues.consumer_list()} >= set(names))
            yield runs
        finally:
            for run in runs:
                run.consumer.stop()
            for run in runs:
                run.ended()


def _work(delivery: HandlerDelivery) -> None:
    """Nothing to do."""


def states(at: Cli) -> dict[str, str]:
    return {card["consumerId"]: card["state"] for card in at("consumer list --json").json["consumers"]}


def test_cli_consumer_list_without_consumers_is_empty_and_says_so(at: Cli) -> None:
    shown = at("consumer list")
    assert (shown.out, "no consumer process reports here" in shown.err) == ("", True)
    assert at("consumer list --json").json == {"ok": True, "consumers": []}


def test_cli_consumer_list_shows_running_consumers_by_queue_and_none_after_they_end(at: Cli, backend: str) -> None:
    with at_work(backend, "worker-1", "worker-2"):
        at("publish -q mail", "1")
        assert states(at) == {"worker-1": "running", "worker-2": "running"}
        head, *lines = at("consumer list").out.splitlines()
        assert head.split()[:3] == ["consumer", "state", "queues"]
        assert [line.split()[1:3] for line in lines] == [["running", "mail"], ["running", "mail"]]
        assert len(at("consumer list -q mail --json").json["consumers"]) == 2
        assert at("consumer list -q news --json").json["consumers"] == []
    assert states(at) == {}


def test_cli_consumer_status_shows_all_fields_of_a_consumer(at: Cli, backend: str) -> None:
    with at_work(backend, "worker-1"):
        card = at("consumer status worker-1 --json").json
        assert (card["ok"], card["consumerId"], card["queues"], card["wish"]) == (True, "worker-1", ["mail"], None)
        assert card["startedAt"].endswith("+00:00")
        text = at("consumer status worker-1").out
        assert "state         running\n" in text
        assert "queues        mail\n" in text


def test_cli_consumer_pause_and_resume_change_the_state_of_the_consumers(at: Cli, backend: str) -> None:
    with at_work(backend, "worker-1", "worker-2"):
        shown = at("consumer pause --all --wait 30 --json")
        assert shown.json == {"ok": True, "wish": "pause", "consumers": ["worker-1", "worker-2"]}
        assert states(at) == {"worker-1": "paused", "worker-2": "paused"}
        assert at("consumer resume --all --wait 30").out == "asked 2 consumers to resume\n"
        assert set(states(at).values()) == {"running"}


@pytest.mark.parametrize(
    ("chosen", "hit"), [("a", ["a"]), ("a b", ["a", "b"]), ("-q news", ["b"]), ("--all", ["a", "b"])]
)
def test_cli_consumer_pause_asks_only_the_chosen_consumers(cli: Cli, chosen: str, hit: list[str]) -> None:
    with yirangmq.open(URLS["sqlite"]) as queues:
        queues.consumer_beat({"consumerId": "a", "queues": ["mail"]})
        queues.consumer_beat({"consumerId": "b", "queues": ["mail", "news"]})
        assert cli(f"consumer pause {chosen} --json").json["consumers"] == hit
        assert [card["consumerId"] for card in queues.consumer_list() if card["wish"] == "pause"] == hit


def test_cli_consumer_drain_ends_the_consumer(at: Cli, backend: str) -> None:
    with at_work(backend, "worker-1", "worker-2") as runs:
        at("consumer drain worker-2 --wait 30")
        assert states(at) == {"worker-1": "running"}
        runs[1].ended()


def test_cli_consumer_pause_names_the_consumer_that_does_not_follow_in_time(cli: Cli) -> None:
    with yirangmq.open(URLS["sqlite"]) as queues:
        queues.consumer_beat({"consumerId": "deaf"})
        shown = cli("consumer pause deaf --wait 0.05 --json")
        assert (shown.code, shown.complaint["code"]) == (10, "unavailable")
        assert "deaf" in shown.complaint["error"]
        [line] = [line for line in cli("consumer list").out.splitlines() if line.startswith("deaf")]
        assert "running (asked to pause)" in line


def test_cli_consumer_drain_without_consumers_says_so(at: Cli) -> None:
    at("publish -q mail", "1")
    assert at("consumer drain --all").out == "there is no consumer to ask\n"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("consumer status nobody", 3),
        ("consumer pause nobody", 3),
        ("consumer pause", 2),
        ("consumer pause a --all", 2),
        ("consumer pause -q mail --all", 2),
        ("consumer pause a/b", 2),
        ("consumer list -q a/b", 2),
        ("consumer pause --all --wait -1", 2),
        ("consumer dance a", 2),
    ],
)
def test_cli_consumer_refuses_unknown_consumers_and_contradicting_options(at: Cli, line: str, code: int) -> None:
    at("publish -q mail", "1")
    at(line, code=code)
