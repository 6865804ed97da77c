"""A subscriber's own cursor in a file of its own: written whole, synced and renamed, so that a power cut leaves the old
one or the new one. Knows: the file. Does not know: feeds."""

from pathlib import Path
from typing import NamedTuple

from yirangmq.core.errors import BadInput, StoreDamaged, StoreError
from yirangmq.format.json_codec import dumps, loads
from yirangmq.fsio.atomic_file import replace_file
from yirangmq.fsio.permissions import OWNER


class Place(NamedTuple):
    """Everything up to ``sequence`` of this epoch is done with."""

    epoch: str
    sequence: int


class CursorFile:
    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()

    def read(self) -> Place | None:
        """None: it has never been written."""
        try:
            document = loads(self._path.read_bytes())
            epoch, sequence = document["epoch"], document["sequence"]
            if not isinstance(epoch, str) or isinstance(sequence, bool) or not isinstance(sequence, int):
                raise BadInput("an epoch and a sequence belong here")
            return Place(epoch, sequence)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error.strerror or error}") from None
        except (BadInput, KeyError, TypeError) as error:
            raise StoreDamaged(f"{self._path} holds no cursor: {error}") from None

    def write(self, place: Place) -> None:
        """It is on disk when this returns."""
        try:
            replace_file(self._path, dumps(place._asdict()) + b"\n", OWNER)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error.strerror or error}") from None
