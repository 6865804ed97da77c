"""Commit of the files store: write a transaction's changes to disk in an order that survives a power cut.

1. Write contents of new messages, failures and policies to temporary files and sync them. If the batch changes the
   base of the totals, write and sync the intent too (``stores.files.totals``).
2. Rename failure files into place and sync the folders, so that no dead letter is ever without its reason.
3. Rename messages into place: new ones from their temporary files, others from their old name to the new one. A
   message with new content exists under its new name, synced, before the old file is removed.
4. Sync the names: first the folders entered, then the folders left. The commit is durable from here on, and the caller
   gets its answer after it.
5. Update the base of the totals and the index. Blank the contents of finished messages and remove empty folders.

Each message is complete at every moment. After a power cut a batch that was not confirmed may be present in part. On an
error the batch is undone (``stores.files.undo_log``)."""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from yirangmq.core.policy import QueuePolicy
from yirangmq.core.states import State
from yirangmq.fsio.disk import ends_whole, isdir, listdir, read_bytes
from yirangmq.stores.files.index import Index
from yirangmq.stores.files.index_update import Bookkeeping, Done
from yirangmq.stores.files.layout import KEY_FOLDER, Spares, far_folder, folder_number, near_folder, read_key
from yirangmq.stores.files.message_file import Sort, write_envelope, write_failure, write_results
from yirangmq.stores.files.metadata import AHEAD, note_path, write_counter
from yirangmq.stores.files.metadata import FILE as POLICY_FILE
from yirangmq.stores.files.metadata import FOLDER as NOTES
from yirangmq.stores.files.metadata import TEMP as NOTE_TEMP
from yirangmq.stores.files.names import DEPTH, PER_FOLDER, Card
from yirangmq.stores.files.secondary_indexes import fingerprint
from yirangmq.stores.files.timer_index import Calendar
from yirangmq.stores.files.totals import Intent, Move
from yirangmq.stores.files.totals import clear as clear_intent
from yirangmq.stores.files.transaction import FilesTransaction
from yirangmq.stores.files.undo_log import Deeds, Home, quarantine
from yirangmq.stores.files.view import failure_path

TRASH = ".trash"
RESULTS = "results.jsonl"
POLICY_TEMP = "meta/temp/policy.tmp"


