"""MessagePack in plain Python makes and reads the bytes of msgspec."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from yirangmq.core.states import State
from yirangmq.format.messagepack import _unpack, fast_encoder, pack

EDGES = [
    *(sign * (2**bits) + more for bits in (5, 7, 8, 15, 16, 31, 32, 62) for sign in (1, -1) for more in (-1, 0, 1)),
    *(-(2**63), 2**63 - 1, 0.0, -1.5, 1e300, None, True, False, ""),
    *("x" * size for size in (31, 32, 255, 256, 65535, 65536)),
    *(b"y" * size for size in (0, 255, 256, 65535, 65536)),
    *([1] * size for size in (0, 15, 16, 65535, 65536)),
    State.LEASED,
    (1, ("ü", None)),
    bytearray(b"z"),
    memoryview(b"z"),
]


class Text(str):
    __slots__ = ()


def listed(value: Any) -> Any:
    """As a decoder returns it."""
    if isinstance(value, list | tuple):
        return [listed(one) for one in value]
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


@pytest.mark.parametrize("value", EDGES, ids=lambda value: f"{type(value).__name__}-{str(value)[:12]}")
def test_messagepack_has_the_same_bytes_with_and_without_msgspec(value: Any) -> None:
    data = pack(value)
    assert data == fast_encoder()(value)
    assert _unpack(data, 0) == (listed(value), len(data))
    assert msgpack.decode(data) == listed(value)


SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)


@given(st.recursive(SCALARS, lambda values: st.lists(values, max_size=20), max_leaves=40))
def test_messagepack_of_any_value_is_that_of_msgspec(value: Any) -> None:
    data = pack(value)
    assert data == msgpack.encode(value)
    assert _unpack(data, 0) == (value, len(data))


def test_messagepack_takes_a_subclass_of_str_and_refuses_other_values() -> None:
    assert pack(Text("x")) == fast_encoder()(Text("x")) == pack("x")
    for encode in (pack, fast_encoder()):
        with pytest.raises(TypeError):
            encode(object())
        with pytest.raises(OverflowError):
            encode(2**64)


WITHOUT_MSGSPEC = """
import sys
sys.modules["msgspec"] = None
del sys.modules["msgspec"]
from yirangmq.format.messagepack import pack, unpack
for value in ([1, "x", [b"y", None]], -5):
    assert unpack(pack(value)) == value
for bad in (b"", b"\\x92\\x01", b"\\xc1", b"\\x01\\x01", b"\\xa5abc", b"\\xcd\\x00"):
    try:
        unpack(bad)
    except ValueError:
        continue
    raise SystemExit(f"{bad!r} was read")
assert "msgspec" not in sys.modules
"""


@pytest.mark.process
def test_messagepack_is_read_without_msgspec() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_MSGSPEC], check=True, timeout=60)
