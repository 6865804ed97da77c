"""Folders and servers for the examples of a module."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.examples import Places


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with ExitStack() as stack:
        yield Places(tmp_path_factory.mktemp("examples"), stack)
