"""An address that somebody else has: a server says which setting it is, who has it and what to do."""

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.server_process import daemon, run_command
from yirangmq.observe.port_in_use import (
    UNKNOWN_PROCESS,
    cannot_listen,
    describe_process,
    process_on_port,
    process_on_socket,
)

STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
PAIR = ("--node", "a", "--pair-peer", "127.0.0.1:9", "--pair-key", "k" * 32)
WAYS = [
    ("tcp", STREAM, (), "--tcp HOST:PORT, or --tcp off"),
    ("http", STREAM, (), "--http HOST:PORT, or --http off"),
    ("stomp", STREAM, (), "--stomp HOST:PORT, or --stomp off"),
    ("feed_tcp", STREAM, ("--topics", "topics"), "--feed-tcp HOST:PORT, or --feed-tcp off"),
    ("pair_listen", STREAM, PAIR, "--pair-listen HOST:PORT"),
    ("pair_listen", DATAGRAM, PAIR, "--pair-listen HOST:PORT"),
]


@contextmanager
def taken(kind: socket.SocketKind) -> Iterator[int]:
    """A port that this process has."""
    with socket.socket(socket.AF_INET, kind) as held:
        held.bind(("127.0.0.1", 0))
        if kind is STREAM:
            held.listen()
        yield held.getsockname()[1]


@pytest.mark.process
@pytest.mark.parametrize(
    ("setting", "kind", "others", "way"), WAYS, ids=[f"{setting}-{kind.name}" for setting, kind, _, _ in WAYS]
)
def test_port_in_use_is_reported_with_setting_holder_and_remedy(
    tmp_path: Path, setting: str, kind: socket.SocketKind, others: tuple[str, ...], way: str
) -> None:
    with taken(kind) as port:
        address, flag = f"127.0.0.1:{port}", f"--{setting.replace('_', '-')}"
        done = run_command(tmp_path, "serve", "--json", "--data", "d", *others, flag, address)
    assert done.returncode == 12, done.stderr
    told = json.loads(done.stderr.splitlines()[-1])
    assert (told["code"], told["field"]) == ("cannot_listen", setting)
    assert "publisher_failed" not in done.stderr, "the topic log is not at fault"
    assert told["error"].startswith(f"{setting}: {address} is in use by process {os.getpid()} (")
    assert told["error"].endswith(f"stop it, or choose another with {way}")
    assert not (tmp_path / "d" / "yirangmq.sock").exists()


@pytest.mark.process
def test_listener_sockets_of_a_running_server_are_not_taken_by_another(tmp_path: Path) -> None:
    paths = {name: str(tmp_path / name) for name in ("own", "feed", "web")}
    first = ("--socket", paths["own"], "--topics", str(tmp_path / "t"), "--feed-socket", paths["feed"])
    with daemon(tmp_path, *first, "--http", f"unix:{paths['web']}") as server:
        for setting, flag, value, form in (
            ("socket", "--socket", paths["own"], "PATH"),
            ("feed_socket", "--feed-socket", paths["feed"], "PATH"),
            ("http", "--http", f"unix:{paths['web']}", "unix:PATH"),
        ):
            done = run_command(tmp_path, "serve", "--data", "other", "--topics", "topics", flag, value)
            assert done.returncode == 12, done.stderr
            place = value.removeprefix("unix:")
            assert f"{setting}: {place} is in use by process {server.pid} (yirangmq); stop it" in done.stderr
            assert f"choose another with {flag} {form}, or {flag} off" in done.stderr
        assert run_command(tmp_path, "status", "--store", f"unix:{paths['own']}").returncode == 0


def test_port_holder_is_the_process_that_has_the_port_and_unknown_for_a_free_port() -> None:
    with taken(STREAM) as port:
        assert process_on_port(port) == describe_process(os.getpid())
        assert process_on_port(port, DATAGRAM).startswith(UNKNOWN_PROCESS)
    assert process_on_port(port).startswith(UNKNOWN_PROCESS)
    assert describe_process(2**22 + 1) == f"process {2**22 + 1}"


def test_socket_path_is_in_use_while_its_owner_listens_even_if_it_is_busy(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert process_on_socket(path) is None
    with socket.socket(socket.AF_UNIX) as held, socket.socket(socket.AF_UNIX) as guest:
        held.bind(str(path))
        assert process_on_socket(path) is None
        held.listen(0)
        assert process_on_socket(path) == describe_process(os.getpid())
        held.accept()[0].close()
        guest.connect(str(path))
        assert process_on_socket(path) == UNKNOWN_PROCESS
    assert process_on_socket(path) is None


@pytest.mark.parametrize(
    ("number", "port", "hint"),
    [
        (errno.EADDRNOTAVAIL, 8080, "this machine has no such address"),
        (errno.EACCES, 80, "a port below 1024 needs rights"),
        (errno.EACCES, 8080, "Permission denied; choose another"),
    ],
)
def test_listener_error_for_other_causes_has_its_own_hint(number: int, port: int, hint: str) -> None:
    error = cannot_listen("http", ("203.0.113.1", port), OSError(number, os.strerror(number)))
    assert hint in str(error)
    assert str(error).startswith(f"http: 203.0.113.1:{port}: ")
    assert "choose another with --http HOST:PORT" in str(error)
