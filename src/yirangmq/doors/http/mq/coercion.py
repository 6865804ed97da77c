"""Values that clients of the HTTP queue send, read as generously as its server reads them: a text that is a number
is one. ``BadInput`` names the value that cannot be read."""

import re
from typing import Any

from yirangmq.core.errors import BadInput
from yirangmq.core.message import RANK_LAST
from yirangmq.format.json_codec import loads

NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\s*")
PROTO = re.compile(rb'"__proto__"\s*:')
"""Refused by the original, which guards its language's objects; no client sends it by accident."""


def read_json(body: bytes) -> Any:
    if PROTO.search(body):
        raise BadInput("must have no member __proto__", field="body")
    try:
        return loads(body)
    except BadInput as error:
        raise BadInput(str(error), field="body") from None


def rank_of(document: object) -> int:
    """From the body of a draft: ``{"priority": number | null}``."""
    if not isinstance(document, dict):
        raise BadInput("must be an object", field="body")
    if "priority" not in document:
        raise BadInput("must have the member priority", field="body")
    given = document["priority"]
    if given is None or given == "":
        return RANK_LAST
    number = a_number(given, "priority")
    if not 0 <= number < RANK_LAST or number != int(number):
        raise BadInput(f"must be null or a whole number from 0 to {RANK_LAST - 1}", field="priority")
    return int(number)


def a_number(given: object, field: str) -> float:
    if isinstance(given, bool):
        return int(given)
    if isinstance(given, int | float):
        return given
    if isinstance(given, str) and NUMBER.fullmatch(given):
        return float(given) if not given.strip().lstrip("+-").isdecimal() else int(given)
    raise BadInput("must be a number", field=field)


def a_flag(given: object, field: str) -> bool:
    known = {True: True, False: False, "true": True, "false": False}  # 1 and 0 are found here, too
    if not isinstance(given, bool | int | float | str) or given not in known:
        raise BadInput("must be true or false", field=field)
    return known[given]


def seconds(given: object, field: str) -> float:
    number = a_number(given, field)
    if not number > 0:
        raise BadInput("must be a number of seconds greater than 0", field=field)
    return number


def whole(given: object, field: str) -> int:
    number = a_number(given, field)
    if abs(number) > 2**53 or number != int(number) or number < 0:
        raise BadInput("must be a whole number from 0", field=field)
    return int(number)
