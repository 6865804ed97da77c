"""``yirangmq health``: of a server that is expected and is not there it says ``down``; of a store without one it says
whether the store can be written."""

import os
import socket
from pathlib import Path

import pytest

from tests.support.cli import Cli
from yirangmq.cli import output
from yirangmq.stores.lock import Holder, StoreLock

PLACES = {"sqlite": "sqlite:queue.db", "files": "files:queues"}


def served(url: str, *, address: str = "") -> StoreLock:
    """As a server does it, which holds the store from here on."""
    return StoreLock(url, Holder(os.getpid(), address, "here", "2026-01-13T09:21:00Z"))


@pytest.mark.parametrize("url", PLACES.values(), ids=PLACES)
def test_health_of_a_store_never_held_by_a_server_is_that_of_the_store(cli: Cli, url: str) -> None:
    cli(f"publish -q mail 1 --store {url}")
    assert cli(f"health --store {url}").out == "ok\n"
    found = cli(f"health --store {url} --json")
    assert (found.code, found.json) == (0, {"ok": True, "server": None, "status": "ok", "reasons": []})


@pytest.mark.parametrize("url", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_health_down_where_a_server_has_served_the_store(cli: Cli, url: str, end: str) -> None:
    cli(f"publish -q mail 1 --store {url}")
    lock = served(url, address="unix:gone.sock")
    text = Path(f"{url.partition(':')[2]}.lock").read_bytes()
    lock.close()
    if end == "killed":
        Path(f"{url.partition(':')[2]}.lock").write_bytes(text)
    found = cli(f"health --store {url} --json")
    assert found.code == output.exit_code("unreachable") == 10
    [reason] = found.json.pop("reasons")
    assert found.json["status"] == "down"
    assert found.json["ok"] is False
    assert (reason["level"], reason["code"]) == ("down", "unreachable")
    assert "--direct" in reason["text"]
    assert cli(f"health --store {url}").out.startswith("down\ndown: unreachable: no server holds ")
    assert cli(f"health --store {url} --direct").out == "ok\n", "the store itself"


def test_health_down_in_the_folder_where_a_server_was_started(cli: Cli) -> None:
    cli("publish -q mail 1 --store sqlite:yirang-data/queue.db")
    served("sqlite:yirang-data/queue.db").close()
    assert cli("health").code == 10


def test_health_down_of_an_address_that_does_not_answer(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for address in (f"tcp://127.0.0.1:{port}", "unix:gone.sock"):
        found = cli(f"health --store {address} --server-timeout 0.2 --json")
        assert (found.code, found.json["status"]) == (10, "down")


def test_health_down_of_a_data_folder_without_a_server(cli: Cli) -> None:
    found = cli("health --data d --server-timeout 0.2 --json")
    assert (found.code, found.json["status"]) == (10, "down")
    assert cli("health --data d --store sqlite:queue.db").code == 2


def test_health_of_a_store_that_is_not_there_is_not_found(cli: Cli) -> None:
    assert cli("health --store sqlite:nothing.db").code == 3
