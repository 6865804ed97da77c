from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stomp import StompServer
from yirangmq.wire.stomp import VERSIONS


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StompServer]:
    made = StompServer(topics=tmp_path / "topics")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)
