"""Deduplication keys as a transaction sees them: who holds which, given and taken (files_keys.py has the files).

A new message and its key stand and fall together: after a power cut neither is left without the other. A key that is
given to a message on disk stands by itself. Knows: keys. Does not know: why they are asked for."""

from bisect import bisect_left
from collections.abc import Mapping

from yirangmq.core.message import Envelope
from yirangmq.format.filenames import Card
from yirangmq.fsio.disk import listdir
from yirangmq.stores.files_entries import Key, key_print
from yirangmq.stores.files_index import Index
from yirangmq.stores.files_keys import KEY_FOLDER, STRETCH_MS, KeyFile, beginning, folder_of, read_key
from yirangmq.stores.files_pending import Pending
from yirangmq.stores.files_queues import Rotation
from yirangmq.stores.files_sight import Sight
from yirangmq.stores.files_view import View


class Keyring:
    """One per transaction."""

    def __init__(self, root: str, index: Index, view: View, pending: Pending, sight: Sight, rotation: Rotation) -> None:
        self._rotation = rotation
        self._root = root
        self._index = index
        self._view = view
        self._pending = pending
        self._sight = sight
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

    def _key_file(self, queue: str, key: Key) -> KeyFile | None:
        """The file of a key on disk; None: it is gone, or will be."""
        if key in self._pending.old_keys or key in self._pending.taken_keys:
            return None
        names, begin = self._names(queue, folder_of(key)), beginning(key)
        files = (read_key(name) for name in names[bisect_left(names, begin) :] if name.startswith(begin))
        return next((file for file in files if file is not None), None)

    def _names(self, queue: str, folder: str) -> list[str]:
        """In order. Nothing changes there while the transaction is under way."""
        path = f"{self._root}/{queue}/{KEY_FOLDER}/{folder}"
        names = self._listed.get(path)
        if names is None:
            names = self._listed[path] = sorted(listdir(path))
        return names

    # -- giving and taking ----------------------------------------------------------------------------------------

    def add(self, envelope: Envelope, seq: int, until: int) -> None:
        """The key that a new message came with."""
        if envelope.dedup_key is not None:
            key = Key(key_print(envelope.queue, envelope.dedup_key), seq, until)
            self._pending.keys[envelope.queue, envelope.dedup_key] = KeyFile(key, envelope.id)

    def hold(self, queue: str, holders: Mapping[str, tuple[int, str]], until: int) -> None:
        for key, (seq, id) in holders.items():
            file = KeyFile(Key(key_print(queue, key), seq, until), id)
            if not self.take(queue, key, besides=file.key):
                self._give(queue, key, file)

    def _give(self, queue: str, key: str, file: KeyFile) -> None:
        """A new message and its key stand and fall together; one that is on disk already has it for itself."""
        card = self._pending.after.get(file.key.seq)
        is_new = card is not None and _is_of(card, queue, file) and self._pending.before[file.key.seq] is None
        if card is not None and is_new and not card.keyed and not file.is_far:
            self._pending.put(None, card._replace(keyed=True))
        self._pending.keys[queue, key] = file._replace(outlived=not is_new)

    def take(self, queue: str, key: str, besides: Key | None = None) -> bool:
        """From whoever holds it; True: the holder is ``besides``, who keeps it."""
        given = self._pending.keys.get((queue, key))
        if given is not None and given.key == besides:
            return True
        if given is not None:
            del self._pending.keys[queue, key]
            self._unkey(queue, given)
        is_kept = False
        entries = [] if queue in self._pending.deleted else self._index.keys_of(queue, [key]).get(key, [])
        for entry in entries:
            file = self._key_file(queue, entry)
            if file is not None and entry == besides:
                is_kept = True
            elif file is not None:
                self._pending.taken_keys[entry] = (queue, file)
                self._unkey(queue, file)
        return is_kept

    def _unkey(self, queue: str, file: KeyFile) -> None:
        """Its name must not say that it has a key, or a lost one would be looked for after a power cut."""
        card = None if file.is_far else self._sight.find([file.key.seq]).get(file.key.seq)
        if card is not None and card.keyed and _is_of(card, queue, file):
            self._pending.put(card, card._replace(keyed=False))

    # -- time -----------------------------------------------------------------------------------------------------

    def forget(self, now: int, limit: int) -> int:
        """Those whose window is over, in some of the queues in turn; how many. Nobody is refused for an old one."""
        old, taken = self._pending.old_keys, self._pending.taken_keys
        count = 0
        for queue in self._rotation.next("keys", self._view.queues()):
            folders = [] if queue in self._pending.deleted else self._view.folders(f"{queue}/{KEY_FOLDER}")
            for folder in filter(str.isdecimal, folders):
                if count >= limit or int(folder) > now // STRETCH_MS:
                    break
                for file in filter(None, map(read_key, self._names(queue, folder))):
                    if file.key.until <= now and file.key not in old and file.key not in taken and count < limit:
                        old[file.key] = (queue, file)
                        count += 1
        return count


def _is_of(card: Card, queue: str, file: KeyFile) -> bool:
    """Whether a key is this message's: who gives one may call its holder what they like."""
    return card.message.id == file.id and card.message.queue == queue
