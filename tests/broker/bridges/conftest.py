from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.bridges.parts import BridgeServer, MakeHouse
from tests.support.stores import KINDS, Place


@pytest.fixture
def make_house(tmp_path: Path) -> Iterator[MakeHouse]:
    """Closed after the test."""
    made: list[BridgeServer] = []

    def make(kind: str = "memory", **more: Any) -> BridgeServer:
        made.append(BridgeServer(tmp_path, Place(kind, tmp_path), **more))
        made[-1].start()
        return made[-1]

    yield make
    for house in made:
        house.close()


@pytest.fixture(params=KINDS)
def house(request: pytest.FixtureRequest, make_house: MakeHouse) -> BridgeServer:
    return make_house(request.param)
