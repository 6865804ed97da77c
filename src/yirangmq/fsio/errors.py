"""Translation of ``OSError`` to store errors.

``ENOSPC`` and ``EDQUOT`` become ``StoreFull``; ``EROFS``, ``EACCES`` and ``EPERM`` become ``StoreReadOnly``; any
other becomes ``StoreError``. ``unwritable`` builds the error ``store_read_only`` of every store, with a remedy."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from yirangmq.core.errors import StoreError, StoreFull, StoreReadOnly

ADVICE = (
    "mount its file system read-write, or give this user the right to write there; "
    "status, peek, dlq list, export and check work without"
)


def unwritable(place: object, why: object) -> StoreReadOnly:
    return StoreReadOnly(f"{place} cannot be written: {why}; {ADVICE}")


FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
REFUSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


@contextmanager
def os_errors_translated(root: Path) -> Iterator[None]:
    """Translate an ``OSError`` to a ``StoreError``. Other exceptions pass."""
    try:
        yield
    except OSError as error:
        raise as_store_error(error, root) from error


def as_store_error(error: OSError, root: Path) -> StoreError:
    where = error.filename if isinstance(error.filename, str) else str(root)
    if error.errno in FULL:
        return StoreFull(f"no space left for {root}; free some and try again: nothing was stored")
    if error.errno in REFUSED:
        return unwritable(where, error.strerror)
    return StoreError(f"{where}: {error.strerror or error}")
