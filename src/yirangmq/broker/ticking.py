"""Publishes the ticks of all schedules, each once, as they fall due. Ticks while nothing runs are skipped.

Knows: the desk, the clock. Does not know: cron, asyncio."""

import logging
from typing import Any

from yirangmq.broker.alarm import Alarm
from yirangmq.broker.desk import Desk
from yirangmq.broker.schedules import Tick, all_schedules, envelope_of, zone_of
from yirangmq.core import cron
from yirangmq.core.errors import BadInput, QueueError, StoreError
from yirangmq.core.ports import Clock, Transaction

GRACE_MS = 60_000
"""A tick this late is skipped: the machine slept, or the store refused for too long."""
LOOK_MS = 10_000
"""Policies are looked at so often even if no tick is due: another process may have changed one."""
RETRY_SECONDS = 1.0
log = logging.getLogger("yirangmq")


class Ticking:
    """The clock's hand. Used from the desk's thread: ``start``, ``stop``, and again where duty comes and goes."""

    def __init__(self, desk: Desk, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock
        self._seen = clock.wall_ms()
        self._alarm = Alarm(desk, self._look)

    def start(self) -> None:
        """From now on; what was due before is skipped."""
        self._seen = self._clock.wall_ms()
        self._alarm.start()

    def stop(self) -> None:
        self._alarm.stop()

    def _look(self) -> None:
        now = self._clock.wall_ms()
        try:
            ticks, soonest = self._desk.read(lambda transaction: self._due(transaction, now))
        except QueueError as error:
            log.warning("schedules cannot be read: %s", error)
            self._alarm.set(RETRY_SECONDS)
            return
        self._alarm.set(max(0, min(soonest, now + LOOK_MS) - self._clock.wall_ms()) / 1000)
        if not ticks:
            self._seen = now
            return

        def done(value: Any, error: QueueError | None) -> None:
            if error is None:
                self._seen = max(self._seen, now)
            else:
                self._alarm.set(RETRY_SECONDS)

        self._desk.submit(lambda transaction: self._publish(transaction, ticks), done)

    def _due(self, transaction: Transaction, now: int) -> tuple[list[Tick], int]:
        """The ticks since the last look, and when the next one is due."""
        since = max(self._seen, now - GRACE_MS)
        ticks: list[Tick] = []
        soonest = now + LOOK_MS
        for queue, schedule in all_schedules(transaction):
            try:
                zone = zone_of(schedule.timezone)
            except BadInput:  # a file edited by hand; ``listed`` shows it
                continue
            ticks += [Tick(queue, schedule, at) for at in cron.fires(schedule.cron, since, now, zone)]
            soonest = min(soonest, cron.next_fire(schedule.cron, now, zone))
        return ticks, soonest

    def _publish(self, transaction: Transaction, ticks: list[Tick]) -> None:
        """One that is refused, by a quota for example, is lost and harms no other."""
        now = self._clock.now_ms()
        verbs, sent = self._desk.verbs, [(tick, [envelope_of(tick, now)]) for tick in ticks]
        for tick, envelopes in sent:
            verbs.gate.clear(transaction, tick.queue, envelopes)
        for tick, envelopes in sent:
            try:
                verbs.publish(transaction, tick.queue, envelopes)
            except StoreError:
                raise
            except QueueError as error:
                log.warning("schedule %s of queue %s was refused: %s", tick.schedule.name, tick.queue, error)
