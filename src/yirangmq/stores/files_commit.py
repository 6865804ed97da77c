"""Brings what a transaction changed to the disk, all or nothing, in the order that a power cut cannot harm:

1. contents of new messages, failures and policies into temporary files; synced
2. failures get their names; synced, so that no dead letter is ever without its reason
3. messages get their names: new ones out of the temporary files, others by a rename from the old name to the new
4. names synced: the folders entered, then the folders left. Only now the caller hears that it is done
5. the index follows; contents of finished messages are blanked, empty folders removed

Each message is whole at every moment; a batch that a power cut hits may be there in part. An error takes everything
back. Knows: the order of work. Does not know: what the changes mean."""

import os
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime

from yirangmq.core.policy import QueuePolicy
from yirangmq.core.states import State
from yirangmq.format.filenames import PER_FOLDER, Card, read_name
from yirangmq.stores.files_aside import quarantine
from yirangmq.stores.files_content import Sort, write_envelope, write_failure, write_results
from yirangmq.stores.files_counter import AHEAD, TOTALS, latest_totals, totals_name, write_counter
from yirangmq.stores.files_deeds import Deeds, Home
from yirangmq.stores.files_due import Calendar, Note
from yirangmq.stores.files_index import Index, Key
from yirangmq.stores.files_keys import FOLDER, bucket, read_key
from yirangmq.stores.files_policies import FILE as POLICY_FILE
from yirangmq.stores.files_spares import Spares
from yirangmq.stores.files_transaction import FilesTransaction
from yirangmq.stores.files_view import ends_whole, failure_path, listdir, read_bytes
from yirangmq.stores.files_walk import folder_number, walk, walk_keys

TRASH = ".trash"
RESULTS = "results.jsonl"
POLICY_TEMP = "meta/temp/policy.tmp"


