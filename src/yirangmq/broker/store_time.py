"""Store time: the clock of all stored instants, and its record in the store.

Every stored instant lies on store time (docs/decisions/0021-store-time.md). While the machine runs, store time is the
time since boot plus an offset. The offset is on record in the store, so that all processes of a boot agree on it,
whatever happens to the wall clock. After a reboot store time goes on by as much as the wall clock advanced, never back,
and not at all if that is over ``MOST_OFF_MS``.

The record is read when a store is opened or a node becomes active. Commits renew it about every ``RECORD_MS``. For the
committer's thread."""

import json  # an idle server loads no faster reader
from contextlib import suppress
from typing import NamedTuple

from yirangmq.clock import SystemClock, boot_id
from yirangmq.core.errors import QueueError
from yirangmq.core.message import Envelope, Failure, Message
from yirangmq.core.ports import Clock, Store, Transaction

NOTE = "clock"
"""The note of the store that holds the record."""
RECORD_MS = 60_000
"""How often the record is renewed, by a commit that is made anyway."""
MOST_OFF_MS = 366 * 24 * 3_600_000
"""A wall clock that says that the machine was off for longer is not believed."""


# -- offset from the time since boot -----------------------------------------------------------------------------------


class Record(NamedTuple):
    """``boot`` names the boot (``clock.boot_id``), ``offset_ms`` is store time less the time since that boot. Both
    times are of the moment at which the record was written."""

    boot: str
    offset_ms: int
    store_ms: int
    wall_ms: int


def resumed(record: Record | None, boot: str, boot_ms: int, wall_ms: int) -> int:
    """The offset of store time from the time since boot.

    In the boot of the record it is the recorded one. In another boot store time goes on from where it was, by as much
    as the wall clock has moved since: never back, and not at all if the wall clock is behind or implausibly ahead. A
    store without a record begins at the wall clock."""
    if record is None:
        return wall_ms - boot_ms
    if boot and boot == record.boot and boot_ms + record.offset_ms >= record.store_ms:
        return record.offset_ms
    off = wall_ms - record.wall_ms
    return record.store_ms + (off if 0 <= off <= MOST_OFF_MS else 0) - boot_ms


# -- wall-clock time of stored instants --------------------------------------------------------------------------------


def shown_message(message: Message, ahead: int) -> Message:
    """Its instants on the wall clock, which is ``ahead`` of store time."""
    return message._replace(
        due_at=_shown(message.due_at, ahead),
        expires_at=_shown(message.expires_at, ahead),
        changed_at=_shown(message.changed_at, ahead),
    )


def shown_envelope(envelope: Envelope, ahead: int) -> Envelope:
    return envelope._replace(
        published_at=_shown(envelope.published_at, ahead),
        available_at=_shown(envelope.available_at, ahead),
        expires_at=_shown(envelope.expires_at, ahead),
    )


def shown_failure(failure: Failure, ahead: int) -> Failure:
    return failure._replace(failed_at=_shown(failure.failed_at, ahead))


def _shown(instant: int, ahead: int) -> int:
    """0 stands for never. A store that began in 1970 has instants that a clock set back would put before it."""
    return max(1, instant + ahead) if instant else 0


# -- record in the store -----------------------------------------------------------------------------------------------

NEVER = 1 << 62


class StoreTime:
    """The record of one store, for one clock. A clock that a test holds in its hands is left alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock if isinstance(clock, SystemClock) else None
        self._boot = "" if self._clock is None else boot_id()
        self._is_agreed = False
        """The record in the store is of this boot, and the clock goes by it."""
        self.record_at = NEVER if self._clock is None else 0
        """The first commit from this moment on renews the record: ``keep``."""

    def resume(self, transaction: Transaction) -> None:
        """Set the clock by the record. Nothing is written: the next commit puts this boot on record."""
        if self._clock is not None:
            found = read_record(transaction)
            self._clock.resume(resumed(found, self._boot, self._clock.boot_ms, self._clock.wall_ms()))
            self._is_agreed = found is not None and found.boot == self._boot != ""
            self.renew()

    def renew(self) -> None:
        """The next commit renews the record, as when the wall clock was set."""
        if self._clock is not None:
            self.record_at = 0

    def keep(self, transaction: Transaction) -> None:
        """Renew the record, as part of a commit."""
        clock = self._clock
        if clock is None:
            return
        if not self._is_agreed:
            self._agree(transaction, clock)
        if clock.ahead_ms() and _is_unused(transaction):
            clock.resume(clock.wall_ms() - clock.boot_ms)
        now = clock.now_ms()
        self.record_at = now + RECORD_MS  # first: if the commit fails, it is made again without this
        transaction.set_note(NOTE, write_record(Record(self._boot, clock.offset_ms, now, clock.wall_ms())))

    def _agree(self, transaction: Transaction, clock: SystemClock) -> None:
        """Another process of this boot may have been first: its offset holds for all."""
        found = read_record(transaction)
        if found is not None and found.boot == self._boot != "":
            clock.resume(resumed(found, self._boot, clock.boot_ms, clock.wall_ms()))
        self._is_agreed = True


def resume(store_time: StoreTime, store: Store) -> None:
    """Of a store that was just opened. One that cannot be read says so when it is used."""
    with suppress(QueueError), store.transaction(write=False) as transaction:
        store_time.resume(transaction)


def _is_unused(transaction: Transaction) -> bool:
    """No stored instant can be harmed: a device that begins with a wrong clock gets the right one before first use."""
    return transaction.next_due() is None and not transaction.totals().published


def read_record(transaction: Transaction) -> Record | None:
    """A record that cannot be read is none: store time begins at the wall clock."""
    text = transaction.note(NOTE)
    if text is None:
        return None
    try:
        known = json.loads(text)
        return Record(str(known["bootId"]), int(known["offsetMs"]), int(known["storeTimeMs"]), int(known["wallTimeMs"]))
    except (KeyError, TypeError, ValueError):
        return None


def write_record(record: Record) -> str:
    document = {
        "bootId": record.boot,
        "offsetMs": record.offset_ms,
        "storeTimeMs": record.store_ms,
        "wallTimeMs": record.wall_ms,
    }
    return json.dumps(document, separators=(",", ":"))
