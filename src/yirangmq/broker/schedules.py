"""The schedules in the policies: whether they can be kept, when they fire next, and the message of a tick.

A tick's message id is the schedule's name and the time it was due, so that a tick published twice is stored once. The
arithmetic of cron is ``core.cron``; ``broker.ticking`` publishes."""

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import Any, NamedTuple

from yirangmq.core import cron
from yirangmq.core.errors import BadInput, BadPolicy
from yirangmq.core.message import Envelope
from yirangmq.core.policy import QueuePolicy, Schedule
from yirangmq.core.ports import Transaction
from yirangmq.format.envelope import iso, read
from yirangmq.format.json_codec import dumps


class Tick(NamedTuple):
    queue: str
    schedule: Schedule
    at: int


def zone_of(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # most queues have no schedule

    try:
        return ZoneInfo(name)
    except (ValueError, KeyError, OSError):
        raise BadInput(f"{name!r} is not a time zone this machine knows", field="timezone") from None


def check_schedules(queue: str, policy: QueuePolicy) -> None:
    """What the document alone cannot show: the time zone is known here, the message can be published."""
    for number, schedule in enumerate(policy.schedules):
        try:
            zone_of(schedule.timezone)
            _check_message(queue, schedule)
        except BadInput as error:
            text = str(error).removeprefix(f"{error.field}: ")
            raise BadPolicy(text, field=f"schedules[{number}].{error.field}") from None


def _check_message(queue: str, schedule: Schedule) -> None:
    try:
        if _read(queue, schedule, "", 0).id:
            raise BadInput("is given by the schedule", field="messageId")
    except BadInput as error:
        text = str(error).removeprefix(f"{error.field}: ")
        raise BadInput(text, field=f"message.{error.field}" if error.field else "message") from None


def envelope_of(tick: Tick, now: int) -> Envelope:
    stamp = datetime.fromtimestamp(tick.at / 1000, UTC)
    id = f"{tick.schedule.name}-{stamp:%Y%m%dT%H%M%SZ}"
    return _read(tick.queue, tick.schedule, id, now)._replace(id=id)


def _read(queue: str, schedule: Schedule, id: str, now: int) -> Envelope:
    return read(queue, dumps(schedule.message), id, now)


def listed(transaction: Transaction, now: int, queue: str | None = None) -> list[dict[str, Any]]:
    """Every schedule, or those of one queue, with the time at which it fires next; null and why where it cannot."""
    return [_row(name, schedule, now) for name, schedule in all_schedules(transaction) if queue in (None, name)]


def _row(queue: str, schedule: Schedule, now: int) -> dict[str, Any]:
    row = {"queue": queue, "name": schedule.name, "cron": schedule.cron.text, "timezone": schedule.timezone}
    try:
        zone = zone_of(schedule.timezone)
    except BadInput as error:
        return row | {"nextAt": None, "nextLocal": None, "error": str(error)}
    at = cron.next_fire(schedule.cron, now, zone)
    local = datetime.fromtimestamp(at / 1000, zone).isoformat(timespec="minutes")
    return row | {"nextAt": iso(at), "nextLocal": local, "error": None}


def all_schedules(transaction: Transaction) -> Iterator[tuple[str, Schedule]]:
    for queue in transaction.policied():  # no other has one
        try:
            policy = transaction.policy(queue)
        except BadPolicy:  # a file that a person is editing; whoever uses the queue is told
            continue
        for schedule in policy.schedules:
            yield queue, schedule
