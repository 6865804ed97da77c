"""Alerting of a server: the alert monitor built from the settings, and the facts that its rules evaluate.

The collector gathers facts from the event stream (commits, messages that died), the group committer, the disk, the pair
and the refused clients. What counts as a fault is decided in ``core.alert_rules``.

Queues cost about 25 µs each to read, so each evaluation reads at most 200 in rotation. It also reads up to 200 with a
known fault and up to 200 with recent deaths. A standby reports no queues. While the store cannot be read, the known
facts of queues stay as they are, because the failure of the store is reported as a separate fault. Loop thread only."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from yirangmq.admin.health import Room, StoreDisk
from yirangmq.admin.registry import Calls
from yirangmq.alerts.monitor import AlertCalls, AlertFile, AlertWatch
from yirangmq.alerts.outbox import Outbox, channel_of
from yirangmq.broker import queries
from yirangmq.broker.event_buffer import Happenings
from yirangmq.broker.group_commit import Desk
from yirangmq.clock import SteadyClock
from yirangmq.config.config import Config
from yirangmq.core.alert_rules import DiskFacts, Facts, Growth, QueueFacts, Recent, faults
from yirangmq.core.alert_settings import AlertSettings
from yirangmq.core.errors import QueueError
from yirangmq.core.events import Committed, Died, Event
from yirangmq.core.ports import Clock, Transaction
from yirangmq.webhooks.webhooks import read_secret

if TYPE_CHECKING:
    from yirangmq.server.failover import PairWay

MINUTE_MS = 60_000
QUEUES_PER_LOOK = 200
"""Maximum number of queues read per evaluation: in rotation, with a fault, and with recent deaths; about 25 µs each."""
MOST_WITH_FAULTS = 1000
"""Maximum number of queues with a fault that are remembered. No alert is opened for further ones."""
LEAST_JUMP_MS = 100
"""Smallest change of the wall clock that counts as a jump. Smaller ones are ordinary corrections."""
MOST_JUMPS = 100


class Sources(NamedTuple):
    desk: Desk
    clock: Clock
    disk: StoreDisk | None
    refused: Callable[[], Mapping[str, int]]
    """Returns the number of clients refused since the start, by reason."""
    pair: "PairWay | None"
    room: Room | None = None


class Alerting:
    """Alerting of a server: monitor, sinks and methods. Created on the loop's thread; from ``start`` to ``stop``."""

    def __init__(self, config: Config, sources: Sources) -> None:
        settings, clock = config.alerts, SteadyClock()
        self._settings = settings
        self._gathering = Gathering(sources, settings, clock)
        file = AlertFile(Path(config.alerts_folder))
        self._watch = AlertWatch(settings, file, config.node_name, self._gathering.facts, clock)
        secret = partial(read_secret, Path(config.secrets_folder))
        for sink in settings.sinks:
            way = channel_of(sink, secret, config.outgoing_networks)
            box = Outbox(sink, way, settings.give_up, self._watch.sent, sources.clock.now_ms)
            self._watch.add(box)
        self.calls = AlertCalls(self._watch)

    def begin(self, calls: Calls, happened: Happenings) -> None:
        self.calls.begin(calls)
        if self._settings.is_on:
            happened.listen(self._gathering.hear, [Committed, Died])

    def start(self) -> None:
        if self._settings.is_on:
            self._watch.start()

    def stop(self) -> None:
        self._watch.stop()


