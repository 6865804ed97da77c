"""An event loop of each kind."""

from functools import partial

import pytest
import uvloop

from tests.support.loops import Run, run_loop


@pytest.fixture(params=[None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return partial(run_loop, make_loop=request.param)
