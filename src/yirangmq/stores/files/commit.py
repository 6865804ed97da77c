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
from yirangmq.fsio.disk import ends_with_newline, isdir, listdir, read_bytes
from yirangmq.stores.files.index import Index
from yirangmq.stores.files.index_update import CommitFacts, IndexUpdate
from yirangmq.stores.files.layout import KEY_FOLDER, SpareFiles, endless_folder, expiry_folder, folder_number, read_key
from yirangmq.stores.files.message_file import FailureOrigin, write_envelope, write_failure, write_results
from yirangmq.stores.files.metadata import FILE as POLICY_FILE
from yirangmq.stores.files.metadata import FOLDER as NOTES
from yirangmq.stores.files.metadata import NUMBERS_AHEAD, note_path, write_counter
from yirangmq.stores.files.metadata import TEMP as NOTE_TEMP
from yirangmq.stores.files.names import DEPTH, PER_FOLDER, FileRow
from yirangmq.stores.files.secondary_indexes import fingerprint
from yirangmq.stores.files.timer_index import TimerIndex
from yirangmq.stores.files.totals import MessageMove, TotalsIntent
from yirangmq.stores.files.totals import clear as clear_intent
from yirangmq.stores.files.transaction import FilesTransaction
from yirangmq.stores.files.undo_log import FileBatch, StoreRoot, quarantine
from yirangmq.stores.files.view import failure_path

TRASH = ".trash"
RESULTS = "results.jsonl"
POLICY_TEMP = "meta/temp/policy.tmp"


