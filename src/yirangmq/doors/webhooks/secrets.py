"""Secrets by name: a file each, in a folder that only the server reads. They never leave it."""

from pathlib import Path

from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotFound

MOST_BYTES = 4096


def read_secret(folder: Path, name: str) -> bytes:
    """The first line of the file, without the spaces around it."""
    path = folder / validation.check_id(name, "secret")
    try:
        with path.open("rb") as file:
            line = file.read(MOST_BYTES).strip().partition(b"\n")[0].strip()
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}", field="secret") from None
    if not line:
        raise BadInput(f"{path} is empty", field="secret")
    return line
