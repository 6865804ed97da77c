"""Folders that must be there before anything is stored in them."""

import contextlib
import errno
from pathlib import Path

from yirangmq.core.errors import StoreError, StoreFull, StoreReadOnly
from yirangmq.format import permissions
from yirangmq.format.synced import sync_folder


def make_folder(folder: Path) -> None:
    """Missing folders, their names on disk before anything is stored in them."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        for parent in reversed(missing):
            with contextlib.suppress(FileExistsError):
                permissions.make_folder(parent)
            sync_folder(parent.parent)
    except OSError as error:
        kind = {errno.ENOSPC: StoreFull, errno.EROFS: StoreReadOnly, errno.EACCES: StoreReadOnly}
        wrong = kind.get(error.errno or 0, StoreError)
        raise wrong(f"the folder {folder} cannot be made: {error.strerror}") from None
