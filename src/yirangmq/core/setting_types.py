"""Value readers of settings: they convert JSON, or the text of a variable or a flag, to the value of a setting.

A reader raises ``ValueError``, which says what the value must be. ``config.settings`` assigns a reader to each
setting."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from yirangmq.core.access import ProgramRoute, ProgramRule, TokenRule, read_programs, read_routes, read_rules
from yirangmq.core.alert_settings import AlertSettings, read_settings
from yirangmq.core.bridges import NewBridge, read_all
from yirangmq.core.errors import BadInput
from yirangmq.core.processor import Chain, read_chains
from yirangmq.core.topic_filter import MAX_MASKED_TOPICS
from yirangmq.core.validation import check_consumer, check_queue, kind

MIB = 1024 * 1024
KEEP_DAYS = 7
"""Default number of days, before today, for which files by date are kept."""
HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?|\[?[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\]?", re.ASCII)
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.ASCII)
UNITS = {"": 1, "k": 1024, "kib": 1024, "m": MIB, "mib": MIB, "g": 1024 * MIB, "gib": 1024 * MIB}

SWITCHES = frozenset(
    ("on", "off", "yes", "no", "y", "n", "true", "false", "1", "0", "enable", "disable", "enabled", "disabled", "none")
)
"""Words that a user types as a switch. As the value of a path each would create a file of that name, so it is
refused."""

Reader = Callable[[object], Any]
"""Function from JSON, or the text of a variable or a flag, to the value of a setting. ``ValueError`` says what the
value must be."""


def a_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {kind(value)}")
    return value


def a_path(*words: str, default: str = "") -> Reader:
    """Build a reader of a path, or of one of ``words``. ``default``: the default path, shown in the error to a user who
    typed a switch."""

    def read(value: object) -> str:
        text = str(value).lower() if isinstance(value, bool) else a_text(value)
        if text in words or text.strip().lower() not in SWITCHES:
            return text
        expected = " or ".join(["must be a path", *map(repr, words)])
        otherwise = f"omit it for {default}, or " if default else ""
        raise ValueError(f"{expected}, not {text!r}; {otherwise}write './{text}' for a path of that name")

    return read


def one_of(*allowed: str) -> Reader:
    def read(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}, not {value!r}")
        return str(value)

    return read


def yes_or_no(value: object) -> bool:
    known = {True: True, False: False, "true": True, "false": False, "1": True, "0": False}
    if not isinstance(value, bool | str) or value not in known:
        raise ValueError(f"must be true or false, not {value!r}")
    return known[value]


def a_number(least: float, most: float) -> Reader:
    def read(value: object) -> float:
        try:
            number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            raise ValueError(f"must be a number from {least:g} to {most:g}, not {value!r}")
        return number

    return read


def whole_number(least: int, most: int) -> Reader:
    def read(value: object) -> int:
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise ValueError(f"must be a whole number from {least} to {most}, not {value!r}")
        return number

    return read


def byte_size(least: int, most: int) -> Reader:
    """Build a reader of a size in bytes: a number, or a text such as ``16MiB``."""
    check = whole_number(least, most)

    def read(value: object) -> int:
        found = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", value.strip().lower()) if isinstance(value, str) else None
        if found is not None and found[2] in UNITS:
            value = int(found[1]) * UNITS[found[2]]
        number: int = check(value)
        return number

    return read


def file_mode(value: object) -> int:
    if not isinstance(value, str) or not re.fullmatch(r"0?[0-7]{3}", value):
        raise ValueError(f"must be a file mode of three octal digits as a text, such as '660', not {value!r}")
    return int(value, 8)


ZONE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")


def zone_name(value: object) -> str:
    """Read the name of a time zone. Whether this machine knows it is found out when it is used."""
    if not isinstance(value, str) or not ZONE_NAME.fullmatch(value):
        raise ValueError(f"must be UTC, local, or the name of a time zone such as Asia/Hong_Kong, not {value!r}")
    return value


def plain_name(value: object) -> str:
    try:
        return check_consumer(value, "")
    except BadInput as error:
        raise ValueError(str(error)) from None


def topic_names(value: object) -> tuple[str, ...]:
    """Read 1 to 32 topic names: an array, or a text with commas between them."""
    given = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if (
        not isinstance(given, list)
        or not 0 < len(given) <= MAX_MASKED_TOPICS
        or len(set(map(str, given))) != len(given)
    ):
        raise ValueError(
            f"must be from 1 to {MAX_MASKED_TOPICS} topics, each once, with commas between them, not {value!r}"
        )
    try:
        return tuple(check_queue(name, "") for name in given)
    except BadInput as error:
        raise ValueError(str(error)) from None


def topic_or_nothing(value: object) -> str:
    try:
        return check_queue(value, "") if value != "" else ""
    except BadInput as error:
        raise ValueError(str(error)) from None


def cursors_or_nothing(value: object) -> str:
    text = a_text(value)
    if text and not re.fullmatch(r"(file|sqlite):.+", text):
        raise ValueError(f"must be file:FILE or sqlite:FILE, not {text!r}")
    return text


def syslog_or_nothing(value: object) -> str:
    text = a_text(value)
    if text and not re.fullmatch(r"unix:.+|udp:.+:\d{1,5}", text):
        raise ValueError(f"must be unix:PATH or udp:HOST:PORT, not {text!r}")
    return text


def _names(value: object) -> list[str] | None:
    """Read an array of texts, or a text with commas between them. Return None if it is neither."""
    given = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        return None
    return list(given)


def origin_names(value: object) -> tuple[str, ...]:
    """Read origins as browsers send them, or ``*``."""
    given = _names(value)
    if given is None:
        raise ValueError(f"must be origins with commas between them, such as https://app.example, not {value!r}")
    for one in given:
        if one != "*" and not ORIGIN.fullmatch(one):
            raise ValueError(
                f"must be SCHEME://HOST or SCHEME://HOST:PORT in lower case, without a path, or *, not {one!r}"
            )
    return tuple(given)


def host_names(value: object) -> tuple[str, ...]:
    """Read host names or addresses without a port, or ``*``."""
    given = _names(value)
    if given is None:
        raise ValueError(f"must be host names with commas between them, such as mq.example, not {value!r}")
    for one in given:
        if one != "*" and not HOST_NAME.fullmatch(one):
            raise ValueError(f"must be host names or addresses without a port, or *, not {one!r}")
    return tuple(given)


def processor_rules(value: object) -> Mapping[str, Chain]:
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else {}
    try:
        return read_chains(value, "")
    except BadInput as error:
        raise ValueError(str(error)) from None


def bridge_rules(value: object) -> tuple[NewBridge, ...]:
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else []
    try:
        return read_all(value, "")
    except BadInput as error:
        raise ValueError(str(error)) from None


def alert_settings(value: object) -> AlertSettings:
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else {}
    try:
        return read_settings(value)
    except BadInput as error:
        raise ValueError(str(error)) from None


def token_rules(value: object) -> tuple[TokenRule, ...]:
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else []
    try:
        return read_rules(value, "")
    except BadInput as error:
        raise ValueError(str(error)) from None


def program_rules(value: object) -> tuple[ProgramRule, ...]:
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else []
    try:
        return read_programs(value, "")
    except BadInput as error:
        raise ValueError(str(error)) from None


def route_rules(value: object) -> tuple[ProgramRoute, ...]:
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else []
    try:
        return read_routes(value, "")
    except BadInput as error:
        raise ValueError(str(error)) from None
