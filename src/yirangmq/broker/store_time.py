"""Store time: the clock of all stored instants, and its record in the store.

Every stored instant is in store time (docs/decisions/0021-store-time.md). While the machine runs, store time is the
time since boot plus an offset. The offset is recorded in the store, so that all processes of a boot use the same
offset, even if the wall clock is set. After a reboot store time advances by as much as the wall clock advanced. It
never steps back, and does not advance at all if that would be more than ``MAX_OFF_MS``.

The record is read when a store is opened or a node becomes active. Commits renew it about every ``RECORD_MS``.
Committer's thread only."""

import json  # not the faster parser of an extra, so that an idle server does not load it
from contextlib import suppress
from typing import NamedTuple

from yirangmq.clock import SystemClock, boot_id
from yirangmq.core.errors import QueueError
from yirangmq.core.message import Envelope, Message, MessageFailure
from yirangmq.core.ports import Clock, Store, Transaction

NOTE = "clock"
"""Key of the store note that holds the record."""
RECORD_MS = 60_000
"""Interval between renewals of the record, in ms. A renewal is part of a commit that happens anyway."""
MAX_OFF_MS = 366 * 24 * 3_600_000
"""Longest plausible time that a machine was off, in ms (366 days). A larger advance of the wall clock is ignored."""


# -- offset from the time since boot -----------------------------------------------------------------------------------


class StoreTimeRecord(NamedTuple):
    """Recorded offset of store time.

    ``boot`` identifies the boot (``clock.boot_id``). ``offset_ms`` is store time minus the time since that boot.
    ``store_ms`` and ``wall_ms`` are both clocks at the time of the write."""

    boot: str
    offset_ms: int
    store_ms: int
    wall_ms: int


def resumed(record: StoreTimeRecord | None, boot: str, boot_ms: int, wall_ms: int) -> int:
    """Return the offset of store time from the time since boot, in ms.

    In the boot of the record it is the recorded offset. In another boot store time continues from the record, advanced
    by as much as the wall clock advanced since. It does not advance if the wall clock is behind the record or
    implausibly far ahead (``MAX_OFF_MS``). Without a record store time starts at the wall clock."""
    if record is None:
        return wall_ms - boot_ms
    if boot and boot == record.boot and boot_ms + record.offset_ms >= record.store_ms:
        return record.offset_ms
    off = wall_ms - record.wall_ms
    return record.store_ms + (off if 0 <= off <= MAX_OFF_MS else 0) - boot_ms


# -- wall-clock time of stored instants --------------------------------------------------------------------------------


def message_in_wall_time(message: Message, ahead: int) -> Message:
    """Convert the instants of a message to wall-clock time, which is ``ahead`` ms ahead of store time."""
    return message._replace(
        due_at=_shown(message.due_at, ahead),
        expires_at=_shown(message.expires_at, ahead),
        changed_at=_shown(message.changed_at, ahead),
    )


def envelope_in_wall_time(envelope: Envelope, ahead: int) -> Envelope:
    return envelope._replace(
        published_at=_shown(envelope.published_at, ahead),
        available_at=_shown(envelope.available_at, ahead),
        expires_at=_shown(envelope.expires_at, ahead),
    )


def failure_in_wall_time(failure: MessageFailure, ahead: int) -> MessageFailure:
    return failure._replace(failed_at=_shown(failure.failed_at, ahead))


def _shown(instant: int, ahead: int) -> int:
    """Convert one instant; 0 means never and stays 0.

    The result is at least 1: in a store whose time started in 1970, a clock that was set back would yield a negative
    instant."""
    return max(1, instant + ahead) if instant else 0


# -- record in the store -----------------------------------------------------------------------------------------------

NEVER = 1 << 62


class StoreTime:
    """Keeps the system clock and the record of one store in agreement.

    With any other clock (a manual clock in tests) it does nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock if isinstance(clock, SystemClock) else None
        self._boot = "" if self._clock is None else boot_id()
        self._is_agreed = False
        """True once the record in the store belongs to this boot and the clock uses its offset."""
        self.record_at = NEVER if self._clock is None else 0
        """Store time from which the next commit renews the record by ``renew_record``."""

    def resume(self, transaction: Transaction) -> None:
        """Set the clock from the record. Nothing is written; the next commit records this boot."""
        if self._clock is not None:
            found = read_record(transaction)
            self._clock.resume(resumed(found, self._boot, self._clock.boot_ms, self._clock.wall_ms()))
            self._is_agreed = found is not None and found.boot == self._boot != ""
            self.renew()

    def renew(self) -> None:
        """Make the next commit renew the record, for instance after the wall clock was set."""
        if self._clock is not None:
            self.record_at = 0

    def renew_record(self, transaction: Transaction) -> None:
        """Renew the record, as part of a commit."""
        clock = self._clock
        if clock is None:
            return
        if not self._is_agreed:
            self._agree(transaction, clock)
        if clock.ahead_ms() and _is_unused(transaction):
            clock.resume(clock.wall_ms() - clock.boot_ms)
        now = clock.now_ms()
        self.record_at = now + RECORD_MS  # set first: if the commit fails, its repetition does not write the record
        transaction.set_note(NOTE, write_record(StoreTimeRecord(self._boot, clock.offset_ms, now, clock.wall_ms())))

    def _agree(self, transaction: Transaction, clock: SystemClock) -> None:
        """Adopt the offset that another process of this boot has recorded before this one, if any."""
        found = read_record(transaction)
        if found is not None and found.boot == self._boot != "":
            clock.resume(resumed(found, self._boot, clock.boot_ms, clock.wall_ms()))
        self._is_agreed = True


def resume(store_time: StoreTime, store: Store) -> None:
    """Set the clock from the record of a store that was just opened.

    If the store cannot be read, the error is suppressed; the first use of the store raises it."""
    with suppress(QueueError), store.transaction(write=False) as transaction:
        store_time.resume(transaction)


def _is_unused(transaction: Transaction) -> bool:
    """Return True if the store has no message and no due time, so that store time may still be set to the wall clock.

    A device that boots with a wrong clock thus gets the right time before its first use."""
    return transaction.next_due() is None and not transaction.totals().published


def read_record(transaction: Transaction) -> StoreTimeRecord | None:
    """Return the record, or None if there is none or it cannot be parsed. Store time then starts at the wall clock."""
    text = transaction.note(NOTE)
    if text is None:
        return None
    try:
        known = json.loads(text)
        return StoreTimeRecord(
            str(known["bootId"]), int(known["offsetMs"]), int(known["storeTimeMs"]), int(known["wallTimeMs"])
        )
    except (KeyError, TypeError, ValueError):
        return None


def write_record(record: StoreTimeRecord) -> str:
    document = {
        "bootId": record.boot,
        "offsetMs": record.offset_ms,
        "storeTimeMs": record.store_ms,
        "wallTimeMs": record.wall_ms,
    }
    return json.dumps(document, separators=(",", ":"))
