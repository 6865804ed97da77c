"""Staging files of sink batches: ``<query>/<batch>/<stage>.<piece>``.

Implements ``broker.sink_batch_rows.StageStorage``. A piece is written to a temporary file, synced and renamed, so it is
complete and on disk before ``put`` returns. ``put`` of an existing piece replaces it."""

from collections.abc import Callable, Iterator
from pathlib import Path

from yirangmq.core.errors import NotFound, StoreError, StoreFull
from yirangmq.fsio.atomic_file import replace_file, sync_folder
from yirangmq.fsio.disk import FileReadBuffer
from yirangmq.fsio.permissions import make_folders


class StageFiles:
    """Staging area of sink batches (``broker.sink_batch_rows.StageStorage``) in a folder that the first ``put``
    creates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, query: str, batch: int, stage: str, piece: int, data: bytes) -> None:
        """Store a piece durably. A piece with the same key is replaced."""
        folder = self._of(query, batch)
        path = folder / f"{stage}.{piece:06d}"
        try:
            made = not folder.exists()
            make_folders(folder)
            replace_file(path, data)
            if made:
                for above in (folder.parent, self._folder, self._folder.parent):
                    sync_folder(above)
        except OSError as error:
            kind = StoreFull if error.errno in (28, 122) else StoreError
            raise kind(f"{path} cannot be written: {error.strerror or error}; nothing was stored") from None

    def reader(self, query: str, batch: int) -> Callable[[str, int], memoryview]:
        """Return a reader of pieces that reuses its memory: a piece is valid until the next one is read."""
        folder, buffer = self._of(query, batch), FileReadBuffer()

        def read(stage: str, piece: int) -> memoryview:
            path = folder / f"{stage}.{piece:06d}"
            try:
                return buffer.read(path)
            except FileNotFoundError:
                raise _missing(piece, stage, batch) from None
            except OSError as error:
                raise StoreError(f"{path} cannot be read: {error.strerror or error}") from None

        return read

    def check(self, query: str, batch: int, stage: str, piece: int) -> None:
        if not (self._of(query, batch) / f"{stage}.{piece:06d}").exists():
            raise _missing(piece, stage, batch)

    def drop(self, query: str, batch: int) -> None:
        """Delete all stages of a batch, also those of failed tasks."""
        import shutil  # rarely needed, and slow to import

        shutil.rmtree(self._of(query, batch), ignore_errors=True)

    def batches(self) -> Iterator[tuple[str, int, int]]:
        """Yield (query, batch, time of the last write in ms since 1970)."""
        if not self._folder.is_dir():
            return
        for query in self._folder.iterdir():
            for batch in query.iterdir() if query.is_dir() else ():
                if batch.name.isdecimal():
                    yield query.name, int(batch.name), batch.stat().st_mtime_ns // 1_000_000

    def _of(self, query: str, batch: int) -> Path:
        return self._folder / query / f"{batch:016d}"


def _missing(piece: int, stage: str, batch: int) -> NotFound:
    return NotFound(f"piece {piece} of stage {stage!r} of batch {batch} is missing", field="stages")
