from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.day_files import Kept, keeping
from tests.support.stores import KINDS


@pytest.fixture(params=KINDS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    with keeping(request.param, tmp_path) as made:
        yield made
