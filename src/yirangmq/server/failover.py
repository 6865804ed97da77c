"""Server as a node of a failover pair: its work on role changes, operator methods, adoption, overlap report.

This is the ``ServerControl`` port of ``failover.node``. A node that becomes active starts background work and opens the
listeners that a standby keeps closed. A port that is taken is tried again every half second. A node that stops being
active stops the work and redirects its clients.

Before an orderly stop the active node hands over, if ``pair_handover`` is on and a standby is ready. Otherwise no node
is active afterwards: the standby reports that, and takes over by order only.

Draining before a planned switch waits until no message is left, at most the configured seconds. It ends earlier when no
count has changed for a second, because then no consumer takes messages. Leases are then treated as at a stop.

``pair_adopt`` moves the messages of another node's store into this one. It holds the lock of that store meanwhile,
and opens it with the files by date beside it. If both nodes were active at the same time, the messages accepted here
since then are written to ``overlap-TERM.jsonl``, one JSON document a line. Both are done by
``broker.export_import``."""

import asyncio
import os
from collections.abc import Coroutine
from datetime import UTC, datetime, tzinfo
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yirangmq.admin.registry import Done, Given, MethodRegistry, PagedMethods, read_arguments
from yirangmq.broker import export_import
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.queues import Queues
from yirangmq.broker.store_time import resume
from yirangmq.clock import SystemClock, TimeOrderedIds, zone_or_local
from yirangmq.config.config import Config
from yirangmq.config.settings import OFF
from yirangmq.core.alert_rules import KEYS_DIFFER, InactiveFacts, PeerFacts, ServerFacts
from yirangmq.core.errors import BadInput, NotActive, NotFound, QueueError, WrongState
from yirangmq.core.failover import FailoverTiming, Role, Status
from yirangmq.core.health import HealthReason, health_reason
from yirangmq.core.ports import Transaction
from yirangmq.failover.node import PairNode, PairSettings
from yirangmq.failover.state_file import FailoverStateFolder
from yirangmq.failover.switch import hand_over_before_stop, switch
from yirangmq.format.json_codec import dumps
from yirangmq.fsio.permissions import open_file
from yirangmq.observe.logs import log, values
from yirangmq.protocols.context import ServerContext, ServerIdentity
from yirangmq.protocols.listen import unguarded
from yirangmq.server.components import Component
from yirangmq.server.lifecycle import Lifecycle, notify
from yirangmq.server.listeners import ServerListeners
from yirangmq.stores.journal.files import DEFAULT_FOLDER, JournalFiles
from yirangmq.stores.journal.store import JournaledStore, read_position
from yirangmq.stores.lock import Holder, StoreLock
from yirangmq.stores.open import open_store
from yirangmq.wire.heartbeat import MAX_TEXT

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import MetricValue


# -- adoption of a store, and the overlap report -----------------------------------------------------------------------


