"""Store time from one boot of the machine to the next: by how much it goes on while nothing runs.

Store time is the line on which every stored instant lies (docs/decisions/0021-store-time.md). While the machine runs it
is the time since boot plus an offset; the offset is on record in the store, so that all processes of one boot agree on
it whatever becomes of the wall clock."""

from typing import NamedTuple

from yirangmq.core.message import Envelope, Failure, Message

NOTE = "clock"
"""The note of the store that holds the record."""
RECORD_MS = 60_000
"""How often the record is renewed, by a commit that is made anyway."""
MOST_OFF_MS = 366 * 24 * 3_600_000
"""A wall clock that says that the machine was off for longer is not believed."""


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
