"""Verification after a power cut: opens a store or a log and compares it with the confirmed content.

``ExpectedStore`` and ``ExpectedLog`` hold the content before the interrupted call and the content after it. Every
message or record must match one of the two, counters must be right, and ``check`` must find nothing. Then the store or
log must work: new messages and records succeed, and every unfinished message is delivered once and complete."""

from pathlib import Path
from random import Random
from typing import NamedTuple

from yirangmq.broker.queues import Queues
from yirangmq.core.errors import NotFound
from yirangmq.core.message import Message
from yirangmq.core.ports import Store
from yirangmq.core.states import UNFINISHED, State
from yirangmq.core.topics import NewRecord
from yirangmq.crashtest.backends import STORE
from yirangmq.crashtest.log_workload import TOPICS, LogSnapshot, OpenLog, open_all, take_log_snapshot
from yirangmq.crashtest.workload import (
    CONSUMERS,
    QUEUES,
    FixedClock,
    Key,
    NumberedIds,
    Snapshot,
    SnapshotEntry,
    take_snapshot,
    wrong_counts,
    wrong_totals,
)
from yirangmq.stores.log.check import check
from yirangmq.stores.log.readonly import SegmentView

# -- stores ------------------------------------------------------------------------------------------------------------

LATER_MS = 600_000
"""Time in ms after which every delay and every lease of the workload has ended."""
MAX_LEASED = 10_000
PROBE = "probe"
PROBE_POLICY = {"retry": {"limit": 3}}


class ExpectedStore(NamedTuple):
    """Content of the store before the interrupted call, and after it had the call completed."""

    before: Snapshot
    after: Snapshot
    now_ms: int
    is_atomic: bool


def verify(store: Store, expected: ExpectedStore) -> list[str]:
    """Verify a store after a power cut and return the problems. The store is used up: messages are leased and acked."""
    try:
        found = take_snapshot(store)
        complaints = [
            *differences(found, expected),
            *wrong_counts(found),
            *wrong_totals(found, expected.before, expected.after),
            *(f"check: {finding.kind} {finding.where}: {finding.text}" for finding in store.check(repair=False)),
        ]
        if not complaints:
            complaints = _exercise_store(store, found, expected.now_ms)
        return complaints
    except Exception as error:  # of any type: a store must not fail because of the files it finds
        return [f"{type(error).__name__}: {error}"]


def differences(found: Snapshot, expected: ExpectedStore) -> list[str]:
    before, after = expected.before, expected.after
    complaints = [f"{'/'.join(key)} is in two states" for key in found.twice]
    for key in found.entries.keys() | before.entries.keys() | after.entries.keys():
        entry, old, new = found.entries.get(key), before.entries.get(key), after.entries.get(key)
        is_right = entry in (old, new) or _is_being_removed(entry, old, new)
        if not is_right and (expected.is_atomic or not _differs_in_group_order(entry, old, new)):
            complaints.append(f"{'/'.join(key)} is {_show(entry)}, not {_show(old)}" + _or(new, old))
    for queue in found.policies.keys() | before.policies.keys():
        policies = (before.policies.get(queue), after.policies.get(queue))
        if found.policies.get(queue) not in policies:
            complaints.append(f"queue {queue} has another policy than was set")
    if not complaints and expected.is_atomic and found not in (before, after):
        complaints.append("half of a call is there")
    return sorted(complaints)


def _is_being_removed(entry: SnapshotEntry | None, old: SnapshotEntry | None, new: SnapshotEntry | None) -> bool:
    """Return True if an expired message is half removed: its other files may be removed before its state."""
    return entry is not None and old is not None and new is None and entry.message == old.message


def _differs_in_group_order(entry: SnapshotEntry | None, old: SnapshotEntry | None, new: SnapshotEntry | None) -> bool:
    """Return True if a grouped message differs only in its position within the group.

    If only half of a call on two messages of a group is on disk, the store recomputes the first one: a later message
    becomes held, and an unconfirmed lease is released. ``check`` verifies the order of the group itself."""
    if entry is None or not entry.message.group or entry.state not in (State.HELD, State.READY, State.DELAYED):
        return False
    either = [other for other in (old, new) if other is not None and other.state in UNFINISHED]
    return any(
        _without_group_position(entry.message) == _without_group_position(other.message) for other in either
    ) and entry.envelope in [other.envelope for other in either]


def _without_group_position(message: Message) -> Message:
    """Return the message without the fields that depend on its position in the group."""
    return message._replace(
        state=State.READY, due_at=0, changed_at=0, consumer="", attempt=0, leases=0, reason="", repeats=0
    )


def _or(new: SnapshotEntry | None, old: SnapshotEntry | None) -> str:
    return "" if new == old else f" or {_show(new)}"


def _show(entry: SnapshotEntry | None) -> str:
    if entry is None:
        return "absent"
    message = entry.message
    size = len(entry.envelope.payload) if entry.envelope else 0
    return f"{message.state} ({size} bytes, attempt {message.attempt}, lease {message.leases}, due {message.due_at})"


