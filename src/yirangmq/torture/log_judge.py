"""Opens what a power cut left of a log and looks whether every promise was kept. Knows: what was confirmed before the
cut, and what was under way. Does not know: how the disk came to look like this."""

from pathlib import Path
from random import Random
from typing import NamedTuple

from yirangmq.core.errors import NotFound
from yirangmq.core.topics import NewRecord
from yirangmq.stores.log.check import check
from yirangmq.stores.log.readonly import SegmentView
from yirangmq.torture.backends import STORE
from yirangmq.torture.log_workload import TOPICS, LogSnapshot, OpenLog, open_all, take_log


class ExpectedLog(NamedTuple):
    """What the log knew before the call that was cut off, and what it would have known after it."""

    before: LogSnapshot
    after: LogSnapshot
    now_ms: int


def judge_log(top: Path, expected: ExpectedLog) -> list[str]:
    """What is wrong; nothing, if every promise was kept. First as a reader from outside sees it, then opened, written
    to and opened again."""
    complaints = [f"from outside: {text}" for text in _seen_from_outside(top, expected)]
    opened = open_all(top, None, expected.now_ms, Random(0))
    try:
        found = take_log(opened)
        complaints += [*log_differences(found, expected), *_state_complaints(opened, found)]
        complaints += [f"the records {gap.first} to {gap.last} are said to be lost" for gap in opened.log.gaps()]
        if not complaints:
            _work(opened)
    finally:
        opened.close()
    return complaints or _after_work(top, expected, found)


def log_differences(found: LogSnapshot, expected: ExpectedLog) -> list[str]:
    before, after = expected.before, expected.after
    complaints = []
    if before.epoch and found.epoch != before.epoch:
        complaints.append(f"the epoch is {found.epoch}, not {before.epoch}")
    if not before.first <= found.first <= max(before.first, after.first):
        complaints.append(f"the log begins at {found.first}, not at {before.first} or {after.first}")
    if not before.last <= found.last <= max(before.last, after.last):
        complaints.append(f"the log ends at {found.last}, not at {before.last} or {after.last}")
    for number in range(found.first, found.last + 1):
        record = found.records.get(number)
        if record is None:
            complaints.append(f"record {number} is missing")
        elif record != (after.records.get(number) or before.records.get(number)):
            complaints.append(f"record {number} is not what was appended")
    if found.cursors not in (before.cursors, after.cursors):
        complaints.append(f"the cursors are {found.cursors}, not {before.cursors}")
    return complaints


def _seen_from_outside(top: Path, expected: ExpectedLog) -> list[str]:
    try:
        view = SegmentView(top / STORE)
    except NotFound:
        return ["there is no log"] if expected.before.epoch else []
    reader = view.reader()
    records = {record.sequence: record for record in reader.records(view.first)}
    found = LogSnapshot(view.epoch, view.first, records, expected.before.cursors)
    return log_differences(found, expected)


def _state_complaints(opened: OpenLog, found: LogSnapshot) -> list[str]:
    """The numbers of the topics, against the records themselves."""
    complaints = []
    topics = opened.log.topics()
    for name, state in topics.items():
        own = [record for record in found.records.values() if record.topic == name]
        if len(own) != state.records or (own and own[-1][:3] != (state.sequence, state.topic_sequence, state.at_ns)):
            complaints.append(f"topic {name} says {state}, there are {len(own)} records")
    return complaints


def _work(opened: OpenLog) -> None:
    opened.log.append([NewRecord(topic, b"is anybody there") for topic in TOPICS])


def _after_work(top: Path, expected: ExpectedLog, found: LogSnapshot) -> list[str]:
    """What was there still is, what is new follows it, and nothing that was cut off came back behind it."""
    opened = open_all(top, None, expected.now_ms, Random(0))
    try:
        again = take_log(opened)
        complaints = _state_complaints(opened, again)
    finally:
        opened.close()
    if list(again.records) != [*found.records, *range(found.last + 1, found.last + 1 + len(TOPICS))]:
        complaints.append(f"after work the log has {list(again.records)}")
    if [again.records.get(number) for number in found.records] != list(found.records.values()):
        complaints.append("after work records have changed")
    complaints += [f"check: {one.kind} {one.where}: {one.text}" for one in check(SegmentView(top / STORE)).findings]
    return complaints
