"""JSON codec: msgspec if it is installed, otherwise the standard library with the same results.

Without msgspec a device runs the files store on plain Python, slower. The codec is chosen at the first text: an idle
server decodes none, and msgspec takes 2 MB of memory. NaN, infinity and lone surrogates raise ``BadInput``."""

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from yirangmq.core.errors import BadInput

_space = " \t\n\r"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is out of range")
    return value


_reader = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
_decoder = json.JSONDecoder(parse_constant=_no_constant)
"""Decoder of text that is passed on unchanged. It accepts a number of any size."""


def _plain_loads(data: bytes) -> Any:
    try:
        text = data.decode()
        value = _reader.decode(text)
        _refuse_lone_surrogates(text, value)
        return value
    except (ValueError, RecursionError) as error:
        raise BadInput(f"malformed JSON: {error}") from None


def _refuse_lone_surrogates(text: str, value: Any) -> None:
    """Raise ``UnicodeEncodeError`` if an escape is a lone surrogate. It is not a character and cannot be encoded."""
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()


def _plain_dumps(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"cannot be written as JSON: {error}") from None


def _plain_members(data: bytes) -> dict[str, bytes] | None:
    """Parse the top level of an object and keep the raw text of each member."""
    try:
        text = data.decode()
        at = _skip(text, 0)
        if text[at : at + 1] != "{":
            _plain_loads(data)
            return None
        found: dict[str, bytes] = {}
        at = _skip(text, at + 1)
        while text[at : at + 1] != "}":
            key, at = _decoder.raw_decode(text, at)
            at = _skip(text, at)
            if not isinstance(key, str) or text[at : at + 1] != ":":
                raise ValueError(f"expected a member name and a colon at character {at}")
            begin = _skip(text, at + 1)
            value, end = _decoder.raw_decode(text, begin)
            _refuse_lone_surrogates(text, [key, value])
            found[key] = text[begin:end].encode()
            at = _skip(text, end)
            if text[at : at + 1] == ",":
                at = _skip(text, at + 1)
                if text[at : at + 1] == "}":
                    raise ValueError(f"unexpected comma at character {at}")
            elif text[at : at + 1] != "}":
                raise ValueError(f"expected a comma or a brace at character {at}")
        if _skip(text, at + 1) != len(text):
            raise ValueError(f"more text after the document at character {at + 1}")
        return found
    except (ValueError, RecursionError) as error:
        raise BadInput(f"malformed JSON: {error}") from None


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _space:
        at += 1
    return at


class _Tools(NamedTuple):
    loads: Callable[[bytes], Any]
    dumps: Callable[[Any], bytes]
    members: Callable[[bytes], dict[str, bytes] | None]


plain = _Tools(_plain_loads, _plain_dumps, _plain_members)
"""Codec of the standard library, for a few short texts at program start that do not justify loading msgspec."""


def _choose() -> None:
    """Choose the codec at the first text. An idle server decodes none, and msgspec takes 2 MB of memory."""
    global _loads, _dumps, _members
    try:
        from yirangmq.format import json_codec_msgspec as fast
    except ImportError:
        _loads, _dumps, _members = plain
    else:
        _loads, _dumps, _members = fast.loads, fast.dumps, fast.members


def _first_loads(data: bytes) -> Any:
    _choose()
    return _loads(data)


def _first_dumps(value: Any) -> bytes:
    _choose()
    return _dumps(value)


def _first_members(data: bytes) -> dict[str, bytes] | None:
    _choose()
    return _members(data)


_loads, _dumps, _members = _Tools(_first_loads, _first_dumps, _first_members)


def loads(data: bytes) -> Any:
    return _loads(data)


def dumps(value: Any) -> bytes:
    return _dumps(value)


def members(data: bytes) -> dict[str, bytes] | None:
    """Return the members of an object with their raw text; None if the text is JSON but not an object."""
    return _members(data)
