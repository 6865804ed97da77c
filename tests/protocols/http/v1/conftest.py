import pytest

from tests.support.http_api import Web


@pytest.fixture
def web() -> Web:
    return Web()
