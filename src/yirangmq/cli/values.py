"""Words of the command line to values, and values to words."""

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from yirangmq.core.errors import BadInput, TooLarge
from yirangmq.format.envelope import iso
from yirangmq.format.json_codec import loads


def open_input(name: str, field: str = "file") -> AbstractContextManager[BinaryIO]:
    """A file, or stdin for ``-``; ``field`` is what was to be read, for complaints."""
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror}", field=field) from None


def read_input(name: str, most: int, field: str = "file") -> bytes:
    """The whole of it, up to ``most`` bytes."""
    with open_input(name, field) as stream:
        try:
            text = stream.read(most + 1)
        except OSError as error:
            raise BadInput(f"{name}: {error.strerror}", field=field) from None
    if len(text) > most:
        raise TooLarge(f"{name} has more than {most} bytes", field=field)
    return text


def read_json(name: str, most: int, field: str) -> Any:
    """A file, or stdin, that is one JSON document."""
    text = read_input(name, most, field)
    try:
        return loads(text)
    except BadInput as error:
        raise BadInput(f"{name}: {error}", field=field) from None


def attribute(text: str) -> tuple[str, Any]:
    """``name=value``; the value is JSON if it can be read so, text if not."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadInput(f"{text!r} is not NAME=VALUE", field="--attribute")
    try:
        return name, loads(value.encode())
    except BadInput:
        return name, value


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def moment(milliseconds: int) -> str | None:
    """An instant for people: to the second, in UTC."""
    return brief(iso(milliseconds)) if milliseconds else None


def brief(instant: str) -> str:
    """The same, from its text as programs see it."""
    return instant[:19].replace("T", " ") + "Z"


def span(seconds: float | None) -> str | None:
    """A length of time for people: its two largest units."""
    if seconds is None:
        return None
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {left}s" if minutes else f"{left}s"
