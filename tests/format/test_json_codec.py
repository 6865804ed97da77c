"""JSON in and out: what msgspec does fast, the standard library does as well. A device without msgspec must not find
other messages in its files than one with it."""

import json
import math
import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yirangmq.core.errors import BadInput
from yirangmq.format import json_codec
from yirangmq.format.json_codec import _plain_dumps, _plain_loads, _plain_members

characters = st.characters(codec="utf-8")
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | st.text(characters)
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(characters), inner), max_leaves=8)
documents = st.dictionaries(st.text(characters), values, max_size=4)
styles: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\n:\r"), ("\n,\n", " : ")]),
        "indent": st.sampled_from([None, 0, 3]),
    }
)

many = settings(max_examples=4 * settings().max_examples)
"""Documents are cheap: thousands of them in all."""


def answer(read: Callable[[Any], Any], given: Any) -> Any:
    """What a function says to something, a refusal being one answer: its text is for people and may differ."""
    try:
        return read(given)
    except BadInput:
        return BadInput


def same(one: Any, other: Any) -> bool:
    """Equal, of the same kinds, down to the sign of zero and the order of members."""
    return repr(one) == repr(other)


@many
@given(values, styles)
def test_json_codec_reads_the_same_with_msgspec_and_the_standard_library(value: Any, style: dict[str, Any]) -> None:
    text = json.dumps(value, **style).encode()
    assert same(json_codec.loads(text), value)
    assert same(_plain_loads(text), value)


@many
@given(values)
def test_json_codec_output_of_either_library_is_read_by_both(value: Any) -> None:
    for written in (json_codec.dumps(value), _plain_dumps(value)):
        assert same(json_codec.loads(written), value)
        assert same(_plain_loads(written), value)


@many
@given(documents, styles)
def test_json_codec_splits_an_object_into_the_same_members_with_both_libraries(
    document: dict[str, Any], style: dict[str, Any]
) -> None:
    text = json.dumps(document, **style).encode()
    found = json_codec.members(text)
    assert found is not None
    assert found == _plain_members(text)
    assert same({key: json_codec.loads(raw) for key, raw in found.items()}, document)
    assert all(raw in text for raw in found.values())


@many
@given(values, styles)
def test_json_codec_finds_no_members_in_a_value_that_is_not_an_object(value: Any, style: dict[str, Any]) -> None:
    text = json.dumps(value, **style).encode()
    assert (json_codec.members(text) is None) == (_plain_members(text) is None) == (not isinstance(value, dict))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """JSON text with a few bytes lost, doubled or replaced."""
    text = bytearray(json.dumps(draw(values), **draw(styles)).encode())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        bits = draw(
            st.sampled_from([b"", b'"', b",", b":", b"{", b"}", b"[", b"]", b"\\", b"0", b"-", b".", b"e", b" "])
        )
        text[at : at + draw(st.integers(0, 2))] = bits
    return bytes(text)


@many
@given(damaged() | st.binary(max_size=12) | st.text(string.printable, max_size=12).map(str.encode))
def test_json_codec_treats_damaged_text_the_same_with_both_libraries(text: bytes) -> None:
    assert same(answer(json_codec.loads, text), answer(_plain_loads, text))
    assert answer(json_codec.members, text) == answer(_plain_members, text)


TEXTS = [
    b"1e400",
    b"-1e400",
    b"[1e400]",
    b"1" * 400,
    b"123456789012345678901234567890",
    b'"\\ud800"',
    b'"\\ud800\\u0041"',
    b'"\\udc00"',
    b'["\\ud83d\\ude00"]',
    b"\xef\xbb\xbf{}",
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'{"a":"\xff"}',
    b'{"a":01}',
    b'{"a":"\\x"}',
    b'{"a":"\\ud800"}',
    b'{"a":1e400}',
    b'{"a":"\n"}',
    b'"\x00"',
    b'"\x1f"',
    b'"\x7f"',
    b'{"a":1,"b":0,"a":2}',
    b"-0",
    b"-0.0",
    b"01",
    b"1.",
    b".5",
    b"+1",
    b"NaN",
    b"-Infinity",
    b"[1,]",
    b'{"a":1,}',
    b"",
    b" ",
    b"nul",
    b"\x0b1",
    b"\xc2\xa01",
    b'"\\x"',
    b"[]]",
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000,
    b"{1:2}",
    b'{"a" 1}',
    b"1 2",
    b"\x00",
]


@pytest.mark.parametrize("text", TEXTS, ids=[repr(text[:20]) for text in TEXTS])
def test_json_codec_treats_edge_cases_the_same_with_both_libraries(text: bytes) -> None:
    assert same(answer(json_codec.loads, text), answer(_plain_loads, text))
    assert answer(json_codec.members, text) == answer(_plain_members, text)


def test_json_codec_keeps_the_exact_text_of_a_member() -> None:
    text = b'{ "payload" : { "b":1.0e0,\n "a":[ ] , "a":1e400 } ,"type"\t:"\\u0074" }'
    expected = {"payload": b'{ "b":1.0e0,\n "a":[ ] , "a":1e400 }', "type": b'"\\u0074"'}
    assert json_codec.members(text) == _plain_members(text) == expected


BEYOND = [
    math.nan,
    math.inf,
    -math.inf,
    [1, math.nan],
    {"a": {"b": (None, math.inf)}},
    object(),
    {"a": object()},
    "\ud800",
]


@pytest.mark.parametrize("value", BEYOND, ids=[f"value{n}" for n in range(len(BEYOND))])
@pytest.mark.parametrize("dumps", [json_codec.dumps, _plain_dumps])
def test_json_codec_refuses_values_that_json_cannot_represent(dumps: Callable[[Any], bytes], value: object) -> None:
    with pytest.raises(BadInput):
        dumps(value)


@pytest.mark.parametrize("dumps", [json_codec.dumps, _plain_dumps])
def test_json_codec_refuses_a_value_that_contains_itself(dumps: Callable[[Any], bytes]) -> None:
    value: list[Any] = [None]
    value.append(value)
    with pytest.raises(BadInput):
        dumps(value)
