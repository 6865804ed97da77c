"""Deduplication in the files store: look up the holder of a deduplication key, assign and revoke keys.

A new message and its key are atomic: after a power cut neither exists without the other. A key assigned to a message
that is already on disk is independent of it."""

from bisect import bisect_left
from collections.abc import Mapping

from yirangmq.core.message import Envelope
from yirangmq.fsio.disk import listdir
from yirangmq.stores.files.index import Index, KeyRecord, key_print
from yirangmq.stores.files.layout import KEY_BUCKET_MS, KEY_FOLDER, KeyFile, folder_of, name_prefix, read_key
from yirangmq.stores.files.metadata import Rotation
from yirangmq.stores.files.names import FileRow
from yirangmq.stores.files.overlay import Overlay, PendingChanges
from yirangmq.stores.files.view import DiskView


class DeduplicationKeys:
    """Deduplication keys as one transaction sees them. One instance per transaction."""

    def __init__(
        self, root: str, index: Index, view: DiskView, pending: PendingChanges, overlay: Overlay, rotation: Rotation
    ) -> None:
        self._rotation = rotation
        self._root = root
        self._index = index
        self._view = view
        self._pending = pending
        self._overlay = overlay
        self._listed: dict[str, list[str]] = {}

    def holder(self, queue: str, key: str, now: int) -> KeyFile | None:
        pending = self._pending.keys.get((queue, key))
        if pending is not None:
            return pending if pending.key.until > now else None
        if queue in self._pending.deleted:
            return None
        for entry in self._index.keys_of(queue, [key]).get(key, []):
            if entry.until > now:
                file = self._key_file(queue, entry)
                if file is not None:
                    return file
        return None

    def _key_file(self, queue: str, key: KeyRecord) -> KeyFile | None:
        """Return the file of a key on disk; None if there is none, or if this transaction removes it."""
        if key in self._pending.expired_keys or key in self._pending.revoked_keys:
            return None
        names, begin = self._names(queue, folder_of(key)), name_prefix(key)
        files = (read_key(name) for name in names[bisect_left(names, begin) :] if name.startswith(begin))
        return next((file for file in files if file is not None), None)

    def _names(self, queue: str, folder: str) -> list[str]:
        """Return the sorted names in a key folder. The folder cannot change during the transaction, so it is listed
        once."""
        path = f"{self._root}/{queue}/{KEY_FOLDER}/{folder}"
        names = self._listed.get(path)
        if names is None:
            names = self._listed[path] = sorted(listdir(path))
        return names

    # -- assign and revoke ----------------------------------------------------------------------------------------

    def add(self, envelope: Envelope, seq: int, until: int) -> None:
        """Assign to a new message the key in its envelope."""
        if envelope.dedup_key is not None:
            key = KeyRecord(key_print(envelope.queue, envelope.dedup_key), seq, until)
            self._pending.keys[envelope.queue, envelope.dedup_key] = KeyFile(key, envelope.id)

    def hold(self, queue: str, holders: Mapping[str, tuple[int, str]], until: int) -> None:
        for key, (seq, id) in holders.items():
            file = KeyFile(KeyRecord(key_print(queue, key), seq, until), id)
            if not self.revoke(queue, key, except_key=file.key):
                self._assign_one(queue, key, file)

    def _assign_one(self, queue: str, key: str, file: KeyFile) -> None:
        """Assign a key to a message. The key of a new message is committed atomically with it; the key of a message on
        disk is independent and gets the mark ``.f``."""
        row = self._pending.after.get(file.key.seq)
        is_new = row is not None and _is_of(row, queue, file) and self._pending.before[file.key.seq] is None
        if row is not None and is_new and not row.keyed and not file.is_endless:
            self._pending.put(None, row._replace(keyed=True))
        self._pending.keys[queue, key] = file._replace(outlived=not is_new)

    def revoke(self, queue: str, key: str, except_key: KeyRecord | None = None) -> bool:
        """Revoke a key from its holder. Return True if ``except_key`` is among the holders on disk or pending; that one
        keeps the key."""
        given = self._pending.keys.get((queue, key))
        if given is not None and given.key == except_key:
            return True
        if given is not None:
            del self._pending.keys[queue, key]
            self._clear_key_mark(queue, given)
        is_kept = False
        entries = [] if queue in self._pending.deleted else self._index.keys_of(queue, [key]).get(key, [])
        for entry in entries:
            file = self._key_file(queue, entry)
            if file is not None and entry == except_key:
                is_kept = True
            elif file is not None:
                self._pending.revoked_keys[entry] = (queue, file)
                self._clear_key_mark(queue, file)
        return is_kept

    def _clear_key_mark(self, queue: str, file: KeyFile) -> None:
        """Remove the key mark from a message's name. Otherwise recovery would restore the key after a power cut."""
        row = None if file.is_endless else self._overlay.find([file.key.seq]).get(file.key.seq)
        if row is not None and row.keyed and _is_of(row, queue, file):
            self._pending.put(row, row._replace(keyed=False))

    # -- time -----------------------------------------------------------------------------------------------------

    def forget(self, now: int, limit: int) -> int:
        """Remove expired keys in some of the queues, in rotation, up to ``limit``. Return their number.

        An expired key that is still on disk has no effect."""
        old, taken = self._pending.expired_keys, self._pending.revoked_keys
        count = 0
        for queue in self._rotation.next("keys", self._view.queues()):
            folders = [] if queue in self._pending.deleted else self._view.folders(f"{queue}/{KEY_FOLDER}")
            for folder in filter(str.isdecimal, folders):
                if count >= limit or int(folder) > now // KEY_BUCKET_MS:
                    break
                for file in filter(None, map(read_key, self._names(queue, folder))):
                    if file.key.until <= now and file.key not in old and file.key not in taken and count < limit:
                        old[file.key] = (queue, file)
                        count += 1
        return count


def _is_of(row: FileRow, queue: str, file: KeyFile) -> bool:
    """Return True if a key belongs to this message: ``hold`` accepts any id for a holder, so the id is compared."""
    return row.message.id == file.id and row.message.queue == queue