class Commit:
    """Commit of one batch. An instance is used once, under the store's lock."""

    def __init__(
        self,
        home: Home,
        index: Index,
        calendar: Calendar,
        spares: Spares,
        work: FilesTransaction,
        *,
        is_short: bool = False,
    ) -> None:
        """``is_short``: the disk is full. Removed contents then free their disk block, which takes longer than blanking
        them."""
        self._is_short = is_short
        self._home = home
        self._root = home.root
        self._index = index
        self._books = Bookkeeping(index, calendar, work)
        self._spares = spares
        self._work = work
        self._pending = work.pending
        self._deeds = Deeds(home)
        self._before, self._new = self._books.before, self._books.new
        self._temp_of: dict[tuple[str, object], str] = {}
        self._spots: dict[int, tuple[str, str]] = {}
        """Folder below the root and file name of each message after the commit, by message number."""
        self._blanked: list[str] = []
        self._replaced: list[tuple[int, str]] = []
        """Message number and path of each file that was replaced by a file with new content."""
        self._temps: list[str] = []
        self._thrown: dict[str, str] = {}
        self._left: dict[str, None] = {}
        self._untils: dict[int, int] = {}
        self.is_unclean = False
        """The batch is durable, but the clean-up after it failed in part."""

    def run(self, hollow: Iterable[str]) -> set[str]:
        """Commit the batch. Raise the disk's error if it fails; the batch is then undone.

        ``hollow``: folders that may have become empty. Return the folders that the next messages still use, to be
        passed to the next commit."""
        pending, last = self._pending, self._work.last
        for seq, card in pending.after.items():
            if card is not None:
                self._spots[seq] = f"{card.message.queue}/{card.folder}", card.name
        self._spares.begin()
        self._index.begin()
        intent = Intent(self._home, self._shares())
        try:
            reserved = self._reserve(last)
            self._books.prepare({seq: folder for seq, (folder, _) in self._spots.items()})
            self._apply(intent)
        except BaseException as error:
            if self._deeds.undo() and intent.withdraw() and not isinstance(error, FileNotFoundError):
                self._books.withdraw()
                self._index.end()
            raise  # the index stays dirty if another program moved files, or if the undo is incomplete
        if intent.fulfil():
            self._books.finish(reserved, Done(self._thrown, self._untils))
        try:
            return self._clean(hollow)
        except OSError:  # the batch is durable, so the commit succeeds; the next transaction cleans up
            self.is_unclean = True
            return set()

    @property
    def refused_undo(self) -> Deeds | None:
        """The undo log of a failed batch if its undo failed too; None if there is nothing left to undo."""
        return None if self._deeds.is_undone else self._deeds

    # -- before any change on disk --------------------------------------------------------------------------------

    def _reserve(self, last: int) -> int:
        """Keep the counter file ahead of the numbers in use, so that no number is assigned twice after a loss."""
        if last <= self._index.reserved:
            return self._index.reserved
        reserved = last + AHEAD
        write_counter(self._home, reserved)
        return reserved

    def _shares(self) -> dict[str, list[Move]]:
        """Return, per queue, the messages that change the base of its totals. Publish and ack change none."""
        found: defaultdict[str, list[Move]] = defaultdict(list)
        for (queue, seq), share in self._pending.shares.items():
            if any(share):
                paths = _below_root(self._before.get(seq)), _below_root(self._pending.after.get(seq))
                found[queue].append(Move(*paths, share))
        return found

    # -- file operations ------------------------------------------------------------------------------------------

    def _apply(self, intent: Intent) -> None:
        if self._pending.deleted:  # otherwise an earlier batch's intent would apply to a new queue of the same name
            clear_intent(self._home)
        for queue in sorted(self._pending.deleted):
            self._throw_away(queue)
        for queue in sorted(self._pending.made | set(self._pending.deltas)):
            self._make_queue(queue)
        if self._pending.notes:
            self._deeds.folder(f"{self._root}/{NOTES}/{NOTE_TEMP}")
        for folder in {folder for folder, _ in self._spots.values()}:
            self._deeds.folder(f"{self._root}/{folder}")
        self._write_contents()
        intent.write()
        self._name_failures()
        self._set_aside()
        self._move()
        self._write_keys()
        self._name_policies()
        self._remove_replaced()
        self._forget()
        self._deeds.sync_names()

    def _throw_away(self, queue: str) -> None:
        """Move a deleted queue to the trash with one rename. Its content is removed after the commit."""
        folder = f"{self._root}/{queue}"
        if isdir(folder):
            target = f"{self._root}/{TRASH}/{queue}~{self._index.generation}"
            self._deeds.rename(folder, target)
            self._thrown[queue] = target
            self._spares.forget(queue)

    def _make_queue(self, queue: str) -> None:
        folder = f"{self._root}/{queue}"
        if not isdir(f"{folder}/inbox"):
            for name in ("processing", "delayed", "dlq", "archive", "config", "meta", "inbox"):
                self._deeds.folder(f"{folder}/{name}")
        self._deeds.folder(f"{folder}/meta/temp")

    def _temp(self, queue: str, name: object) -> str:
        """Return the temporary path of a content: a spare file if there is one, else a new file."""
        temp = self._temp_of.get((queue, name))
        if temp is None:
            temp = self._spares.take(queue) or f"{self._root}/{queue}/meta/temp/{name}.tmp"
            self._temp_of[queue, name] = temp
        return temp

    def _write_contents(self) -> None:
        pending = self._pending
        files: list[tuple[str, bytes]] = []
        for seq in [*self._new, *filter(self._has_new_content, pending.rewritten)]:
            if seq not in pending.dropped:
                envelope = pending.envelopes[seq]
                files.append((self._temp(envelope.queue, seq), write_envelope(envelope)))
        for seq, failure in pending.failures.items():
            card = pending.after[seq]
            if card is not None:
                message = card.message
                sort = Sort(message.id, message.queue, self._dead_letters(message.queue))
                files.append((self._temp(message.queue, f"{seq}.failure"), write_failure(failure, sort)))
        for queue, text in pending.policies.items():
            if text is not None:
                files.append((f"{self._root}/{queue}/{POLICY_TEMP}", text.encode()))
        for key, text in pending.notes.items():
            if text is not None:
                files.append((self._note_temp(key), text.encode()))
        foreign = [path for seq, path in pending.dropped.items() if pending.after[seq] is not None]
        self._deeds.write_files(files, foreign)

    def _has_new_content(self, seq: int) -> bool:
        """Return True if the message was rewritten and still has a content."""
        card = self._pending.after.get(seq)
        return seq in self._pending.rewritten and card is not None and card.message.body

    def _dead_letters(self, queue: str) -> str:
        policy: QueuePolicy = self._work.policy(queue)
        return policy.dlq.queue

    def _name_failures(self) -> None:
        renamed = False
        for seq in self._pending.failures:
            card = self._pending.after[seq]
            if card is not None:
                source = self._temp(card.message.queue, f"{seq}.failure")
                target = failure_path(self._root, card.message, card.failure)
                self._deeds.move(source, None, target, os.path.dirname(target))
                renamed = True
        if renamed:
            self._deeds.sync_names()

    def _set_aside(self) -> None:
        for queue, path, reason in self._pending.rejects:
            quarantine(self._root, self._deeds, queue, path, reason)

    def _move(self) -> None:
        acked: defaultdict[str, list[Card]] = defaultdict(list)
        for seq, card in self._pending.after.items():
            if card is None:
                continue
            before = self._before.get(seq)
            folder, name = self._spots[seq]
            target = f"{self._root}/{folder}/{name}"
            self._move_one(seq, before, target, f"{self._root}/{folder}")
            if is_kept(card) and not (before and before.message.state is State.DONE):
                acked[os.path.dirname(folder)].append(card)
            if not card.message.body and (before is None or before.message.body):
                self._blanked.append(target)
        for day, cards in acked.items():
            self._append_results(f"{self._root}/{day}/{RESULTS}", cards)

    def _move_one(self, seq: int, before: Card | None, target: str, entered: str) -> None:
        pending, deeds = self._pending, self._deeds
        if before is not None:
            left = f"{self._root}/{before.message.queue}/{before.folder}"
            source = f"{left}/{before.name}"
            if self._has_new_content(seq):
                self._replace(seq, source, target, entered)
                self._left[left] = None
            elif source != target:
                deeds.move(source, left, target, entered)
                self._left[left] = None
        elif seq in pending.dropped:
            deeds.rename(pending.dropped[seq], target)
        else:
            deeds.move(self._temp(pending.envelopes[seq].queue, seq), None, target, entered)

    def _replace(self, seq: int, source: str, target: str, entered: str) -> None:
        temp = self._temp(self._pending.envelopes[seq].queue, seq)
        if source == target:
            self._deeds.replace(temp, target, read_bytes(target))
        else:
            self._deeds.move(temp, None, target, entered)
            self._replaced.append((seq, source))

    def _remove_replaced(self) -> None:
        """Sync the new files, then rename the old ones to temporary names, from which an undo restores them."""
        if self._replaced:
            self._deeds.sync_names()
        for seq, path in self._replaced:
            queue = self._before[seq].message.queue
            self._put_away(path, f"{self._root}/{queue}/meta/temp/{seq}.old.tmp")

    def _put_away(self, path: str, temp: str) -> None:
        """Rename a file to a temporary name; it is removed after the commit."""
        self._deeds.rename(path, temp)
        self._temps.append(temp)

    def _append_results(self, path: str, cards: list[Card]) -> None:
        lines = write_results([card.message for card in cards])
        self._deeds.append(path, lines if ends_whole(path) else b"\n" + lines)

    def _path(self, card: Card) -> str:
        return f"{self._root}/{card.message.queue}/{card.folder}/{card.name}"

    def _name_policies(self) -> None:
        for queue, text in self._pending.policies.items():
            self._name_text(text, f"{self._root}/{queue}/{POLICY_TEMP}", f"{self._root}/{queue}/{POLICY_FILE}")
        for key, text in self._pending.notes.items():
            self._name_text(text, self._note_temp(key), note_path(self._root, key))

    def _name_text(self, text: str | None, temp: str, target: str) -> None:
        old = read_bytes(target)
        if text is not None:
            self._deeds.replace(temp, target, old)
        elif old is not None:
            self._put_away(target, temp)

    def _note_temp(self, key: str) -> str:
        return f"{self._root}/{NOTES}/{NOTE_TEMP}/{fingerprint(key).hex()}.tmp"

    def _write_keys(self) -> None:
        pending = self._pending
        for queue, file in pending.taken_keys.values():
            path = f"{self._root}/{queue}/{file.path}"
            self._put_away(path, f"{self._root}/{queue}/meta/temp/{os.path.basename(path)}.tmp")
        for (queue, _), file in pending.keys.items():
            outlived = file.outlived or pending.after.get(file.key.seq) is None
            self._deeds.create(f"{self._root}/{queue}/{file._replace(outlived=outlived).path}")
            if not outlived and not file.is_far:
                self._untils[file.key.seq] = file.key.until
        for queue, file in pending.old_keys.values():
            self._deeds.unlink(f"{self._root}/{queue}/{file.path}")
        for queue, file in [*pending.taken_keys.values(), *pending.old_keys.values()]:
            self._left[os.path.dirname(f"{self._root}/{queue}/{file.path}")] = None

    def _forget(self) -> None:
        """Remove the files of forgotten messages. This is the last step, because a removal cannot be undone."""
        rejected = {reject.path for reject in self._pending.rejects}
        forgotten = [seq for seq, card in self._pending.after.items() if card is None and seq in self._before]
        records = self._index.records(forgotten)
        self._outlive({far_folder(seq) for seq in forgotten}, forgotten)
        keyed = [seq for seq in forgotten if self._before[seq].keyed and seq in records]
        self._outlive({near_folder(records[seq].until) for seq in keyed}, keyed)
        room = {
            queue: 0 if self._is_short else self._spares.room(queue)
            for queue in {self._before[seq].message.queue for seq in forgotten}
        }
        for seq in forgotten:
            before = self._before[seq]
            path = self._path(before)
            self._left[os.path.dirname(path)] = None
            if path not in rejected:
                room[before.message.queue] -= 1
                self._put_by(before, path, keep=room[before.message.queue] >= 0)
            if before.failure or before.message.leases:
                for which in ("a", "b"):
                    failure = failure_path(self._root, before.message, which)
                    self._deeds.unlink(failure)
                    self._left[os.path.dirname(failure)] = None
        for path in self._pending.duplicates:
            self._deeds.unlink(path)

    def _put_by(self, before: Card, path: str, *, keep: bool) -> None:
        """Keep the file of a forgotten message as a spare, to be blanked and reused; without ``keep`` remove it."""
        if not keep:
            self._deeds.unlink(path)
            return
        spare = self._spares.path(before.message.queue, before.message.seq)
        self._deeds.move(path, os.path.dirname(path), spare, os.path.dirname(spare))
        if before.message.body:
            self._blanked.append(spare)

    def _outlive(self, folders: Iterable[str], forgotten: Sequence[int]) -> None:
        """Set the mark ``.f`` in the names of the forgotten messages' deduplication keys: they outlive the message."""
        for queue in {self._before[seq].message.queue for seq in forgotten}:
            mine = {seq for seq in forgotten if self._before[seq].message.queue == queue}
            for folder in folders:
                for file in filter(None, map(read_key, listdir(f"{self._root}/{queue}/{KEY_FOLDER}/{folder}"))):
                    if file.key.seq in mine and not file.outlived and file.key not in self._pending.old_keys:
                        path = f"{self._root}/{queue}/{file.path}"
                        self._deeds.rename(path, f"{self._root}/{queue}/{file._replace(outlived=True).path}")

    # -- after the commit -----------------------------------------------------------------------------------------

    def _clean(self, hollow: Iterable[str]) -> set[str]:
        gone = [self._deeds.blank(path, wholly=self._is_short) for path in self._blanked]
        gone += [self._deeds.discard(path) for path in (*self._temps, *self._deeds.copies)]
        gone += [self._deeds.discard_tree(path) for path in self._thrown.values()]
        if not all(gone):
            self._index.doubt()  # the recovery before the next transaction cleans up
        newest = self._work.last // PER_FOLDER
        in_use = set()
        for folder in {*self._left, *hollow}:
            if folder_number(folder) >= newest:
                in_use.add(folder)
            else:
                self._remove_folder(folder)
        return in_use

    def _remove_folder(self, folder: str) -> None:
        """Remove an empty folder, and each parent that becomes empty, up to the folder of the state.

        A past day of the archive that holds nothing but ``results.jsonl`` is removed with that file."""
        top = os.path.relpath(folder, self._root).split("/")[1]
        for _ in range(DEPTH.get(top, 1)):
            parent = os.path.dirname(folder)
            if not self._deeds.remove_empty(folder):
                return
            if top == "archive" and listdir(parent) == [RESULTS] and os.path.basename(parent) < _day(self._work.now):
                self._deeds.discard(f"{parent}/{RESULTS}")
            folder = parent


def is_kept(card: Card) -> bool:
    """Return True for a done message with content, which is kept in ``archive``."""
    return card.message.state is State.DONE and card.message.body


def _below_root(card: Card | None) -> str:
    return f"{card.message.queue}/{card.folder}/{card.name}" if card else ""


def _day(now: int | None) -> str:
    moment = datetime.now(UTC) if now is None else datetime.fromtimestamp(now / 1000, UTC)
    return moment.strftime("%Y-%m-%d")
