"""Alerting of a server: the alert monitor built from the settings, and the facts that its rules evaluate.

The collector gathers facts from the event stream (messages that died), the metrics of commits, the group committer, the
disk, the pair and the refused clients. What counts as a fault is decided in ``core.alert_rules``.

Queues cost about 25 µs each to read, so each evaluation reads at most 200 in rotation. It also reads up to 200 with a
known fault and up to 200 with recent deaths. A standby reports no queues. While the store cannot be read, the known
facts of queues stay as they are, because the failure of the store is reported as a separate fault. Loop thread only."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from yirangmq.admin.registry import MethodRegistry
from yirangmq.alerts.monitor import AlertFile, AlertMethods, AlertMonitor
from yirangmq.alerts.outbox import Outbox, create_channel
from yirangmq.broker import queries
from yirangmq.broker.event_buffer import EventBuffer
from yirangmq.clock import SteadyClock
from yirangmq.config.config import Config
from yirangmq.core.alert_rules import CounterGrowth, DiskFacts, QueueFacts, ServerFacts, SlidingWindow, faults
from yirangmq.core.alert_settings import AlertSettings
from yirangmq.core.errors import QueueError
from yirangmq.core.events import Event, MessagesDied
from yirangmq.core.ports import Transaction
from yirangmq.protocols.context import ServerContext
from yirangmq.webhooks.webhooks import read_secret

MINUTE_MS = 60_000
QUEUES_PER_EVALUATION = 200
"""Maximum number of queues read per evaluation: in rotation, with a fault, and with recent deaths; about 25 µs each."""
MAX_FAULTY_QUEUES = 1000
"""Maximum number of queues with a fault that are remembered. No alert is opened for further ones."""
MIN_CLOCK_JUMP_MS = 100
"""Smallest change of the wall clock that counts as a jump. Smaller ones are ordinary corrections."""
MAX_CLOCK_JUMPS = 100
MAX_LOSSES = 10
"""Maximum number of losses of topic records that are remembered."""


RefusalCounts = Callable[[], Mapping[str, int]]
"""Return the number of clients refused since the start, by reason."""
NodeFacts = Callable[[int], ServerFacts]
"""Return the facts that a node of a pair adds, of the last so many ms."""
CommitTotals = Callable[[], tuple[float, int]]
"""Return the seconds of all commits since the start, and their number (``Metrics.commit_totals``)."""


class AlertService:
    """Alerting of a server: monitor, sinks and methods. Created on the loop's thread; from ``start`` to ``stop``."""

    def __init__(
        self,
        config: Config,
        context: ServerContext,
        refused: RefusalCounts,
        node_facts: NodeFacts,
        commit_totals: CommitTotals,
    ) -> None:
        settings, clock = config.alerts, SteadyClock()
        self._settings = settings
        self._collector = AlertFactsCollector(context, settings, clock, refused, node_facts, commit_totals)
        file = AlertFile(Path(config.alerts_folder))
        self._monitor = AlertMonitor(settings, file, config.node_name, self._collector.facts, clock)
        secret = partial(read_secret, Path(config.secrets_folder))
        for sink in settings.sinks:
            channel = create_channel(sink, secret, config.outgoing_networks)
            outbox = Outbox(sink, channel, settings.give_up, self._monitor.sent, context.clock.now_ms)
            self._monitor.add(outbox)
        self.calls = AlertMethods(self._monitor)

    def register(self, calls: MethodRegistry, happened: EventBuffer) -> None:
        self.calls.register(calls)
        if self._settings.is_on:
            happened.add_listener(self._collector.on_events, [MessagesDied])

    def start(self) -> None:
        if self._settings.is_on:
            self._monitor.start()

    def stop(self) -> None:
        self._monitor.stop()


