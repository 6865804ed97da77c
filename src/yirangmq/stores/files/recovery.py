"""Recovery of a files store: repair of problems visible in the file names, and rebuild of the index.

Recovery runs under the store's lock after a crash or a power cut, whenever the index is invalid, and for the commands
``check`` and ``repair``. It reads only the contents that it needs. All contents are checked only by these commands;
otherwise a content is checked when it is read. ``FilesRecovery.refresh`` only builds the index, for a store that cannot
be written.

``stores.files.fsck`` finds the problems, ``stores.files.repair`` has the repair of each."""

from collections.abc import Callable

from yirangmq.core.message import Counts
from yirangmq.core.ports import Finding
from yirangmq.stores.files.fsck import StoreCheck
from yirangmq.stores.files.index import PER_SEGMENT, Index, IndexRecord
from yirangmq.stores.files.layout import folder_number
from yirangmq.stores.files.metadata import FORMAT, NUMBERS_AHEAD, read_counter, write_counter
from yirangmq.stores.files.names import PER_FOLDER
from yirangmq.stores.files.timer_index import TimerIndex
from yirangmq.stores.files.totals import clear, put_base
from yirangmq.stores.files.undo_log import StoreRoot


class FilesRecovery:
    """Recovery, check and repair of a files store. All methods need the store's exclusive lock."""

    def __init__(self, store_root: StoreRoot, index: Index, timer_index: TimerIndex) -> None:
        self._store_root = store_root
        self._index = index
        self._timer_index = timer_index

    def run(self) -> None:
        """Repair all problems found in the names and rebuild the index."""
        self._index.begin()
        store_check = StoreCheck(self._store_root)
        for problem in store_check.problems(contents=False):
            if problem.repair is not None:
                problem.repair()
        store_check.lost_keys.restore()
        for path in store_check.spares:
            store_check.batch.discard(path)  # after a power cut a spare may also exist under another name
        self._finish_repair(store_check)

    def refresh(self) -> None:
        """Build the index from the names without any repair, for a store that cannot be written."""
        self._index.begin()
        store_check = StoreCheck(self._store_root)
        for _ in store_check.problems(contents=False):
            pass
        self._replace_index(
            store_check, max(store_check.reserved, store_check.index_builder.last), store_check.reserved
        )

    def check(
        self, *, trusted: bool, repair: bool, progress: Callable[[int], None] = lambda done: None
    ) -> list[Finding]:
        """Return all problems, including those in contents. ``trusted``: the index is marked as valid, so it is
        compared with the names if there are no other problems."""
        store_check = StoreCheck(self._store_root, progress)
        findings: list[Finding] = []
        if repair:
            self._index.begin()
        for problem in store_check.problems(contents=True):
            is_repaired = repair and problem.repair is not None
            if is_repaired and problem.repair is not None:
                problem.repair()
            findings.append(Finding(problem.kind, problem.where, problem.text, is_repaired))
        if not findings and trusted:
            findings = [finding._replace(is_repaired=repair) for finding in self._compare(store_check)]
        if repair:
            self._finish_repair(store_check)
        return findings

    def _finish_repair(self, store_check: StoreCheck) -> None:
        store_check.batch.sync_names()
        last, reserved = max(store_check.reserved, store_check.index_builder.last), store_check.reserved
        counter = read_counter(self._store_root.root)
        if counter is None or reserved < store_check.index_builder.last:
            reserved = last + NUMBERS_AHEAD
            write_counter(self._store_root, reserved)
        elif counter.format < FORMAT:
            write_counter(self._store_root, reserved)
        if store_check.bases:
            for queue, base in store_check.bases.items():
                put_base(self._store_root.root, queue, store_check.batch, base)
            store_check.batch.sync_names()
        clear(self._store_root)
        for folder in store_check.empty_folders:
            if folder_number(folder) < last // PER_FOLDER:
                store_check.batch.remove_empty(folder)
        self._replace_index(store_check, last, reserved)

    def _replace_index(self, store_check: StoreCheck, last: int, reserved: int) -> None:
        index_builder = store_check.index_builder
        self._index.replace(
            index_builder.counts, index_builder.segments, index_builder.ids(), index_builder.keys, index_builder.groups
        )
        self._timer_index.clear()
        self._timer_index.write(store_check.due)
        self._index.finish(last, reserved)

    def _compare(self, store_check: StoreCheck) -> list[Finding]:
        """Return the differences between the index and the names."""
        findings = []
        for queue, counts in store_check.index_builder.counts.items():
            kept = self._index.counts(queue)
            if kept != counts:
                differ = [name for name in Counts._fields if getattr(kept, name) != getattr(counts, name)]
                differences = ", ".join(f"{name} {getattr(kept, name)}, not {getattr(counts, name)}" for name in differ)
                findings.append(Finding("counts", queue, f"the index counts {differences}"))
        for segment in store_check.index_builder.segments:
            seqs = range(segment * PER_SEGMENT, (segment + 1) * PER_SEGMENT)
            known = self._index.records(seqs)
            wrong = [
                seq
                for seq in seqs
                if _without_window(store_check.index_builder.record(seq)) != _without_window(known.get(seq))
            ]
            if wrong:
                findings.append(
                    Finding("index", f"messages {wrong[0]} …", f"{len(wrong)} are not at their recorded paths")
                )
        for (number, group), members in store_check.index_builder.groups.items():
            if not self._index.has_group_list(store_check.index_builder.queue_of(number), group, members):
                text = f"{len(members) // 2} are not linked in the order of their files"
                findings.append(Finding("index", f"the group of message {members[1]}", text))
        return findings


def _without_window(record: IndexRecord | None) -> IndexRecord | None:
    """Return the record without the end of its key's window, which is only a hint and may differ."""
    return record and record._replace(until=0)