def _exercise_store(store: Store, found: Snapshot, now_ms: int) -> list[str]:
    """Use the store: publish new messages, then lease and ack all.

    Every unfinished old message must be delivered intact, and no other."""
    queues = Queues(store, FixedClock(now_ms), NumberedIds(PROBE), PROBE)
    fresh: set[Key] = set()
    for queue in (*QUEUES, PROBE):
        queues.set_policy(queue, PROBE_POLICY)
        fresh.add((queue, queues.publish(queue, b"is anybody there").id))
    later = Queues(store, FixedClock(now_ms + LATER_MS), NumberedIds(PROBE), PROBE)
    later.sweep()
    delivered: dict[Key, bytes] = {}
    for queue in (*QUEUES, PROBE):
        delivered |= _drained(later, queue)
    after = take_snapshot(store)
    complaints = [f"{'/'.join(key)} is new and was not delivered" for key in fresh - delivered.keys()]
    complaints += [f"{'/'.join(key)} was never sent" for key in delivered.keys() - fresh - found.entries.keys()]
    complaints += [f"{'/'.join(key)} was not acked" for key in delivered if after.entries[key].state is not State.DONE]
    return [*complaints, *_undelivered(found, delivered, after), *wrong_counts(after)]


def _drained(queues: Queues, queue: str) -> dict[Key, bytes]:
    """Lease and ack all messages of a queue with every consumer, those of a group one after the other."""
    delivered: dict[Key, bytes] = {}
    while taken := [one for consumer in CONSUMERS for one in queues.lease(queue, MAX_LEASED, consumer=consumer)]:
        delivered |= {(queue, delivery.id): delivery.payload for delivery in taken}
        queues.ack([delivery.lease_id for delivery in taken])
    return delivered


def _undelivered(found: Snapshot, delivered: dict[Key, bytes], after: Snapshot) -> list[str]:
    complaints = []
    for key, entry in found.entries.items():
        waiting = entry.state in UNFINISHED
        if key in delivered and not waiting:
            complaints.append(f"{'/'.join(key)} is {entry.state} and was delivered again")
        elif waiting and key not in delivered and after.entries[key].state is not State.DEAD:
            complaints.append(f"{'/'.join(key)} is {entry.state} and was never delivered")
        elif key in delivered and (entry.envelope is None or delivered[key] != entry.envelope.payload):
            complaints.append(f"{'/'.join(key)} was delivered with another content")
    return complaints


# -- topic log ---------------------------------------------------------------------------------------------------------


class ExpectedLog(NamedTuple):
    """Content of the log before the interrupted call, and after it had the call completed."""

    before: LogSnapshot
    after: LogSnapshot
    now_ms: int


def verify_log(top: Path, expected: ExpectedLog) -> list[str]:
    """Verify a log after a power cut and return the problems.

    The log is read by an external reader, then opened, appended to and opened again."""
    complaints = [f"from outside: {text}" for text in _external_differences(top, expected)]
    opened = open_all(top, None, expected.now_ms, Random(0))
    try:
        found = take_log_snapshot(opened)
        complaints += [*log_differences(found, expected), *_state_complaints(opened, found)]
        complaints += [f"the records {gap.first} to {gap.last} are said to be lost" for gap in opened.log.gaps()]
        if not complaints:
            _append_records(opened)
    finally:
        opened.close()
    return complaints or _verify_after_append(top, expected, found)


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


def _external_differences(top: Path, expected: ExpectedLog) -> list[str]:
    try:
        view = SegmentView(top / STORE)
    except NotFound:
        return ["there is no log"] if expected.before.epoch else []
    reader = view.reader()
    records = {record.sequence: record for record in reader.records(view.first)}
    found = LogSnapshot(view.epoch, view.first, records, expected.before.cursors)
    return log_differences(found, expected)


def _state_complaints(opened: OpenLog, found: LogSnapshot) -> list[str]:
    """Compare the counters of the topics with the records."""
    complaints = []
    topics = opened.log.topics()
    for name, state in topics.items():
        own = [record for record in found.records.values() if record.topic == name]
        latest = [(one.sequence, one.topic_sequence, one.at_ns) for one in own[-1:]]
        if len(own) != state.records or (own and latest != [(state.sequence, state.topic_sequence, state.at_ns)]):
            complaints.append(f"topic {name} says {state}, there are {len(own)} records")
    return complaints


def _append_records(opened: OpenLog) -> None:
    opened.log.append([NewRecord(topic, b"is anybody there") for topic in TOPICS])


def _verify_after_append(top: Path, expected: ExpectedLog, found: LogSnapshot) -> list[str]:
    """Check after an append: the old records are unchanged, the new ones follow, and no truncated record reappeared."""
    opened = open_all(top, None, expected.now_ms, Random(0))
    try:
        again = take_log_snapshot(opened)
        complaints = _state_complaints(opened, again)
    finally:
        opened.close()
    if list(again.records) != [*found.records, *range(found.last + 1, found.last + 1 + len(TOPICS))]:
        complaints.append(f"after work the log has {list(again.records)}")
    if [again.records.get(number) for number in found.records] != list(found.records.values()):
        complaints.append("after work records have changed")
    complaints += [f"check: {one.kind} {one.where}: {one.text}" for one in check(SegmentView(top / STORE)).findings]
    return complaints
