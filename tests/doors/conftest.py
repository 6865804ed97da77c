"""A server without sockets and a client of it; an event loop of each kind."""

from functools import partial

import pytest
import uvloop

from tests.support.loops import Run, run_loop
from tests.support.session import Client, Server


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server) -> Client:
    return server.client()


@pytest.fixture(params=[None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return partial(run_loop, make_loop=request.param)
