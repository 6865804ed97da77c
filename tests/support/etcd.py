"""Real etcd clusters for tests, on free loopback ports, with data folders of their own, ended with SIGKILL; clients and
nodes of them in this process."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.ports import free_ports
from tests.support.wait import PATIENCE
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.cluster.etcd.client import Etcd, prefix_end
from yirangmq.cluster.node import ClusterNode, ClusterNodeSettings
from yirangmq.core.ports import Clock

Answer = TypeVar("Answer")
TOOLS = Path(__file__).parents[2] / ".tools" / "etcd"
QUICK = ["--bcrypt-cost", "4"]
"""Passwords of a test need not be hard to guess."""
STARTS = 3
"""A free port may be taken by another before the server has it; then all begin anew on others."""


def program(name: str) -> str:
    """Where ``etcd`` or ``etcdctl`` is. Missing: skipped at home, a failure where CI is set."""
    found = TOOLS / name
    if found.exists():
        return str(found)
    if (known := shutil.which(name)) is not None:
        return known
    text = f"no {name} here; `make etcd` fetches it"
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


class EtcdMember:
    """One etcd process; it may be killed, stopped, woken and started again with what it has on disk."""

    def __init__(
        self,
        name: str,
        folder: Path,
        client: str,
        peer: str,
        flags: Sequence[str],
        prefix: Sequence[str] = (),
        *,
        file_only: bool = False,
    ) -> None:
        """``file_only``: all that it is told stands in a file that ``flags`` name."""
        self._is_file_only = file_only
        self.name = name
        self.client = client
        self.peer = peer
        self._folder = folder
        self._flags = flags
        self._prefix = prefix
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return self.client.split("://")[1]

    def start(self, *flags: str) -> None:
        """``flags`` go over those it was made with."""
        assert self._process is None
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with (self._folder.parent / f"{self.name}.log").open("ab") as log:
            usual = () if self._is_file_only else ("--logger", "zap", "--log-level", "warn", "--pre-vote")
            command = [*self._prefix, program("etcd"), *self._flags, *flags, *usual]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)
            self._process = None

    def freeze(self) -> None:
        """It has stopped when this returns: a signal alone leaves it a moment, in which it may still answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def wake(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_well(self) -> bool:
        if self.client.startswith("https"):
            return self.is_running and _answers(self.endpoint)
        try:
            with urllib.request.urlopen(f"{self.client}/health", timeout=2) as answer:
                return b'"true"' in answer.read()
        except (OSError, urllib.error.URLError):
            return False


class EtcdCluster:
    """A cluster of ``count`` members. ``flags`` go to each; ``hosts`` and ``prefixes`` are the addresses and the
    words before the command, where each lives in a network of its own."""

    def __init__(
        self,
        folder: Path,
        count: int = 1,
        flags: Sequence[str] = (),
        scheme: str = "http",
        hosts: Sequence[str] = (),
        prefixes: Sequence[Sequence[str]] = (),
    ) -> None:
        self._folder = folder
        self._count = count
        self._given = flags
        self._scheme = scheme
        self._hosts = list(hosts) or ["127.0.0.1"] * count
        self._prefixes = list(prefixes) or [()] * count
        self.members: list[EtcdMember] = []

    def __enter__(self) -> "EtcdCluster":
        for left in reversed(range(STARTS)):
            self._prepare()
            for member in self.members:
                member.start()
            if self.wait_well() or not left:
                break
            self._end()
        if not all(member.is_well() for member in self.members):
            logs = "\n".join(path.read_text()[-2000:] for path in self._folder.glob("*.log"))
            self._end()
            raise AssertionError(f"etcd did not start:\n{logs}")
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def wait_well(self, members: Sequence[EtcdMember] | None = None) -> bool:
        until = time.monotonic() + PATIENCE
        wanted = self.members if members is None else members
        while not all(member.is_well() for member in wanted):
            if time.monotonic() > until or any(not member.is_running for member in wanted):
                return False
            time.sleep(0.05)
        return True

    def ctl(self, *words: str, given: bytes | None = None) -> bytes:
        """``etcdctl`` with these words; what it prints."""
        command = [program("etcdctl"), "--endpoints", ",".join(self.endpoints), *words]
        environment = {**os.environ, "ETCDCTL_API": "3"}
        done = subprocess.run(command, input=given, capture_output=True, timeout=PATIENCE, env=environment)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def leader(self) -> EtcdMember:
        """The member that leads now."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for member in self.members:
                with contextlib.suppress(OSError, urllib.error.URLError):
                    text = urllib.request.urlopen(f"{member.client}/metrics", timeout=2).read()
                    if b"\netcd_server_is_leader 1" in text:
                        return member
            time.sleep(0.05)
        raise AssertionError("no member leads")

    def _prepare(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, mode=0o700)
        ports = free_ports(2 * self._count)
        names = [f"n{number}" for number in range(self._count)]
        peers = [f"http://{self._hosts[number]}:{ports[2 * number + 1]}" for number in range(self._count)]
        together = ",".join(f"{name}={peer}" for name, peer in zip(names, peers, strict=True))
        token = uuid.uuid4().hex
        self.members = []
        for number, (name, peer) in enumerate(zip(names, peers, strict=True)):
            client, folder = f"{self._scheme}://{self._hosts[number]}:{ports[2 * number]}", self._folder / name
            flags = [
                "--name", name, "--data-dir", str(folder), "--listen-client-urls", client,
                "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", together, "--initial-cluster-state", "new", "--initial-cluster-token", token,
                *self._given,
            ]  # fmt: skip
            self.members.append(EtcdMember(name, folder, client, peer, flags, self._prefixes[number]))

    def _end(self) -> None:
        for member in self.members:
            member.kill()


def _answers(endpoint: str) -> bool:
    host, port = endpoint.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), 1):
            return True
    except OSError:
        return False


def play(game: Coroutine[Any, Any, Answer]) -> Answer:
    async def timed() -> Answer:
        async with asyncio.timeout(2 * PATIENCE):
            return await game

    return asyncio.run(timed())


def at(*endpoints: str) -> Etcd:
    return Etcd(EtcdAddress(endpoints=tuple(endpoints)))


@contextlib.asynccontextmanager
async def running(
    endpoints: Sequence[str], name: str = "here", clock: Clock | None = None, **settings: Any
) -> AsyncIterator[ClusterNode]:
    """A node in this process, with an etcd client of its own."""
    address = EtcdAddress(endpoints=tuple(endpoints))
    stop = asyncio.Event()
    given = ClusterNodeSettings(name=name, **{"lease": 10, "poll": 0.05, "compact": 0.0, **settings})
    async with Etcd(address) as client:
        node = ClusterNode(client, address, clock or SystemClock(), TimeOrderedIds(), given)
        task = asyncio.ensure_future(node.run(stop))
        try:
            yield node
        finally:
            stop.set()
            await asyncio.wait_for(task, PATIENCE)


async def keys_of(client: Etcd, prefix: bytes) -> list[bytes]:
    found = await client.range(prefix, prefix_end(prefix), keys_only=True)
    return [kv.key for kv in found.kvs]


def with_user(etcds: EtcdCluster, folder: Path, name: str, role: str) -> str:
    """A new user with this role; what an address says of it."""
    etcds.ctl("user", "add", f"{name}:{name}-word")
    if role == "root":
        etcds.ctl("role", "add", "root")
    etcds.ctl("user", "grant-role", name, role)
    (folder / name).write_text(f"{name}-word\n")
    return f"&user={name}&password-file={folder / name}"