class Gathering:
    """Collector of the facts that alert rules evaluate. Loop thread only."""

    def __init__(self, sources: Sources, settings: AlertSettings, clock: SteadyClock) -> None:
        self._sources = sources
        self._window = settings.window
        self._clock = clock
        self._commits = Recent(MINUTE_MS)
        self._spent = 0.0
        self._times = 0
        """Duration of the commits since the last evaluation, in seconds, and their number."""
        self._died: dict[str, Recent] = {}
        self._refused = Growth(settings.window)
        self._ahead = clock.ahead_ms()
        self._jumps: deque[tuple[int, int]] = deque(maxlen=MOST_JUMPS)
        self._rules = settings.rules
        self._rotation = queries.QueueRotation(QUEUES_PER_LOOK)
        self._faulty: dict[str, QueueFacts] = {}
        """Queues in which a rule found a fault when they were last read, the least recently read first."""

    def hear(self, events: Sequence[Event]) -> None:
        """Process the events of a commit."""
        for event in events:
            if isinstance(event, Committed):
                if event.messages:
                    self._spent += event.work_seconds + event.sync_seconds
                    self._times += 1
            elif isinstance(event, Died):
                lately = self._died.setdefault(event.queue, Recent(self._window))
                lately.add(self._clock.now_ms(), event.count)

    def facts(self, now: int) -> Facts:
        pair, room, trouble = self._sources.pair, self._sources.room, self._sources.desk.last_error
        trouble = trouble or (None if room is None else room.refusal)
        return Facts(
            queues=self._queues(now),
            peer=None if pair is None else pair.peer_facts(),
            turns=() if pair is None else pair.turns(self._window),
            switches=0 if pair is None else pair.node.partner.switches,
            disk=self._disk(),
            refused=self._lately_refused(now),
            commit=self._commit_mean(now),
            jump=self._jump(now),
            trouble="" if trouble is None else str(trouble),
        )

    def _commit_mean(self, now: int) -> float | None:
        if self._times:
            self._commits.add(now, self._spent, self._times)
            self._spent, self._times = 0.0, 0
        return self._commits.mean(now)

    def _queues(self, now: int) -> list[QueueFacts]:
        """Return the facts of queues. A standby returns none: its messages wait until it becomes active.

        Of many queues, some are read in rotation, in addition to those with a fault or with recent deaths."""
        if not self._sources.desk.duty.is_on:
            self._faulty = {}
            return []
        died = {queue: round(lately.total(now)) for queue, lately in self._died.items()}
        self._died = {queue: lately for queue, lately in self._died.items() if died[queue]}
        rows = self._read([*islice(self._faulty, QUEUES_PER_LOOK), *islice(self._died, QUEUES_PER_LOOK)])
        found = [
            QueueFacts(queue, row["backlog"], row["headAgeSec"], died.get(queue, 0)) for queue, row in rows.items()
        ]
        self._note_faults(found)
        return [*self._faulty.values(), *(fact for fact in found if fact.queue not in self._faulty)]

    def _note_faults(self, found: Sequence[QueueFacts]) -> None:
        subjects = {fault.subject for fault in faults(Facts(queues=found), self._rules)}
        for fact in found:
            self._faulty.pop(fact.queue, None)
            if fact.queue in subjects and len(self._faulty) < MOST_WITH_FAULTS:
                self._faulty[fact.queue] = fact

    def _read(self, besides: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """Read the rows of queues. Return {} if the store refuses: that is a separate fault, and known facts stay."""
        now = self._sources.clock.now_ms()

        def work(transaction: Transaction) -> Mapping[str, Mapping[str, Any]]:
            names = dict.fromkeys([*besides, *self._rotation.next(transaction)])
            found = {row["queue"]: row for row in queries.rows(transaction, list(names), now) if row["exists"]}
            for gone in names.keys() - found.keys():
                self._faulty.pop(gone, None)
            return found

        try:
            return self._sources.desk.read(work)
        except QueueError:
            return {}

    def _disk(self) -> DiskFacts | None:
        disk = self._sources.disk
        if disk is None or not disk.size:
            return None
        return DiskFacts(disk.free, disk.size, "" if disk.full is None else str(disk.full))

    def _lately_refused(self, now: int) -> dict[str, int]:
        for why, count in self._sources.refused().items():
            self._refused.see(now, why, count, since=0)
        return self._refused.all(now)

    def _jump(self, now: int) -> float:
        """Return the largest jump of the wall clock in the window, in seconds."""
        before, self._ahead = self._ahead, self._clock.ahead_ms()
        if abs(self._ahead - before) >= LEAST_JUMP_MS:
            self._jumps.append((now, self._ahead - before))
        while self._jumps and now - self._jumps[0][0] > self._window:
            self._jumps.popleft()
        return max((jump for _, jump in self._jumps), key=abs, default=0) / 1000