def adopt(ours: Queues, url: str, here: str, there: str, *, dry_run: bool, zone: tzinfo | None = UTC) -> dict[str, Any]:
    """Move the messages of a store that no server holds into ours. The lock of that store is held meanwhile."""
    scheme, _, path = url.partition(":")
    if scheme not in ("sqlite", "files") or not path:
        raise BadInput(f"{url!r} is not a store that can be adopted; use sqlite:FILE or files:FOLDER", field="store")
    if not Path(path).exists():
        raise NotFound(f"there is no store at {path}", field="store")
    lock = StoreLock(url, Holder(os.getpid(), "", here, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"))
    try:
        with _open_adopted_store(url, Path(path), zone, dry_run=dry_run) as theirs:
            return export_import.adopt(ours, theirs, here, there, dry_run=dry_run)
    finally:
        lock.close()


def _open_adopted_store(url: str, path: Path, zone: tzinfo | None, *, dry_run: bool) -> Queues:
    """Open the store to adopt, with its files by date if they are beside it: they record the messages that leave."""
    store = open_store(url)
    files = path.absolute().parent / DEFAULT_FOLDER
    with store.transaction(write=False) as transaction:
        has_files = read_position(transaction) is not None and files.is_dir()
    clock = SystemClock()
    if has_files and not dry_run:
        store = JournaledStore(store, JournalFiles(files), clock, zone)
    queues = Queues(store, clock, TimeOrderedIds(clock.now_ms))
    resume(queues.operations.store_time, store)
    return queues


def overlap(queues: Queues, since_ms: int, file: Path) -> int:
    """Write the messages accepted since ``since_ms``, one JSON document a line. Durable on return."""
    with os.fdopen(open_file(file, os.O_WRONLY | os.O_TRUNC), "wb") as out:
        count = export_import.overlap(queues, since_ms, lambda about: _write_line(out, about))
        out.flush()
        os.fsync(out.fileno())
    return count


def _write_line(out: Any, about: dict[str, Any]) -> None:
    out.write(dumps(about) + b"\n")


# -- server side of the pair -------------------------------------------------------------------------------------------

DRAIN_POLL_SECONDS = 0.02
DRAIN_STALL_SECONDS = 1.0
"""Draining ends if no count changes for this time, because then no consumer takes messages."""
RETRY_SECONDS = 0.5
SWITCH_SECONDS = 60
MAX_HISTORY = 100_000


class ServerPairNode:
    """Node of a failover pair: ``server.server.ServerNode``, and ``failover.node.ServerControl``.

    Created on the loop's thread, where everything runs; active from ``open`` to ``close``."""

    def __init__(self, config: Config, key: str) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.hands_over = config.pair_handover != OFF
        """True if the active node hands over before an orderly stop. An operator may change it until the next start."""
        self._activations = 0
        """Number of times that this node became active."""
        self.node = PairNode(_settings(config, key), FailoverStateFolder(Path(config.pair_folder)), self)
        self.guard = unguarded

    def connect(
        self, context: ServerContext, pages: PagedMethods, listeners: ServerListeners, lifecycle: Lifecycle
    ) -> None:
        self._committer = context.committer
        self._topics = context.topics
        self._pages = pages
        self._listeners = listeners
        self._lifecycle = lifecycle
        self._register_methods(context.methods)
        context.committer.guard = self.node
        if context.topics is not None:
            context.topics.guard = self.node

    async def open(self) -> None:
        await self.node.open()

    async def run(self) -> None:
        self.node.run()

    async def prepare_stop(self) -> None:
        """Hand over to the standby before an orderly stop. If that fails, the reason is logged and the stop goes on."""
        notify("STOPPING=1")
        if self.node.failover_node.own.role is not Role.ACTIVE:
            return
        if not self.hands_over:
            log.info("handover_skipped", extra=values(reason="an operator or pair_handover switched it off"))
            return
        config = self._config
        seconds = config.pair_drain_seconds + config.stop_seconds + config.pair_interval_seconds
        try:
            await hand_over_before_stop(self.node, seconds)
        except QueueError as error:
            log.warning("handover_skipped", extra=values(reason=str(error)))

    def component(self) -> Component:
        return Component(
            "pair",
            status="pair",
            drain=partial(self.node.stop, Status.STOPPING),
            close=self.close,
            facts=self.facts,
            samples=self.samples,
            reasons=self.reasons,
        )

    def close(self) -> None:
        self.node.stop(Status.STOPPED)
        self.node.close()

    def add_role(self, introduction: ServerIdentity) -> ServerIdentity:
        own = self.node.failover_node.own
        role = Role.ACTIVE if self.node.is_on else Role.STANDBY
        return introduction._replace(role=role, term=own.term)

    def facts(self) -> dict[str, Any]:
        """Return the facts for ``status``."""
        own = self.node.failover_node.own
        peer = self.node.describe()["peer"]
        shown = ("node", "role", "status", "term", "heardSec", "silent")
        return {
            "node": own.node,
            "role": own.role,
            "status": own.status,
            "term": own.term,
            "works": self.node.is_on,
            "linkDelayMs": self.node.failover_node.delay,
            "peer": None if peer is None else {name: peer[name] for name in shown},
        }

    def peer_facts(self) -> PeerFacts:
        """Return the facts for alert rules."""
        failover_node, now = self.node.failover_node, self.node.now()
        peer = failover_node.peer
        return PeerFacts(
            "" if peer is None else peer.node,
            failover_node.silence(now),
            failover_node.pace.timeout,
            "" if peer is None else peer.status,
            failover_node.datagram_silence(now),
            failover_node.keys_differ(now),
        )

    def alert_facts(self, window: int) -> ServerFacts:
        failover_node, now = self.node.failover_node, self.node.now()
        without_active = failover_node.time_without_active(now)
        return ServerFacts(
            peer=self.peer_facts(),
            inactive=InactiveFacts(without_active, failover_node.pace.takeover, self.node.inactive_reason()),
            role_changes=[role_change for at, role_change in self.node.role_changes if at >= now - window],
            switches=failover_node.switches,
        )

    def health_members(self) -> dict[str, Any]:
        return {"pair": self.facts()}

    def reasons(self) -> list[HealthReason]:
        """Return the reasons for ``health``: the peer is silent, or has another key."""
        peer = self.peer_facts()
        if peer.keys_differ:
            return [health_reason("pair_keys_differ", KEYS_DIFFER)]
        if peer.silence <= peer.timeout or peer.status in (Status.STOPPING, Status.STOPPED):
            return []
        subject = f"the peer {peer.node}" if peer.node else "the peer"
        return [health_reason("peer_silent", f"{subject} has been silent for {peer.silence / 1000:.1f} s")]

    def samples(self) -> "dict[str, MetricValue]":
        failover_node, link, now = self.node.failover_node, self.node.link, self.node.now()
        own = failover_node.own
        heartbeats: list[tuple[dict[str, str], float]] = [
            ({"way": "sent"}, link.sent),
            ({"way": "heard"}, link.received),
        ]
        heartbeats.append(({"way": "refused"}, sum(link.refused.values())))
        found: dict[str, MetricValue] = {
            "yirangmq_pair_active": [({}, float(own.role is Role.ACTIVE))],
            "yirangmq_pair_term": [({}, own.term)],
            "yirangmq_pair_silence_seconds": [({}, failover_node.silence(now) / 1000)],
            "yirangmq_pair_switches": [({}, failover_node.switches)],
            "yirangmq_pair_heartbeats_total": heartbeats,
        }
        if failover_node.delay is not None:
            found["yirangmq_pair_link_delay_seconds"] = [({}, failover_node.delay / 1000)]
        return found

    # -- failover.node.ServerControl -----------------------------------------------------------------------------------

    def start_work(self) -> None:
        self._committer.on_role_change()
        self._lifecycle.components.start()
        self._spawn(self._open_listeners())

    async def _open_listeners(self) -> None:
        """Open the listeners, with retries while this node is active: a port may be taken, or the store may refuse."""
        self._activations = activation = self._activations + 1
        while self.node.failover_node.own.role is Role.ACTIVE and self._activations == activation:
            try:
                await self._listeners.open_for_active()
                return
            except QueueError as error:
                log.error("listener_open_failed", extra=values(error=str(error)))
            await asyncio.sleep(RETRY_SECONDS)

    def stop_work(self, refusal: NotActive) -> None:
        self._lifecycle.components.pause()
        if self._topics is not None:
            self._topics.dismiss(refusal)
        self._listeners.redirect(refusal)

    async def drain(self, seconds: float) -> dict[str, int]:
        until = self._loop.time() + seconds
        last, changed_at = self._readable_backlog(), self._loop.time()
        while sum(last.values()) and self._loop.time() < until:
            await asyncio.sleep(DRAIN_POLL_SECONDS)
            found = self._readable_backlog()
            if found != last:
                last, changed_at = found, self._loop.time()
            elif self._loop.time() - changed_at > DRAIN_STALL_SECONDS:
                break
        self._lifecycle.components.pause()
        try:
            await self._lifecycle.finish_work()
        except QueueError as error:  # a store that fails is a reason to hand over, not to stay active
            log.warning("drain_failed", extra=values(error=str(error)))
        return {queue: count for queue, count in self._readable_backlog().items() if count}

    def _backlog(self) -> dict[str, int]:
        return self._committer.read(_backlog)

    def _readable_backlog(self) -> dict[str, int]:
        """Return the backlog; {} while the store cannot be read."""
        try:
            return self._backlog()
        except QueueError:
            return {}

    def depth(self) -> int:
        return sum(self._readable_backlog().values())

    def addresses(self) -> str:
        if self._config.pair_address:
            return ", ".join(part.strip() for part in self._config.pair_address.split(","))
        near = [one for one in self._listeners.addresses if one.startswith(("tcp:", "tls:", "http:", "https:"))]
        while len(found := ", ".join(near)) > MAX_TEXT:
            near.pop()
        return found

    def report_overlap(self, since_ms: int, term: int) -> None:
        file = Path(self._config.pair_folder) / f"overlap-{term}.jsonl"

        def done(found: Any, error: QueueError | None) -> None:
            about = {"term": term, "file": str(file)}
            if error is None:
                self.node.memory.append_history("overlap", about | {"messages": found})
                log.warning("overlap_reported", extra=values(messages=found, **about))
            else:
                self.node.memory.append_history("overlap", about | {"error": str(error)})
                log.warning("overlap_report_failed", extra=values(error=str(error), **about))

        self._pages.start(lambda queues, given: overlap(queues, since_ms, file), {}, done)

    # -- operator methods ----------------------------------------------------------------------------------------------

    def _register_methods(self, calls: MethodRegistry) -> None:
        calls.add_entry("pair_status", self._status)
        calls.add_entry("pair_history", self._history)
        calls.add_entry("pair_switch", self._switch)
        calls.add_entry("pair_handover", self._set_handover)
        calls.add_entry("pair_adopt", self._adopt)

    def _status(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        read_arguments(given, lambda values: None)
        done(self.node.describe() | {"handover": self.hands_over, "backlog": self._backlog()}, None)

    def _history(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        limit = read_arguments(given, lambda values: values.whole("limit", 100, least=1, most=MAX_HISTORY))
        done(self.node.memory.history(limit), None)

    def _switch(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        to, seconds = read_arguments(
            given, lambda values: (values.text("to"), values.whole("seconds", SWITCH_SECONDS, least=1, most=3600))
        )

        async def run() -> None:
            try:
                done(await switch(self.node, to, seconds), None)
            except QueueError as error:
                done(None, error)

        self._spawn(run())

    def _set_handover(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        self.hands_over = read_arguments(given, lambda values: values.flag("on", True))
        own = self.node.failover_node.own
        log.warning("handover_set", extra=values(on=self.hands_over))
        done({"node": own.node, "role": own.role, "handover": self.hands_over}, None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _adopt(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        url, node, dry_run = read_arguments(
            given, lambda values: (values.text("store"), values.text("node"), bool(values.take("dry_run", False)))
        )
        if not self.node.is_on:  # not ``not_active``: a client would retry, or follow it to a node without that disk
            hint = "a store is adopted by the active node: run this there, or make this node active (`pair switch`)"
            done(None, WrongState(f"{hint}; {self.node.refusal()}", field="store"))
            return
        here, zone = self._config.node_name, zone_or_local(self._config.files_by_date_zone, "files_by_date_zone")
        if node == here:
            done(None, WrongState("that is this node", field="node"))
            return

        def on_done(found: Any, error: QueueError | None) -> None:
            if error is None and not dry_run:
                self.node.memory.append_history("adopted", {"from": node, "store": url, **found})
            done(found, error)

        def work(queues: Queues, _: Given) -> dict[str, Any]:
            return adopt(queues, url, here, node, dry_run=dry_run, zone=zone)

        self._pages.start(work, {}, on_done)


def _backlog(transaction: Transaction) -> dict[str, int]:
    """Return the number of messages per queue that wait, are claimed or are leased."""
    found = {}
    for queue in transaction.queues():
        counts = transaction.counts(queue)
        found[queue] = counts.ready + counts.delayed + counts.claimed + counts.leased + counts.held
    return found


def _settings(config: Config, key: str) -> PairSettings:
    pace = FailoverTiming(
        round(config.pair_interval_seconds * 1000),
        config.pair_misses,
        round(config.pair_cooldown_seconds * 1000),
        bool(config.pair_witness),
    )
    peer = config.pair_peer_address
    assert peer is not None
    return PairSettings(
        config.node_name,
        config.pair_listen_address,
        peer,
        key.encode(),
        pace,
        config.pair_witness,
        config.pair_drain_seconds,
    )
