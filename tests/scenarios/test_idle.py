"""What a server at rest has loaded: the parts that wait for somebody are not among it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.wait import PATIENCE

pytestmark = pytest.mark.process

PROGRAM = """
import os, signal, socket, sys
from yirangmq.cli import main
from yirangmq.cli.commands import serve

def ready(chosen, screen, addresses, durability):
    where = next(one for one in addresses if one.startswith("stomp://")).rpartition(":")[2]
    socket.create_connection(("127.0.0.1", int(where))).close()
    os.kill(os.getpid(), signal.SIGTERM)

serve._announce = ready
flags = ["--http", "off", "--stomp", "127.0.0.1:0", "--log-level", "warning", *sys.argv[2:]]
assert main.run(["serve", "--data", sys.argv[1], *flags]) == 0
print(*sys.modules, sep="\\n")
"""
LATER = {
    "bulk": ("yirangmq.broker.sink_batches", "yirangmq.broker.sink_batch_rows", "yirangmq.broker.export_import"),
    "calls": (
        "yirangmq.admin.queue_methods",
        "yirangmq.broker.queues",
        "yirangmq.core.filter",
        "yirangmq.broker.bulk",
    ),
    "checks": ("yirangmq.core.payload_checks", "jsonschema_rs"),
    "command line": ("shutil", "yirangmq.cli.connection", "yirangmq.cli.render"),
    "files by date": ("yirangmq.stores.journal.files", "yirangmq.stores.journal.store"),
    "http": ("httptools", "yirangmq.server.http_listener"),
    "json": ("msgspec",),
    "mail and webhooks": ("email", "smtplib", "http", "yirangmq.webhooks.pusher"),
    "our own protocol": ("yirangmq.protocols.native.session", "yirangmq.wire.messages"),
    "pair and cluster": ("yirangmq.server.failover", "yirangmq.core.failover_node", "grpc"),
    "the system's log": ("logging.handlers",),
    "topics": ("yirangmq.topics.live", "yirangmq.stores.log.log", "yirangmq.wire.records", "isal"),
    "wrong words": ("difflib",),
}


def loaded(folder: Path, *flags: str) -> set[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder), *flags]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("YIRANGMQ_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=bare)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_lazy_import_keeps_unused_parts_out_of_a_server_at_rest(tmp_path: Path) -> None:
    found = loaded(tmp_path / "d")
    assert {part: here for part, names in LATER.items() if (here := sorted(found & set(names)))} == {}
    assert {"yirangmq.protocols.stomp.session", "apsw"} <= found


def test_lazy_import_loads_the_parts_that_the_settings_enable(tmp_path: Path) -> None:
    assert set(LATER["files by date"]) <= loaded(tmp_path / "d", "--files-by-date", str(tmp_path / "files"))
