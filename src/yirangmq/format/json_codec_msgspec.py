"""JSON codec by msgspec; ``format.json_codec`` loads it at the first text."""

import math
from typing import Any

import msgspec

from yirangmq.core.errors import BadInput

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def loads(data: bytes) -> Any:
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(error) from None


def dumps(value: Any) -> bytes:
    try:
        text = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadInput(f"cannot be written as JSON: {error}") from None
    if b"null" in text and not _is_finite(value):
        raise BadInput("cannot be written as JSON: it contains a number that is infinite or NaN")
    return text


def members(data: bytes) -> dict[str, bytes] | None:
    try:
        data.decode()  # msgspec skips raw members without checking that they are UTF-8
        found = _decode_members(data)
        return dict(zip(found, map(bytes, found.values()), strict=True))
    except msgspec.ValidationError:
        loads(data)
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(error) from None


def _malformed(error: Exception) -> BadInput:
    return BadInput(f"malformed JSON: {str(error).removeprefix('JSON is malformed: ')}")


def _is_finite(value: Any) -> bool:
    """Return True if the value has neither NaN nor infinity. msgspec would silently write them as null."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return all(map(_is_finite, value)) if isinstance(value, list | tuple) else True
