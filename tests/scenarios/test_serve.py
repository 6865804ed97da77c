"""``yirangmq serve`` as people run it: from nothing, found by commands, refused twice, stopped in good order."""

import json
import os
import signal
import socket
import stat
import threading
import urllib.request
from pathlib import Path

import pytest

import yirangmq
from tests.support.credentials import TOKEN, certificate
from tests.support.server_process import Daemon, daemon, run_command, until
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect
from yirangmq.core.errors import NotAllowed
from yirangmq.stores.lock import find_holder

pytestmark = pytest.mark.process


def test_serve_starts_from_nothing_and_delivers_the_first_message(tmp_path: Path) -> None:
    with daemon(tmp_path) as server:
        assert server.ready["durability"] == "full"
        assert server.ready["addresses"] == [server.address]
        with connect(server.address) as client:
            stored = client.publish("mail", {"to": "ann"})
            [delivery] = client.lease("mail", wait=PATIENCE)
            assert (delivery.id, delivery.value()) == (stored.id, {"to": "ann"})
            client.ack(delivery.lease_id)
        assert server.stop() == 0
        assert not (tmp_path / "d" / "yirangmq.sock").exists()


def test_serve_without_options_serves_this_folder_and_commands_find_it(tmp_path: Path) -> None:
    with daemon(tmp_path, data="") as server:
        published = run_command(tmp_path, "publish", "--queue", "mail", '{"to": "ann"}')
        assert published.returncode == 0, published.stderr
        status = json.loads(run_command(tmp_path, "status", "--json").stdout)
        assert status["server"] == server.ready["addresses"][0] == f"unix:{tmp_path / 'yirang-data' / 'yirangmq.sock'}"
        assert [(row["queue"], row["ready"]) for row in status["queues"]] == [("mail", 1)]
        store = server.ready["store"]

        def direct() -> list[dict[str, int]]:
            """What is in the file itself, which may be two seconds old."""
            found = run_command(tmp_path, "status", "--json", "--store", store, YIRANGMQ_DIRECT="1").stdout
            assert json.loads(found)["server"] is None
            return [row["totals"] for row in json.loads(found)["queues"]]

        until(lambda: direct() == [row["totals"] for row in status["queues"]])
        taken = run_command(tmp_path, "consume", "--queue", "mail", "--json")
        assert json.loads(taken.stdout)["message"]["payload"] == {"to": "ann"}
        assert not (tmp_path / "yirang.db").exists()


def test_serve_on_a_held_store_is_refused_with_the_process_and_address_of_the_holder(tmp_path: Path) -> None:
    with daemon(tmp_path) as server:
        second = run_command(tmp_path, "serve", "--data", "d")
        assert second.returncode == 5
        assert f"process {server.pid}" in second.stderr
        assert server.address in second.stderr
        held = find_holder(server.url)
        assert held is not None
        assert (held.pid, held.address) == (server.pid, server.address)
        server.kill()
        assert find_holder(server.url) is None
        server.start()
        assert find_holder(server.url) is not None
        assert server.stop(signal.SIGINT) == 0
        assert find_holder(server.url) is None


