"""Recovery of a files store: repair of problems visible in the file names, and rebuild of the index.

Recovery runs under the store's lock after a crash or a power cut, whenever the index is invalid, and for the commands
``check`` and ``repair``. It reads only the contents that it needs. All contents are checked only by these commands;
otherwise a content is checked when it is read. ``Recovery.look`` only builds the index, for a store that cannot be
written.

``stores.files.fsck`` finds the problems, ``stores.files.repair`` has the repair of each."""

from yirangmq.core.message import Counts
from yirangmq.core.ports import Finding
from yirangmq.stores.files.fsck import Survey
from yirangmq.stores.files.index import PER_SEGMENT, Index, Record
from yirangmq.stores.files.layout import folder_number
from yirangmq.stores.files.metadata import AHEAD, FORMAT, read_counter, write_counter
from yirangmq.stores.files.names import PER_FOLDER
from yirangmq.stores.files.timer_index import Calendar
from yirangmq.stores.files.totals import clear, put_base
from yirangmq.stores.files.undo_log import Home


class Recovery:
    """Recovery, check and repair of a files store. All methods need the store's exclusive lock."""

    def __init__(self, home: Home, index: Index, calendar: Calendar) -> None:
        self._home = home
        self._index = index
        self._calendar = calendar

    def run(self) -> None:
        """Repair all problems found in the names and rebuild the index."""
        self._index.begin()
        survey = Survey(self._home)
        for problem in survey.problems(contents=False):
            if problem.mend is not None:
                problem.mend()
        survey.keyless.restore()
        for path in survey.spares:
            survey.deeds.discard(path)  # after a power cut a spare may also exist under another name
        self._settle(survey)

    def look(self) -> None:
        """Build the index from the names without any repair, for a store that cannot be written."""
        self._index.begin()
        survey = Survey(self._home)
        for _ in survey.problems(contents=False):
            pass
        self._index_anew(survey, max(survey.reserved, survey.made.last), survey.reserved)

    def check(self, *, trusted: bool, repair: bool) -> list[Finding]:
        """Return all problems, including those in contents. ``trusted``: the index is marked as valid, so it is
        compared with the names if there are no other problems."""
        survey = Survey(self._home)
        findings: list[Finding] = []
        if repair:
            self._index.begin()
        for problem in survey.problems(contents=True):
            mended = repair and problem.mend is not None
            if mended and problem.mend is not None:
                problem.mend()
            findings.append(Finding(problem.kind, problem.where, problem.text, mended))
        if not findings and trusted:
            findings = [finding._replace(mended=repair) for finding in self._compare(survey)]
        if repair:
            self._settle(survey)
        return findings

    def _settle(self, survey: Survey) -> None:
        survey.deeds.sync_names()
        last, reserved = max(survey.reserved, survey.made.last), survey.reserved
        counter = read_counter(self._home.root)
        if counter is None or reserved < survey.made.last:
            reserved = last + AHEAD
            write_counter(self._home, reserved)
        elif counter.format < FORMAT:
            write_counter(self._home, reserved)
        if survey.bases:
            for queue, base in survey.bases.items():
                put_base(self._home.root, queue, survey.deeds, base)
            survey.deeds.sync_names()
        clear(self._home)
        for folder in survey.hollow:
            if folder_number(folder) < last // PER_FOLDER:
                survey.deeds.remove_empty(folder)
        self._index_anew(survey, last, reserved)

    def _index_anew(self, survey: Survey, last: int, reserved: int) -> None:
        made = survey.made
        self._index.replace(made.counts, made.segments, made.ids(), made.keys, made.groups)
        self._calendar.clear()
        self._calendar.write(survey.due)
        self._index.finish(last, reserved)

    def _compare(self, survey: Survey) -> list[Finding]:
        """Return the differences between the index and the names."""
        findings = []
        for queue, counts in survey.made.counts.items():
            kept = self._index.counts(queue)
            if kept != counts:
                differ = [name for name in Counts._fields if getattr(kept, name) != getattr(counts, name)]
                said = ", ".join(f"{name} {getattr(kept, name)}, not {getattr(counts, name)}" for name in differ)
                findings.append(Finding("counts", queue, f"the index counts {said}"))
        for segment in survey.made.segments:
            seqs = range(segment * PER_SEGMENT, (segment + 1) * PER_SEGMENT)
            known = self._index.records(seqs)
            wrong = [seq for seq in seqs if _place(survey.made.record(seq)) != _place(known.get(seq))]
            if wrong:
                findings.append(Finding("index", f"messages {wrong[0]} …", f"{len(wrong)} are not where it says"))
        for (number, group), members in survey.made.groups.items():
            if not self._index.has_chain(survey.made.queue_of(number), group, members):
                text = f"{len(members) // 2} are not chained as they stand"
                findings.append(Finding("index", f"the group of message {members[1]}", text))
        return findings


def _place(record: Record | None) -> Record | None:
    """Return the record without the end of its key's window, which is only a hint and may differ."""
    return record and record._replace(until=0)
