"""One browser and one server for all tests of a worker; a page of its own, and a queue of its own name, for each."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chromium import Browser
from tests.support.dashboard import Page, looking
from tests.support.server_process import Daemon, daemon


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("dashboard")
    with daemon(folder, "--store", "memory:", "--http", "127.0.0.1:0", "--node", "desk-1") as made:
        yield made


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    return re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")[:60]


@pytest.fixture
def page(browser: Browser, server: Daemon) -> Iterator[Page]:
    yield from looking(browser, server.address_of("http"))