@pytest.mark.parametrize(("host", "local"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1")])
def test_dashboard_address_printed_at_the_start_opens_on_this_machine(tmp_path: Path, host: str, local: str) -> None:
    with daemon(tmp_path, "--http", f"{host}:0", "--insecure") as server:
        address = server.ready["dashboard"]
        assert address == f"http://{local}:{server.port_of('http')}/"
        assert request_page(address) == 200


def test_dashboard_address_is_not_printed_without_http_over_tcp(tmp_path: Path) -> None:
    with daemon(tmp_path, "--http", f"unix:{tmp_path / 'http.sock'}") as server:
        assert server.ready["dashboard"] is None


def request_page(address: str) -> int:
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        assert answer.headers["content-type"].startswith("text/html")
        return int(answer.status)


def test_cli_commands_of_every_kind_go_through_the_server(tmp_path: Path) -> None:
    with daemon(tmp_path) as server:
        store = f"--store={server.url}"
        for words in (
            ("publish", "--queue", "mail", '{"n": 1}'),
            ("publish", "--queue", "mail", '{"n": 2}'),
            ("peek", "--queue", "mail", "--filter", "payload.n>1"),
            ("queues",),
            ("policy", "get", "--queue", "mail"),
            ("policy", "set", "--queue", "mail", '{"retry": {"limit": 0}}'),
            ("consume", "--queue", "mail", "--no-ack", "--json"),
            ("nack", "1-1", "--reason", "HANDLER_ERROR"),
            ("dlq", "list", "--queue", "mail"),
            ("dlq", "stats", "--queue", "mail-dlq"),
            ("dlq", "requeue", "--queue", "mail", "--all", "--dry-run"),
            ("dlq", "requeue", "--queue", "mail", "--filter", "reasonCode=HANDLER_ERROR"),
            ("sweep",),
            ("sweep", "--dry-run"),
            ("status", "--queue", "mail"),
            ("export",),
            ("check",),
            ("drop", "--queue", "mail", "--whole-queue", "--force"),
        ):
            done = run_command(tmp_path, *words, store)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert run_command(tmp_path, "repair", store).returncode == 5
        export = run_command(tmp_path, "export", "--store", server.address)  # reads the store, not the server
        assert "with --db or --path" in export.stderr
        assert (export.returncode, export.stdout) == (10, "")
        with connect(server.address) as client:
            assert client.call("status")["accepted"] >= 14


def test_export_beside_a_server_has_everything_that_was_confirmed_before(tmp_path: Path) -> None:
    """Also what SQLite has not committed yet, because it is in the redo log of the server only."""
    with daemon(tmp_path) as server, connect(server.address) as client:
        for count in range(1, 4):
            client.publish("mail", count)
            done = run_command(tmp_path, "export", "-", "--store", server.url)
            assert done.stdout.count('"kind":"message"') == count, done.stderr


def test_shutdown_by_signal_answers_waiting_consumers_keeps_publishes_and_exits_with_0(tmp_path: Path) -> None:
    """Who waits is answered, what was asked for is on disk, the exit code is 0."""
    with daemon(tmp_path) as server:
        got: list[object] = []

        def wait() -> None:
            with connect(server.address, retries=0, timeout=PATIENCE) as waiter:
                try:
                    got.append(waiter.lease("mail", wait=PATIENCE))
                except yirangmq.QueueError as error:
                    got.append(error.code)

        thread = threading.Thread(target=wait)
        thread.start()
        with connect(server.address, retries=0) as client:
            until(lambda: any(one["waiting"] for one in client.call("connections")))
            stored = client.publish("work", b"x")
            assert server.stop() == 0
        thread.join(PATIENCE)
        assert got == ["unreachable"]  # it was told that there is nothing, and asked again of nobody
        told = [event["event"] for event in server.events() if not event["event"].startswith("loop_")]
        assert told == ["server_started", "signal_received", "server_stopping", "server_stopped"]
        server.start()
        with connect(server.address) as again:
            assert [delivery.id for delivery in again.lease("work")] == [stored.id]


@pytest.mark.parametrize(("on_stop", "comes"), [("keep", False), ("release", True)])
def test_shutdown_keeps_or_releases_leases_as_configured(tmp_path: Path, on_stop: str, comes: bool) -> None:
    with daemon(tmp_path, "--on-stop", on_stop) as server:
        with connect(server.address, consumer="worker-1") as client:
            client.publish_many("mail", [{"n": n} for n in range(1200)])
            [first] = client.lease("mail", lease_seconds=600)
            rest = client.lease("mail", 1199, lease_seconds=600)
            while len(rest) < 1199:
                rest += client.lease("mail", 1199, lease_seconds=600)
        with yirangmq.open(server.url, consumer="direct") as queues:
            queues.publish("mail", b"of another")
            assert len(queues.lease("mail", lease_seconds=600)) == 1
        assert server.stop() == 0
        server.start()
        with connect(server.address, consumer="worker-1") as client:
            counts = client.counts("mail")
            assert (counts.ready, counts.leased) == ((1200, 1) if comes else (0, 1201))
            if comes:
                assert client.lease("mail")[0].attempt == 1
            else:
                client.ack(first.lease_id)


def test_direct_write_to_the_store_reaches_a_consumer_waiting_at_the_server(tmp_path: Path) -> None:
    with daemon(tmp_path) as server, connect(server.address) as client, yirangmq.open(server.url) as queues:
        for n in range(3):
            got: list[object] = []

            def wait(got: list[object] = got) -> None:
                with connect(server.address) as waiter:
                    got.extend(delivery.value() for delivery in waiter.lease("mail", wait=PATIENCE))

            thread = threading.Thread(target=wait)
            thread.start()
            until(lambda: any(one["waiting"] for one in client.call("connections")))
            queues.publish("mail", {"n": n})
            thread.join(PATIENCE)
            assert got == [{"n": n}]


def test_tls_over_tcp_with_a_token_admits_a_client_and_refuses_a_wrong_token(tmp_path: Path) -> None:
    made, key = certificate(tmp_path)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    options = ("--tcp", "127.0.0.1:0", "--token-file", str(tmp_path / "token"))
    with daemon(tmp_path, *options, "--tls-cert", str(made), "--tls-key", str(key)) as server:
        address = server.ready["addresses"][1]
        assert address.startswith("tls://127.0.0.1:")
        with connect(f"{address}?token={TOKEN}&ca={made}") as client:
            client.publish("mail", {"n": 1})
        with pytest.raises(NotAllowed):
            connect(f"{address}?token=guess&ca={made}", retries=0)
        with connect(server.address) as client:
            assert client.counts("mail").ready == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--tcp", "0.0.0.0:0"), 2, "tcp: 0.0.0.0:0 can be reached from other machines"),
        (("--config", "none.json"), 2, "config: none.json: No such file"),
        (("--config", "typo.json"), 2, "max_conections: is not a setting; did you mean 'max_connections'?"),
        (("--config", "broken.json"), 2, "config: broken.json: malformed JSON"),
        (("--token-file", "missing"), 2, "token_file: missing: No such file"),
        (("--token-file", "typo.txt"), 2, "token_file: must have at least 16 characters, not 6; 'yirangmq token new'"),
        (("--tcp", "0.0.0.0:0", "--token", TOKEN), 2, "clear text: set tls_cert and tls_key, or set insecure"),
        (("--tls-cert", "typo.json", "--tls-key", "typo.json"), 2, "tls_cert"),
        (("--socket", "typo.json"), 2, "not a socket"),
        (("--store", "sqlite:/proc/none/q.db"), 5, "/proc/none"),
        (("--log-level", "loud"), 2, "--log-level"),
    ],
)
def test_serve_with_settings_that_cannot_work_is_refused_before_it_starts(
    tmp_path: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    (tmp_path / "typo.json").write_text('{"max_conections": 5}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "typo.txt").write_text("s3cret\n")
    done = run_command(tmp_path, "serve", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr


def test_settings_of_file_and_environment_apply_and_the_supervisor_is_notified(tmp_path: Path) -> None:
    (tmp_path / "y.json").write_text(json.dumps({"node": "north", "log_level": "debug", "socket_mode": "600"}))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(PATIENCE)
        server = Daemon(tmp_path, "--config", "y.json")
        try:
            server.start(YIRANGMQ_NODE="south", NOTIFY_SOCKET=str(tmp_path / "notify"))
            heard = supervisor.recv(100)
            while heard == b"WATCHDOG=1":
                heard = supervisor.recv(100)
            assert heard == b"READY=1"
            with connect(server.address) as client:
                assert client.call("status")["node"] == "south"
                assert client.call("health")["status"] == "ok"
            assert stat.S_IMODE((tmp_path / "d" / "yirangmq.sock").stat().st_mode) == 0o600
            os.kill(server.pid, signal.SIGHUP)
            until(lambda: any(event["event"] == "signal_ignored" for event in server.events()))
            assert server.stop() == 0
        finally:
            server.kill()


def test_clear_text_that_insecure_allows_is_logged_as_a_warning(tmp_path: Path) -> None:
    options = ("--tcp", "0.0.0.0:0", "--http", "127.0.0.1:0", "--token", TOKEN, "--insecure")
    with daemon(tmp_path, *options) as server:
        told = [one for one in server.events() if one["event"] == "listening_in_clear_text"]
        assert [(one["level"], one["setting"], one["address"]) for one in told] == [("warning", "tcp", "0.0.0.0:0")]


def test_health_and_connections_commands_report_a_running_failing_or_stopped_server(tmp_path: Path) -> None:
    with daemon(tmp_path) as server:
        store = f"--store={server.url}"
        well = json.loads(run_command(tmp_path, "health", "--json", store).stdout)
        assert (well["ok"], well["status"], well["server"]) == (True, "ok", server.address)
        with connect(server.address, consumer="worker-1"):
            found = json.loads(run_command(tmp_path, "connections", "--json", store).stdout)["connections"]
            assert "worker-1" in {one["client"] for one in found}
        assert "worker" not in run_command(tmp_path, "connections", store).stderr
    with daemon(tmp_path, "--disk-low-bytes", str(2**59)) as server:
        sick = run_command(tmp_path, "health", store)
        assert sick.returncode == 11
        assert sick.stdout.startswith("fail\nfail: disk_low: ")
    down = run_command(tmp_path, "health", store, "--json")
    assert (down.returncode, json.loads(down.stdout)["status"]) == (10, "down"), "a server served this store"
    assert run_command(tmp_path, "health", store, "--direct").stdout == "ok\n"
    assert run_command(tmp_path, "connections", store).returncode == 10
    assert run_command(tmp_path, "health", "--store", server.address).returncode == 10
