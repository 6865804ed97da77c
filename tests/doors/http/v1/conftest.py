import pytest

from tests.doors.http.v1.parts import Web


@pytest.fixture
def web() -> Web:
    return Web()
