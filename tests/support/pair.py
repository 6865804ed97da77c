"""Two whole servers as a pair, with the cable between them in the test's hands."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.http_client import request_json
from tests.support.lossy_link import Cable, cable
from tests.support.ports import free_port
from tests.support.server_process import Daemon, until
from tests.support.wait import PATIENCE
from yirangmq import QueueError
from yirangmq.client.connect import connect

INTERVAL = float(os.environ.get("YIRANGMQ_PAIR_INTERVAL", "1"))
"""Seconds between heartbeats; 5 in the slow form. A test of the connection has two fifths of it, on any machine."""
NAMES = ("a", "b")


class Pair:
    def __init__(self, folder: Path, wire: Cable, *options: str) -> None:
        self.folder = folder
        self.cable = wire
        self.tcp = {name: free_port() for name in NAMES}
        self.http = {name: free_port() for name in NAMES}
        self.stomp = {name: free_port() for name in NAMES}
        self.nodes = {name: self._node(name, options) for name in NAMES}

    def _node(self, name: str, options: tuple[str, ...]) -> Daemon:
        home = self.folder / name
        home.mkdir()
        key = home / "key"
        key.touch(0o600)
        key.write_text("a key that both nodes share\n")
        return Daemon(
            home, "--node", name, "--tcp", f"127.0.0.1:{self.tcp[name]}", "--http", f"127.0.0.1:{self.http[name]}",
            "--stomp", f"127.0.0.1:{self.stomp[name]}", "--pair-key-file", str(home / "key"),
            "--pair-peer", f"127.0.0.1:{self.cable.peers[name]}",
            "--pair-listen", f"127.0.0.1:{self.cable.ports[name]}", "--pair-interval-seconds", str(INTERVAL),
            "--pair-cooldown-seconds", str(2 * INTERVAL), *options,
        )  # fmt: skip

    @property
    def addresses(self) -> str:
        return f"tcp://127.0.0.1:{self.tcp['a']},127.0.0.1:{self.tcp['b']}"

    def start(self, *names: str) -> "Pair":
        for name in names or NAMES:
            self.nodes[name].start()
        return self

    def request(self, name: str, path: str) -> Any:
        """A document of a node's API; a node that is unwell answers with 503, and why."""
        return request_json(f"http://127.0.0.1:{self.http[name]}", "GET", f"/v1/{path}")[1]

    def status(self, name: str) -> dict[str, Any]:
        with connect(self.nodes[name].address, retries=0, timeout=10) as client:
            found: dict[str, Any] = client.call("pair_status")
            return found

    def history(self, name: str, event: str) -> list[dict[str, Any]]:
        path = self.nodes[name].folder / "d" / "pair" / "history.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["event"] == event]

    def evidence(self, name: str, event: str) -> dict[str, str]:
        """Of the latest such event."""
        return dict(self.history(name, event)[-1]["evidence"])

    def works(self, name: str) -> bool:
        try:
            return bool(self.status(name)["works"])
        except (QueueError, OSError):
            return False

    def wait_for(self, *working: str, of: tuple[str, ...] = NAMES) -> None:
        """Until exactly these of those work, and not the others."""
        until(lambda: [name for name in of if self.works(name)] == list(working), PATIENCE)

    def wait_for_one(self) -> str:
        """Until exactly one works and the other one hears it; which."""
        found: list[str] = []

        def is_one() -> bool:
            found[:] = [name for name in NAMES if self.works(name)]
            return len(found) == 1 and self.hears(self.other(found[0]))

        until(is_one, 60 + 10 * INTERVAL)
        return found[0]

    def other(self, name: str) -> str:
        return "b" if name == "a" else "a"

    def hears(self, name: str) -> bool:
        """This one knows an active peer that is not silent."""
        try:
            peer = self.status(name)["peer"]
        except (QueueError, OSError):
            return False
        return peer is not None and peer["role"] == "ACTIVE" and not peer["silent"]

    def signal(self, name: str, number: signal.Signals) -> None:
        process = self.nodes[name].process
        assert process is not None
        process.send_signal(number)

    @property
    def stalls(self) -> list[dict[str, Any]]:
        """Times at which a node stood down because it did not get to run: a machine under load, and no fault of the
        test's. What a test says of a calm pair holds where there were none."""
        found = [line for name in NAMES for line in self.history(name, "stood-down")]
        return [line for line in found if {"frozen", "witness"} & {step for step, _ in line["evidence"]}]

    def begin(self) -> "Pair":
        """a is active, b stands by and has heard it."""
        self.start("a")
        self.wait_for("a", of=("a",))
        self.start("b")
        until(lambda: (self.status("b")["peer"] or {}).get("role") == "ACTIVE", PATIENCE)
        return self

    def call(self, name: str, method: str, **values: Any) -> Any:
        with connect(self.nodes[name].address, retries=0, timeout=60) as client:
            return client.call(method, **values)

    def switch(self, to: str) -> None:
        """By hand, as ``pair switch`` does it."""
        self.call(self.other(to), "pair_switch", to=to)

    def command(self, name: str, *words: str) -> "subprocess.CompletedProcess[str]":
        words = ("pair", words[0], "--store", self.nodes[name].address, *words[1:])
        command = [sys.executable, "-m", "yirangmq", *words, "--json"]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=self.folder)

    def kill(self) -> None:
        for node in self.nodes.values():
            with suppress(ProcessLookupError):
                if node.process is not None and node.process.poll() is None:
                    node.process.send_signal(signal.SIGCONT)  # one that is frozen cannot end
            node.kill()


@contextmanager
def pair(folder: Path, *options: str) -> Iterator[Pair]:
    with cable() as wire:
        made = Pair(folder, wire, *options)
        try:
            yield made
        finally:
            made.kill()