class AlertFactsCollector:
    """Collector of the facts that alert rules evaluate. Loop thread only."""

    def __init__(
        self,
        context: ServerContext,
        settings: AlertSettings,
        clock: SteadyClock,
        refused: RefusalCounts,
        node_facts: NodeFacts,
        commit_totals: CommitTotals,
    ) -> None:
        self._context = context
        self._refusal_counts = refused
        self._node_facts = node_facts
        self._window = settings.window
        self._clock = clock
        self._commits = SlidingWindow(MINUTE_MS)
        self._commit_totals = commit_totals
        self._evaluated_commits = commit_totals()
        """Seconds and number of the commits up to the last evaluation."""
        self._deaths: dict[str, SlidingWindow] = {}
        self._refused = CounterGrowth(settings.window)
        self._ahead = clock.ahead_ms()
        self._clock_jumps: deque[tuple[int, int]] = deque(maxlen=MAX_CLOCK_JUMPS)
        self._rules = settings.rules
        self._losses: deque[tuple[int, str]] = deque(maxlen=MAX_LOSSES)
        if context.topics is not None:
            context.topics.loss_listeners.append(lambda why: self._losses.append((clock.now_ms(), why)))
        self._rotation = queries.QueueRotation(QUEUES_PER_EVALUATION)
        self._faulty: dict[str, QueueFacts] = {}
        """Queues in which a rule found a fault when they were last read, the least recently read first."""

    def on_events(self, events: Sequence[Event]) -> None:
        """Process the events of a commit."""
        for event in events:
            if isinstance(event, MessagesDied):
                recent = self._deaths.setdefault(event.queue, SlidingWindow(self._window))
                recent.add(self._clock.now_ms(), event.count)

    def facts(self, now: int) -> ServerFacts:
        full_latch, trouble = self._context.full_latch, self._context.committer.last_error
        trouble = trouble or (None if full_latch is None else full_latch.refusal)
        return replace(
            self._node_facts(self._window),
            queues=self._queues(now),
            disk=self._disk(),
            refused=self._recent_refusals(now),
            commit=self._commit_mean(now),
            jump=self._largest_clock_jump(now),
            trouble="" if trouble is None else str(trouble),
            losses=[why for at, why in self._losses if now - at <= self._window],
        )

    def _commit_mean(self, now: int) -> float | None:
        seconds, count = self._commit_totals()
        known_seconds, known_count = self._evaluated_commits
        if count > known_count:
            self._commits.add(now, seconds - known_seconds, count - known_count)
            self._evaluated_commits = seconds, count
        return self._commits.mean(now)

    def _queues(self, now: int) -> list[QueueFacts]:
        """Return the facts of queues. A standby returns none: its messages wait until it becomes active.

        Of many queues, some are read in rotation, in addition to those with a fault or with recent deaths."""
        if not self._context.committer.guard.is_on:
            self._faulty = {}
            return []
        died = {queue: round(recent.total(now)) for queue, recent in self._deaths.items()}
        self._deaths = {queue: recent for queue, recent in self._deaths.items() if died[queue]}
        rows = self._read_rows(
            [*islice(self._faulty, QUEUES_PER_EVALUATION), *islice(self._deaths, QUEUES_PER_EVALUATION)]
        )
        found = [
            QueueFacts(queue, row["backlog"], row["headAgeSec"], died.get(queue, 0)) for queue, row in rows.items()
        ]
        self._note_faults(found)
        return [*self._faulty.values(), *(fact for fact in found if fact.queue not in self._faulty)]

    def _note_faults(self, found: Sequence[QueueFacts]) -> None:
        subjects = {fault.subject for fault in faults(ServerFacts(queues=found), self._rules)}
        for fact in found:
            self._faulty.pop(fact.queue, None)
            if fact.queue in subjects and len(self._faulty) < MAX_FAULTY_QUEUES:
                self._faulty[fact.queue] = fact

    def _read_rows(self, extra_queues: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """Read the rows of queues. Return {} if the store refuses: that is a separate fault, and known facts stay."""
        now = self._context.clock.now_ms()

        def work(transaction: Transaction) -> Mapping[str, Mapping[str, Any]]:
            names = dict.fromkeys([*extra_queues, *self._rotation.next(transaction)])
            found = {row["queue"]: row for row in queries.rows(transaction, list(names), now) if row["exists"]}
            for missing in names.keys() - found.keys():
                self._faulty.pop(missing, None)
            return found

        try:
            return self._context.committer.read(work)
        except QueueError:
            return {}

    def _disk(self) -> DiskFacts | None:
        disk = self._context.disk
        if disk is None or not disk.size:
            return None
        return DiskFacts(disk.free, disk.size, "" if disk.full is None else str(disk.full))

    def _recent_refusals(self, now: int) -> dict[str, int]:
        for why, count in self._refusal_counts().items():
            self._refused.observe(now, why, count, since=0)
        return self._refused.all(now)

    def _largest_clock_jump(self, now: int) -> float:
        """Return the largest jump of the wall clock in the window, in seconds."""
        before, self._ahead = self._ahead, self._clock.ahead_ms()
        if abs(self._ahead - before) >= MIN_CLOCK_JUMP_MS:
            self._clock_jumps.append((now, self._ahead - before))
        while self._clock_jumps and now - self._clock_jumps[0][0] > self._window:
            self._clock_jumps.popleft()
        return max((jump for _, jump in self._clock_jumps), key=abs, default=0) / 1000