class FilesCommit:
    """Commit of one batch. An instance is used once, under the store's lock."""

    def __init__(
        self,
        store_root: StoreRoot,
        index: Index,
        timer_index: TimerIndex,
        spares: SpareFiles,
        transaction: FilesTransaction,
        *,
        is_short: bool = False,
    ) -> None:
        """``is_short``: the disk is full. Removed contents then free their disk block, which takes longer than blanking
        them."""
        self._is_short = is_short
        self._store_root = store_root
        self._root = store_root.root
        self._index = index
        self._index_update = IndexUpdate(index, timer_index, transaction)
        self._spares = spares
        self._transaction = transaction
        self._pending = transaction.pending
        self._batch = FileBatch(store_root)
        self._before, self._new = self._index_update.before, self._index_update.new
        self._temp_of: dict[tuple[str, object], str] = {}
        self._new_paths: dict[int, tuple[str, str]] = {}
        """Folder below the root and file name of each message after the commit, by message number."""
        self._blanked: list[str] = []
        self._replaced: list[tuple[int, str]] = []
        """Message number and path of each file that was replaced by a file with new content."""
        self._temps: list[str] = []
        self._trashed: dict[str, str] = {}
        self._left: dict[str, None] = {}
        self._untils: dict[int, int] = {}
        self.needs_cleanup = False
        """The batch is durable, but the clean-up after it failed in part."""

    def run(self, empty_folders: Iterable[str]) -> set[str]:
        """Commit the batch. Raise the disk's error if it fails; the batch is then undone.

        ``empty_folders``: folders that may have become empty. Return the folders that the next messages still use, to
        be passed to the next commit."""
        pending, last = self._pending, self._transaction.last
        for seq, row in pending.after.items():
            if row is not None:
                self._new_paths[seq] = f"{row.message.queue}/{row.folder}", row.name
        self._spares.begin()
        self._index.begin()
        intent = TotalsIntent(self._store_root, self._shares())
        try:
            reserved = self._reserve(last)
            self._index_update.prepare({seq: folder for seq, (folder, _) in self._new_paths.items()})
            self._apply(intent)
        except BaseException as error:
            if self._batch.undo() and intent.withdraw() and not isinstance(error, FileNotFoundError):
                self._index_update.withdraw()
                self._index.end()
            raise  # the index stays dirty if another program moved files, or if the undo is incomplete
        if intent.complete():
            self._index_update.finish(reserved, CommitFacts(self._trashed, self._untils))
        try:
            return self._clean(empty_folders)
        except OSError:  # the batch is durable, so the commit succeeds; the next transaction cleans up
            self.needs_cleanup = True
            return set()

    @property
    def failed_undo(self) -> FileBatch | None:
        """The undo log of a failed batch if its undo failed too; None if there is nothing left to undo."""
        return None if self._batch.is_undone else self._batch

    # -- before any change on disk --------------------------------------------------------------------------------

    def _reserve(self, last: int) -> int:
        """Keep the counter file ahead of the numbers in use, so that no number is assigned twice after a loss."""
        if last <= self._index.reserved:
            return self._index.reserved
        reserved = last + NUMBERS_AHEAD
        write_counter(self._store_root, reserved)
        return reserved

    def _shares(self) -> dict[str, list[MessageMove]]:
        """Return, per queue, the messages that change the base of its totals. Publish and ack change none."""
        found: defaultdict[str, list[MessageMove]] = defaultdict(list)
        for (queue, seq), share in self._pending.shares.items():
            if any(share):
                paths = _below_root(self._before.get(seq)), _below_root(self._pending.after.get(seq))
                found[queue].append(MessageMove(*paths, share))
        return found

    # -- file operations ------------------------------------------------------------------------------------------

    def _apply(self, intent: TotalsIntent) -> None:
        if self._pending.deleted:  # otherwise an earlier batch's intent would apply to a new queue of the same name
            clear_intent(self._store_root)
        for queue in sorted(self._pending.deleted):
            self._move_to_trash(queue)
        for queue in sorted(self._pending.created_queues | set(self._pending.deltas)):
            self._make_queue(queue)
        if self._pending.notes:
            self._batch.folder(f"{self._root}/{NOTES}/{NOTE_TEMP}")
        for folder in {folder for folder, _ in self._new_paths.values()}:
            self._batch.folder(f"{self._root}/{folder}")
        self._write_contents()
        intent.write()
        self._name_failures()
        self._quarantine_rejected()
        self._move()
        self._write_keys()
        self._name_policies()
        self._remove_replaced()
        self._forget()
        self._batch.sync_names()

    def _move_to_trash(self, queue: str) -> None:
        """Move a deleted queue to the trash with one rename. Its content is removed after the commit."""
        folder = f"{self._root}/{queue}"
        if isdir(folder):
            target = f"{self._root}/{TRASH}/{queue}~{self._index.generation}"
            self._batch.rename(folder, target)
            self._trashed[queue] = target
            self._spares.forget(queue)

    def _make_queue(self, queue: str) -> None:
        folder = f"{self._root}/{queue}"
        if not isdir(f"{folder}/inbox"):
            for name in ("processing", "delayed", "dlq", "archive", "config", "meta", "inbox"):
                self._batch.folder(f"{folder}/{name}")
        self._batch.folder(f"{folder}/meta/temp")

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
            row = pending.after[seq]
            if row is not None:
                message = row.message
                sort = FailureOrigin(message.id, message.queue, self._dead_letters(message.queue))
                files.append((self._temp(message.queue, f"{seq}.failure"), write_failure(failure, sort)))
        for queue, text in pending.policies.items():
            if text is not None:
                files.append((f"{self._root}/{queue}/{POLICY_TEMP}", text.encode()))
        for key, text in pending.notes.items():
            if text is not None:
                files.append((self._note_temp(key), text.encode()))
        foreign = [path for seq, path in pending.dropped.items() if pending.after[seq] is not None]
        self._batch.write_files(files, foreign)

    def _has_new_content(self, seq: int) -> bool:
        """Return True if the message was rewritten and still has a content."""
        row = self._pending.after.get(seq)
        return seq in self._pending.rewritten and row is not None and row.message.body

    def _dead_letters(self, queue: str) -> str:
        policy: QueuePolicy = self._transaction.policy(queue)
        return policy.dlq.queue

    def _name_failures(self) -> None:
        renamed = False
        for seq in self._pending.failures:
            row = self._pending.after[seq]
            if row is not None:
                source = self._temp(row.message.queue, f"{seq}.failure")
                target = failure_path(self._root, row.message, row.failure)
                self._batch.move(source, None, target, os.path.dirname(target))
                renamed = True
        if renamed:
            self._batch.sync_names()

    def _quarantine_rejected(self) -> None:
        for queue, path, reason in self._pending.rejects:
            quarantine(self._root, self._batch, queue, path, reason)

    def _move(self) -> None:
        acked: defaultdict[str, list[FileRow]] = defaultdict(list)
        for seq, row in self._pending.after.items():
            if row is None:
                continue
            before = self._before.get(seq)
            folder, name = self._new_paths[seq]
            target = f"{self._root}/{folder}/{name}"
            self._move_one(seq, before, target, f"{self._root}/{folder}")
            if is_kept(row) and not (before and before.message.state is State.DONE):
                acked[os.path.dirname(folder)].append(row)
            if not row.message.body and (before is None or before.message.body):
                self._blanked.append(target)
        for day, rows in acked.items():
            self._append_results(f"{self._root}/{day}/{RESULTS}", rows)

    def _move_one(self, seq: int, before: FileRow | None, target: str, entered: str) -> None:
        pending, batch = self._pending, self._batch
        if before is not None:
            left = f"{self._root}/{before.message.queue}/{before.folder}"
            source = f"{left}/{before.name}"
            if self._has_new_content(seq):
                self._replace(seq, source, target, entered)
                self._left[left] = None
            elif source != target:
                batch.move(source, left, target, entered)
                self._left[left] = None
        elif seq in pending.dropped:
            batch.rename(pending.dropped[seq], target)
        else:
            batch.move(self._temp(pending.envelopes[seq].queue, seq), None, target, entered)

    def _replace(self, seq: int, source: str, target: str, entered: str) -> None:
        temp = self._temp(self._pending.envelopes[seq].queue, seq)
        if source == target:
            self._batch.replace(temp, target, read_bytes(target))
        else:
            self._batch.move(temp, None, target, entered)
            self._replaced.append((seq, source))

    def _remove_replaced(self) -> None:
        """Sync the new files, then rename the old ones to temporary names, from which an undo restores them."""
        if self._replaced:
            self._batch.sync_names()
        for seq, path in self._replaced:
            queue = self._before[seq].message.queue
            self._rename_to_temp(path, f"{self._root}/{queue}/meta/temp/{seq}.old.tmp")

    def _rename_to_temp(self, path: str, temp: str) -> None:
        """Rename a file to a temporary name; it is removed after the commit."""
        self._batch.rename(path, temp)
        self._temps.append(temp)

    def _append_results(self, path: str, rows: list[FileRow]) -> None:
        lines = write_results([row.message for row in rows])
        self._batch.append(path, lines if ends_with_newline(path) else b"\n" + lines)

    def _path(self, row: FileRow) -> str:
        return f"{self._root}/{row.message.queue}/{row.folder}/{row.name}"

    def _name_policies(self) -> None:
        for queue, text in self._pending.policies.items():
            self._name_text(text, f"{self._root}/{queue}/{POLICY_TEMP}", f"{self._root}/{queue}/{POLICY_FILE}")
        for key, text in self._pending.notes.items():
            self._name_text(text, self._note_temp(key), note_path(self._root, key))

    def _name_text(self, text: str | None, temp: str, target: str) -> None:
        old = read_bytes(target)
        if text is not None:
            self._batch.replace(temp, target, old)
        elif old is not None:
            self._rename_to_temp(target, temp)

    def _note_temp(self, key: str) -> str:
        return f"{self._root}/{NOTES}/{NOTE_TEMP}/{fingerprint(key).hex()}.tmp"

    def _write_keys(self) -> None:
        pending = self._pending
        for queue, file in pending.revoked_keys.values():
            path = f"{self._root}/{queue}/{file.path}"
            self._rename_to_temp(path, f"{self._root}/{queue}/meta/temp/{os.path.basename(path)}.tmp")
        for (queue, _), file in pending.keys.items():
            outlived = file.outlived or pending.after.get(file.key.seq) is None
            self._batch.create(f"{self._root}/{queue}/{file._replace(outlived=outlived).path}")
            if not outlived and not file.is_endless:
                self._untils[file.key.seq] = file.key.until
        for queue, file in pending.expired_keys.values():
            self._batch.unlink(f"{self._root}/{queue}/{file.path}")
        for queue, file in [*pending.revoked_keys.values(), *pending.expired_keys.values()]:
            self._left[os.path.dirname(f"{self._root}/{queue}/{file.path}")] = None

    def _forget(self) -> None:
        """Remove the files of forgotten messages. This is the last step, because a removal cannot be undone."""
        rejected = {reject.path for reject in self._pending.rejects}
        forgotten = [seq for seq, row in self._pending.after.items() if row is None and seq in self._before]
        records = self._index.records(forgotten)
        self._mark_keys_outlived({endless_folder(seq) for seq in forgotten}, forgotten)
        keyed = [seq for seq in forgotten if self._before[seq].keyed and seq in records]
        self._mark_keys_outlived({expiry_folder(records[seq].until) for seq in keyed}, keyed)
        free_slots = {
            queue: 0 if self._is_short else self._spares.free_slots(queue)
            for queue in {self._before[seq].message.queue for seq in forgotten}
        }
        for seq in forgotten:
            before = self._before[seq]
            path = self._path(before)
            self._left[os.path.dirname(path)] = None
            if path not in rejected:
                free_slots[before.message.queue] -= 1
                self._keep_as_spare(before, path, keep=free_slots[before.message.queue] >= 0)
            if before.failure or before.message.leases:
                for which in ("a", "b"):
                    failure = failure_path(self._root, before.message, which)
                    self._batch.unlink(failure)
                    self._left[os.path.dirname(failure)] = None
        for path in self._pending.duplicates:
            self._batch.unlink(path)

    def _keep_as_spare(self, before: FileRow, path: str, *, keep: bool) -> None:
        """Keep the file of a forgotten message as a spare, to be blanked and reused; without ``keep`` remove it."""
        if not keep:
            self._batch.unlink(path)
            return
        spare = self._spares.path(before.message.queue, before.message.seq)
        self._batch.move(path, os.path.dirname(path), spare, os.path.dirname(spare))
        if before.message.body:
            self._blanked.append(spare)

    def _mark_keys_outlived(self, folders: Iterable[str], forgotten: Sequence[int]) -> None:
        """Set the mark ``.f`` in the names of the forgotten messages' deduplication keys: they outlive the message."""
        for queue in {self._before[seq].message.queue for seq in forgotten}:
            mine = {seq for seq in forgotten if self._before[seq].message.queue == queue}
            for folder in folders:
                for file in filter(None, map(read_key, listdir(f"{self._root}/{queue}/{KEY_FOLDER}/{folder}"))):
                    if file.key.seq in mine and not file.outlived and file.key not in self._pending.expired_keys:
                        path = f"{self._root}/{queue}/{file.path}"
                        self._batch.rename(path, f"{self._root}/{queue}/{file._replace(outlived=True).path}")

    # -- after the commit -----------------------------------------------------------------------------------------

    def _clean(self, empty_folders: Iterable[str]) -> set[str]:
        gone = [self._batch.blank(path, free_block=self._is_short) for path in self._blanked]
        gone += [self._batch.discard(path) for path in (*self._temps, *self._batch.copies)]
        gone += [self._batch.discard_tree(path) for path in self._trashed.values()]
        if not all(gone):
            self._index.invalidate()  # the recovery before the next transaction cleans up
        newest = self._transaction.last // PER_FOLDER
        in_use = set()
        for folder in {*self._left, *empty_folders}:
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
            if not self._batch.remove_empty(folder):
                return
            if (
                top == "archive"
                and listdir(parent) == [RESULTS]
                and os.path.basename(parent) < _day(self._transaction.now)
            ):
                self._batch.discard(f"{parent}/{RESULTS}")
            folder = parent


def is_kept(row: FileRow) -> bool:
    """Return True for a done message with content, which is kept in ``archive``."""
    return row.message.state is State.DONE and row.message.body


def _below_root(row: FileRow | None) -> str:
    return f"{row.message.queue}/{row.folder}/{row.name}" if row else ""


def _day(now: int | None) -> str:
    moment = datetime.now(UTC) if now is None else datetime.fromtimestamp(now / 1000, UTC)
    return moment.strftime("%Y-%m-%d")
