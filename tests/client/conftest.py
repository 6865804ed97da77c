"""A server in this process, and clients of every kind."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.client.parts import FACES, BadLine, Connect
from tests.client.topic_parts import Tampering
from tests.support.server import RunningServer
from tests.support.server_process import Daemon
from tests.support.wait import PATIENCE
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import CountingIds, ManualClock, open_for_test


@pytest.fixture
def server(tmp_path: Path, clock: ManualClock) -> Iterator[RunningServer]:
    server = RunningServer(MemoryStore(), tmp_path, clock).start()
    yield server
    server.stop()


@pytest.fixture(params=FACES)
def connecting(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Connects by either face; whatever it opened is closed."""
    with ExitStack() as stack:
        yield lambda address, **options: stack.enter_context(
            FACES[request.param](address, **{"consumer": "tester", "ids": CountingIds(), "timeout": 10} | options)
        )


@pytest.fixture
def client(server: RunningServer, connecting: Connect) -> Any:
    """A client of that server, by either face. (Any: it stands for both.)"""
    return connecting(server.unix)


@pytest.fixture
def queues(client: Any) -> Any:
    return client


@pytest.fixture
def line(server: RunningServer) -> Iterator[BadLine]:
    line = BadLine(server.unix)
    yield line
    line.close()


@pytest.fixture
def tampering(server: RunningServer) -> Iterator[Tampering]:
    made = Tampering(server.unix)
    yield made
    made.close()


@pytest.fixture(params=["embedded", *FACES])
def everyones(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Any]:
    """A store of our own, or a client by either face."""
    if request.param == "embedded":
        yield open_for_test(clock=clock)
        return
    server: RunningServer = request.getfixturevalue("server")
    with FACES[request.param](server.unix, ids=CountingIds(), timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A server in a process of its own, just started: it may not listen yet."""
    made = Daemon(tmp_path, "--log-level", "error")
    made.launch()
    yield made
    made.stop()
