"""JSON in and out. Uses msgspec where it is installed; the standard library does the same, slower, where it is not,
so that a device can run the files store on bare Python."""

import json
import math
from collections.abc import Callable
from typing import Any

from yirangmq.core.errors import BadInput

__all__ = ["dumps", "loads", "members"]

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
"""For text that is passed on as it is: a number of any size will do."""


def _plain_loads(data: bytes) -> Any:
    try:
        text = data.decode()
        value = _reader.decode(text)
        _refuse_halves(text, value)
        return value
    except (ValueError, RecursionError) as error:
        raise BadInput(f"malformed JSON: {error}") from None


def _refuse_halves(text: str, value: Any) -> None:
    """Half of a surrogate pair is no character, and could not be written again."""
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()


def _plain_dumps(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"cannot be written as JSON: {error}") from None


def _plain_members(data: bytes) -> dict[str, bytes] | None:
    """Walk the top level of an object, keeping each member's own text."""
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
            _refuse_halves(text, [key, value])
            found[key] = text[begin:end].encode()
            at = _skip(text, end)
            if text[at : at + 1] == ",":
                at = _skip(text, at + 1)
                if text[at : at + 1] == "}":
                    raise ValueError(f"a comma too many at character {at}")
            elif text[at : at + 1] != "}":
                raise ValueError(f"expected a comma or a brace at character {at}")
        if _skip(text, at + 1) != len(text):
            raise ValueError(f"more text after the document at character {at + 1}")
        return found
    except (ValueError, RecursionError) as error:
        raise BadInput(f"malformed JSON: {error}") from None


def _is_finite(value: Any) -> bool:
    """No NaN and no infinity in it: msgspec would write them as null, and nobody would know."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return all(map(_is_finite, value)) if isinstance(value, list | tuple) else True


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _space:
        at += 1
    return at


loads: Callable[[bytes], Any]
dumps: Callable[[Any], bytes]
members: Callable[[bytes], dict[str, bytes] | None]

try:
    import msgspec
except ImportError:
    loads, dumps, members = _plain_loads, _plain_dumps, _plain_members
else:
    _decode = msgspec.json.Decoder().decode
    _encode = msgspec.json.Encoder().encode
    _decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def _fast_loads(data: bytes) -> Any:
        try:
            return _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadInput(f"malformed JSON: {error}") from None

    def _fast_dumps(value: Any) -> bytes:
        try:
            text = _encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadInput(f"cannot be written as JSON: {error}") from None
        if b"null" in text and not _is_finite(value):
            raise BadInput("cannot be written as JSON: it holds a number that is infinite or none")
        return text

    def _fast_members(data: bytes) -> dict[str, bytes] | None:
        try:
            data.decode()  # raw members are skipped over, not looked into
            return {key: bytes(raw) for key, raw in _decode_members(data).items()}
        except msgspec.ValidationError:
            _fast_loads(data)
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadInput(f"malformed JSON: {error}") from None

    loads, dumps, members = _fast_loads, _fast_dumps, _fast_members
