"""Input files that a user names: documents, payloads and secrets; ``-`` is stdin. Reading is limited in size."""

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

from yirangmq.core.errors import BadInput, TooLarge


def open_input(name: str, field: str = "file") -> AbstractContextManager[BinaryIO]:
    """Open a file, or stdin for ``-``. ``field`` names the input in errors."""
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror}", field=field) from None


def read_input(name: str, max_bytes: int, field: str = "file") -> bytes:
    """Read a file, or stdin for ``-``, of at most ``max_bytes`` bytes; raise ``TooLarge`` beyond that."""
    with open_input(name, field) as stream:
        try:
            text = stream.read(max_bytes + 1)
        except OSError as error:
            raise BadInput(f"{name}: {error.strerror}", field=field) from None
    if len(text) > max_bytes:
        raise TooLarge(f"{name} has more than {max_bytes} bytes", field=field)
    return text
