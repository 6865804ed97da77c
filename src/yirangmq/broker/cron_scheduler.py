"""Scheduler: cron schedules of the policies, the timer that rereads policies, and the publisher of ticks.

A tick is published as a message whose id is the schedule's name and the due time, so that a tick published twice is
stored once. All due ticks share a commit. Ticks are skipped while no server runs, and when they are over ``GRACE_MS``
late. A refused tick is logged and lost. Cron expressions are evaluated by ``core.cron``.

The timer fires at a set time, and immediately when this process changed a policy; ``webhooks.webhooks`` uses it too.
Committer's thread only."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.clock import zone_of
from yirangmq.core import cron
from yirangmq.core.errors import BadInput, BadPolicy, QueueError, StoreError
from yirangmq.core.events import Event, QueueChanged
from yirangmq.core.message import Envelope
from yirangmq.core.policy import QueuePolicy, Schedule
from yirangmq.core.ports import Clock, Transaction
from yirangmq.format.envelope import ENVELOPE, PAYLOAD, iso, read
from yirangmq.format.json_codec import dumps

# -- schedules ---------------------------------------------------------------------------------------------------------


class Tick(NamedTuple):
    """One due time of a schedule; ``at`` is wall-clock time in ms."""

    queue: str
    schedule: Schedule
    at: int


def check_schedules(queue: str, policy: QueuePolicy) -> None:
    """Check that each time zone exists on this machine, and that each message can be published."""
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
            raise BadInput("is set by the schedule", field="messageId")
    except BadInput as error:
        text = str(error).removeprefix(f"{error.field}: ")
        raise BadInput(text, field=f"message.{error.field}" if error.field else "message") from None


def envelope_of(tick: Tick, now: int) -> Envelope:
    stamp = datetime.fromtimestamp(tick.at / 1000, UTC)
    id = f"{tick.schedule.name}-{stamp:%Y%m%dT%H%M%SZ}"
    return _read(tick.queue, tick.schedule, id, now)._replace(id=id)


def _read(queue: str, schedule: Schedule, id: str, now: int) -> Envelope:
    """Build the message of a schedule. The schedule gives its id, so any object with a payload is an envelope."""
    message = schedule.message
    has_payload = isinstance(message, Mapping) and not {"payload", "payloadBase64"}.isdisjoint(message)
    return read(queue, dumps(message), id, now, read_as=ENVELOPE if has_payload else PAYLOAD)


def schedule_rows(transaction: Transaction, now: int, queue: str | None = None) -> list[dict[str, Any]]:
    """Return a row per schedule, of one queue or of all, with its next fire time, or None and an error text."""
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
    for queue in transaction.queues_with_policy():  # queues without a policy have no schedules
        try:
            policy = transaction.policy(queue)
        except BadPolicy:  # edited by hand; operations on that queue report the error
            continue
        for schedule in policy.schedules:
            yield queue, schedule


# -- timer -------------------------------------------------------------------------------------------------------------


class PolicyTimer:
    """Timer that calls ``poll`` at a set time, and immediately after this process changed a policy.

    ``poll`` is called only between ``start`` and ``stop``. Both may be called repeatedly, as a node becomes active and
    standby. Committer's thread only."""

    def __init__(self, committer: GroupCommitter, poll: Callable[[], None]) -> None:
        self._committer = committer
        self._poll = poll
        self._round = 0
        self._is_on = False
        self._listens = False

    def start(self) -> None:
        self._is_on = True
        if not self._listens:
            self._listens = True
            self._committer.operations.event_buffer.add_listener(self._on_events, [QueueChanged])
        self._poll()

    def stop(self) -> None:
        self._is_on = False

    def set(self, seconds: float) -> None:
        """Fire in ``seconds``. Each call replaces the time that was set before."""
        self._round += 1
        number = self._round
        self._committer.later(seconds, lambda: self._fire(number))

    def _fire(self, number: int) -> None:
        if self._is_on and number == self._round:
            self._poll()

    def _on_events(self, events: Sequence[Event]) -> None:
        """Handle a change of a queue's policy or pause."""
        self.set(0.0)


# -- publisher of ticks ------------------------------------------------------------------------------------------------

GRACE_MS = 60_000
"""Lateness after which a tick is skipped, in ms: the machine slept, or the store rejected commits for too long."""
POLL_INTERVAL_MS = 10_000
"""Upper bound of the interval between two reads of the policies, in ms, because another process may change one."""
RETRY_SECONDS = 1.0
"""Delay before the next attempt after a read or a commit failed, in seconds."""
log = logging.getLogger("yirangmq")


class Scheduler:
    """Scheduler: publishes the messages of due schedules.

    ``start`` and ``stop`` may be called repeatedly, as a node becomes active and standby. Committer's thread only."""

    def __init__(self, committer: GroupCommitter, clock: Clock) -> None:
        self._committer = committer
        self._clock = clock
        self._seen = clock.wall_ms()
        self._alarm = PolicyTimer(committer, self._poll)

    def start(self) -> None:
        """Publish the ticks that become due from now on; earlier ones are skipped."""
        self._seen = self._clock.wall_ms()
        self._alarm.start()

    def stop(self) -> None:
        self._alarm.stop()

    def _poll(self) -> None:
        now = self._clock.wall_ms()
        try:
            ticks, soonest = self._committer.read(lambda transaction: self._due(transaction, now))
        except QueueError as error:
            log.warning("schedules_read_failed", extra={"values": {"error": str(error)}})
            self._alarm.set(RETRY_SECONDS)
            return
        self._alarm.set(max(0, min(soonest, now + POLL_INTERVAL_MS) - self._clock.wall_ms()) / 1000)
        if not ticks:
            self._seen = now
            return

        def done(value: Any, error: QueueError | None) -> None:
            if error is None:
                self._seen = max(self._seen, now)
            else:
                self._alarm.set(RETRY_SECONDS)

        self._committer.submit(lambda transaction: self._publish(transaction, ticks), done)

    def _due(self, transaction: Transaction, now: int) -> tuple[list[Tick], int]:
        """Return the ticks since the last published time, and the time of the next read: the next tick, at most
        ``POLL_INTERVAL_MS`` from now."""
        since = max(self._seen, now - GRACE_MS)
        ticks: list[Tick] = []
        soonest = now + POLL_INTERVAL_MS
        for queue, schedule in all_schedules(transaction):
            try:
                zone = zone_of(schedule.timezone)
            except BadInput:  # edited by hand; ``schedule_rows`` reports it
                continue
            ticks += [Tick(queue, schedule, at) for at in cron.fires(schedule.cron, since, now, zone)]
            soonest = min(soonest, cron.next_fire(schedule.cron, now, zone))
        return ticks, soonest

    def _publish(self, transaction: Transaction, ticks: list[Tick]) -> None:
        """Publish the ticks. A tick that is refused, for instance by a quota, is lost; the others are published."""
        now = self._clock.now_ms()
        operations, sent = self._committer.operations, [(tick, [envelope_of(tick, now)]) for tick in ticks]
        for tick, envelopes in sent:
            operations.admission.clear(transaction, tick.queue, envelopes)
        for tick, envelopes in sent:
            try:
                operations.publish(transaction, tick.queue, envelopes)
            except StoreError:
                raise
            except QueueError as error:
                about = {"queue": tick.queue, "schedule": tick.schedule.name, "error": str(error)}
                log.warning("schedule_publish_rejected", extra={"values": about})