class Commit:
    """One use, one batch."""

    def __init__(self, home: Home, index: Index, calendar: Calendar, spares: Spares, work: FilesTransaction) -> None:
        self._home = home
        self._root = home.root
        self._index = index
        self._calendar = calendar
        self._spares = spares
        self._work = work
        self._pending = work.pending
        self._deeds = Deeds(home)
        before, after = work.pending.before, work.pending.after
        self._before = {seq: card for seq, card in before.items() if card is not None}
        self._new = [seq for seq, card in before.items() if card is None and after[seq] is not None]
        self._temp_of: dict[tuple[str, object], str] = {}
        self._spots: dict[int, tuple[str, str]] = {}
        """Folder below the root, and name, of each message as it shall be."""
        self._blanked: list[str] = []
        self._temps: list[str] = []
        self._thrown: dict[str, str] = {}
        self._left: dict[str, None] = {}
        self._untils: dict[int, int] = {}
        self._keys_in: list[Key] = []
        self._keys_out: list[Key] = []

    def run(self, hollow: Iterable[str]) -> set[str]:
        """Raises what the disk says; then nothing has changed. Takes folders that may have become empty, and gives
        back those that are still in use for what comes next."""
        pending, last = self._pending, self._work.last
        for seq, card in pending.after.items():
            if card is not None:
                self._spots[seq] = f"{card.message.queue}/{card.folder}", card.name
        self._spares.begin()
        self._index.begin()
        try:
            reserved = self._reserve(last)
            self._prepare_index()
            self._apply()
        except BaseException as error:
            if self._deeds.undo() and not isinstance(error, FileNotFoundError):
                self._withdraw_index()
                self._index.end()
            raise  # with the index in doubt if files were moved behind our back, or not all could be taken back
        self._update_index(last, reserved)
        return self._clean(hollow)

    # -- before anything happens ----------------------------------------------------------------------------------

    def _reserve(self, last: int) -> int:
        """Numbers are never given twice, whatever is lost: the counter file is ahead of them."""
        if last <= self._index.reserved:
            return self._index.reserved
        reserved = last + AHEAD
        write_counter(self._home, reserved)
        return reserved

    def _prepare_index(self) -> None:
        """What needs space goes first."""
        pending, index = self._pending, self._index
        index.reserve(self._new, pending.deltas)
        index.add_ids([self._name(seq) for seq in self._new])
        self._keys_in = [file.key for file in pending.keys.values()]
        index.add_keys(self._keys_in)
        notes: defaultdict[int, list[Note]] = defaultdict(list)
        for seq, card in pending.after.items():
            if card is not None and card.message.due_at:
                notes[card.message.changed_at].append(Note(card.message.due_at, self._spots[seq][0]))
        for now, some in notes.items():
            self._calendar.note(some, now)

    def _withdraw_index(self) -> None:
        try:
            self._index.remove_ids([self._name(seq) for seq in self._new])
            self._index.remove_keys(self._keys_in)
        except OSError:
            pass  # stale entries are no harm: the names decide

    def _name(self, seq: int) -> tuple[str, str, int]:
        card = self._pending.after[seq] or self._before[seq]
        return card.message.queue, card.message.id, seq

    # -- the deeds ------------------------------------------------------------------------------------------------

    def _apply(self) -> None:
        for queue in sorted(self._pending.deleted):
            self._throw_away(queue)
        for queue in sorted(self._pending.made | set(self._pending.deltas)):
            self._make_queue(queue)
        for folder in {folder for folder, _ in self._spots.values()}:
            self._deeds.folder(f"{self._root}/{folder}")
        self._write_contents()
        self._name_failures()
        self._set_aside()
        self._move()
        self._count_totals()
        self._write_keys()
        self._name_policies()
        self._forget()
        self._deeds.sync_names()

    def _throw_away(self, queue: str) -> None:
        """A queue goes with one rename; what is in it is removed afterwards."""
        folder = f"{self._root}/{queue}"
        if os.path.isdir(folder):
            target = f"{self._root}/{TRASH}/{queue}~{self._index.generation}"
            self._deeds.rename(folder, target)
            self._thrown[queue] = target
            self._spares.forget(queue)

    def _make_queue(self, queue: str) -> None:
        folder = f"{self._root}/{queue}"
        if not os.path.isdir(f"{folder}/inbox"):
            for name in ("processing", "delayed", "dlq", "archive", "config", "meta", "inbox"):
                self._deeds.folder(f"{folder}/{name}")
        self._deeds.folder(f"{folder}/meta/temp")

    def _temp(self, queue: str, name: object) -> str:
        """Where something is written before it gets its name: into a spare file, or a new one."""
        temp = self._temp_of.get((queue, name))
        if temp is None:
            temp = self._spares.take(queue) or f"{self._root}/{queue}/meta/temp/{name}.tmp"
            self._temp_of[queue, name] = temp
        return temp

    def _write_contents(self) -> None:
        pending = self._pending
        files: list[tuple[str, bytes]] = []
        for seq in self._new:
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
        foreign = [path for seq, path in pending.dropped.items() if pending.after[seq] is not None]
        self._deeds.write_files(files, foreign)

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
            if source != target:
                deeds.move(source, left, target, entered)
                self._left[left] = None
        elif seq in pending.dropped:
            deeds.rename(pending.dropped[seq], target)
        else:
            deeds.move(self._temp(pending.envelopes[seq].queue, seq), None, target, entered)

    def _append_results(self, path: str, cards: list[Card]) -> None:
        lines = write_results([card.message for card in cards])
        self._deeds.append(path, lines if ends_whole(path) else b"\n" + lines)

    def _path(self, card: Card) -> str:
        return f"{self._root}/{card.message.queue}/{card.folder}/{card.name}"

    def _name_policies(self) -> None:
        for queue, text in self._pending.policies.items():
            target = f"{self._root}/{queue}/{POLICY_FILE}"
            old = read_bytes(target)
            temp = f"{self._root}/{queue}/{POLICY_TEMP}"
            if text is not None:
                self._deeds.replace(temp, target, old)
            elif old is not None:
                self._deeds.rename(target, temp)
                self._temps.append(temp)

    def _count_totals(self) -> None:
        """The totals are the name of a file: one rename, as durable as the batch."""
        for queue, deltas in self._pending.deltas.items():
            if any(deltas[name] for name in TOTALS):
                folder = f"{self._root}/{queue}/meta/totals"
                numbers = self._work.counts(queue)
                target = f"{folder}/{totals_name(numbers)}"
                known = latest_totals(listdir(folder))
                if known is not None:
                    self._deeds.rename(f"{folder}/{known}", target)
                else:
                    self._deeds.create(target)

    def _write_keys(self) -> None:
        pending = self._pending
        for (queue, _), file in pending.keys.items():
            outlived = pending.after.get(file.key.seq) is None
            self._deeds.create(f"{self._root}/{queue}/{file._replace(outlived=outlived).path}")
            self._untils[file.key.seq] = file.key.until
        for queue, file in pending.old_keys.values():
            path = f"{self._root}/{queue}/{file.path}"
            self._deeds.unlink(path)
            self._left[os.path.dirname(path)] = None
            self._keys_out.append(file.key)

    def _forget(self) -> None:
        """Last, because a file that is removed cannot be taken back."""
        rejected = {reject.path for reject in self._pending.rejects}
        forgotten = [seq for seq, card in self._pending.after.items() if card is None and seq in self._before]
        records = self._index.records(forgotten)
        for seq in forgotten:
            before = self._before[seq]
            if before.keyed and seq in records:
                self._outlive(before, records[seq].until)
        room = {queue: self._spares.room(queue) for queue in {self._before[seq].message.queue for seq in forgotten}}
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
        """The file of a forgotten message is blanked and written again some day, or removed."""
        if not keep:
            self._deeds.unlink(path)
            return
        spare = self._spares.path(before.message.queue, before.message.seq)
        self._deeds.move(path, os.path.dirname(path), spare, os.path.dirname(spare))
        if before.message.body:
            self._blanked.append(spare)

    def _outlive(self, card: Card, until: int) -> None:
        queue, seq = card.message.queue, card.message.seq
        for name in listdir(f"{self._root}/{queue}/{FOLDER}/{bucket(until)}"):
            file = read_key(name)
            if file is not None and file.key.seq == seq and not file.outlived:
                path = f"{self._root}/{queue}/{file.path}"
                if file.key not in self._pending.old_keys:
                    self._deeds.rename(path, f"{self._root}/{queue}/{file._replace(outlived=True).path}")

    # -- after it is done -----------------------------------------------------------------------------------------

    def _update_index(self, last: int, reserved: int) -> None:
        """It is on disk already: if this fails, the index stays in doubt and the next one makes it anew."""
        pending, index = self._pending, self._index
        try:
            for queue, folder in self._thrown.items():
                self._drop_from_index(queue, folder)
            index.put_counts({queue: self._work.counts(queue) for queue in pending.deltas})
            known = index.records(self._before)
            entries: dict[int, tuple[Card, int] | None] = dict.fromkeys(self._before)
            for seq, card in pending.after.items():
                if card is not None:
                    until = self._untils.get(seq) or (known[seq].until if seq in known else 0)
                    entries[seq] = (card, until)
            index.put_records(entries)
            index.remove_ids([self._name(seq) for seq, entry in entries.items() if entry is None])
            index.remove_keys(self._keys_out)
            index.finish(last, reserved)
        except OSError:
            pass

    def _drop_from_index(self, queue: str, folder: str) -> None:
        """What the index has of a deleted queue, a folder at a time."""
        for top, _, names in walk(folder):
            cards = [card for name in names if (card := read_name(queue, top, name)) is not None]
            self._index.put_records(dict.fromkeys(card.message.seq for card in cards))
            self._index.remove_ids([(queue, card.message.id, card.message.seq) for card in cards])
        for _, names in walk_keys(folder):
            self._index.remove_keys([file.key for name in names if (file := read_key(name)) is not None])
        self._index.drop_queue(queue)

    def _clean(self, hollow: Iterable[str]) -> set[str]:
        gone = [self._deeds.blank(path) for path in self._blanked]
        gone += [self._deeds.discard(path) for path in self._temps]
        gone += [self._deeds.discard_tree(path) for path in self._thrown.values()]
        if not all(gone):
            self._index.doubt()  # whoever comes next clears it up
        newest = self._work.last // PER_FOLDER
        in_use = set()
        for folder in {*self._left, *hollow}:
            if folder_number(folder) >= newest:
                in_use.add(folder)
            else:
                self._remove_folder(folder)
        return in_use

    def _remove_folder(self, folder: str) -> None:
        """And the one above it, if that is empty too; a day of the archive goes with its results."""
        parent = os.path.dirname(folder)
        above = os.path.basename(os.path.dirname(parent))
        if not self._deeds.remove_empty(folder):
            return
        if above == "archive" and listdir(parent) == [RESULTS] and os.path.basename(parent) < _day(self._work.now):
            self._deeds.discard(f"{parent}/{RESULTS}")
        if above in ("archive", "inbox"):
            self._deeds.remove_empty(parent)


def is_kept(card: Card) -> bool:
    """It lies in the archive."""
    return card.message.state is State.DONE and card.message.body


def _day(now: int | None) -> str:
    moment = datetime.now(UTC) if now is None else datetime.fromtimestamp(now / 1000, UTC)
    return moment.strftime("%Y-%m-%d")
