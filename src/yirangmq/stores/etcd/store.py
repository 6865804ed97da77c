"""Message store in etcd: leader election, the leader's state in memory, one fenced commit per transaction.

The leader has all messages and envelopes in memory and reads there. The changes of a transaction are sent as one fenced
commit when its block is left (``cluster.fenced_commits``); elections are in ``cluster.leadership``. An asyncio loop on
the thread ``etcd`` talks to etcd. Transactions run one at a time on the caller's thread and wait for it.

While this process does not lead, every transaction is refused with ``not_active``, because its state could be stale."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from yirangmq.cluster.clients import NEARLY_FULL
from yirangmq.cluster.discovery import IgnoredKeysMonitor, find_dispatched_queues
from yirangmq.cluster.dispatch.recovery import LeadershipLost
from yirangmq.cluster.etcd.address import DEFAULT_NAME, EtcdAddress, read_address
from yirangmq.cluster.etcd.channel import FULL
from yirangmq.cluster.etcd.client import Etcd
from yirangmq.cluster.etcd.quota import EtcdQuota, Upkeep
from yirangmq.cluster.fenced_commits import LeaderTerm
from yirangmq.cluster.keys import InboxMessage, InboxWatch
from yirangmq.cluster.leadership import HangDetector, Leader, LeaderElection, ScheduleCallback, find_leader, leader_key
from yirangmq.core.errors import (
    NotActive,
    QueueError,
    QuotaExceeded,
    StoreError,
    StoreFull,
    Unavailable,
    WrongState,
)
from yirangmq.core.policy import RETRY_AFTER
from yirangmq.core.ports import CheckProgress, Finding, no_progress
from yirangmq.stores.etcd.state import EtcdState, EtcdTransaction, RecordingUndoLog, encode_changes, read_state

Answer = TypeVar("Answer")
MEASURE_SECONDS = 1.0
MEASURE_EARLY_SHARE = 0.02
"""Share of the quota, estimated to be written since the last measurement, above which the next one starts early."""
COMPACT_SECONDS = 30.0
ELECTION_TIMEOUT_SECONDS = 30.0
"""Timeout of a process that opens the store for exclusive use, in seconds."""
STOP_SECONDS = 5.0


class EtcdStore:
    """Message store in etcd (``core.ports.Store``), usable while this process is the leader.

    ``on_change`` is called on the etcd thread when this process gains or loses leadership, or sees another leader.
    ``_lock`` serialises transactions; ``_condition`` guards ``_version``. Elections and commits run on the etcd
    thread."""

    def __init__(self, address: EtcdAddress, me: Leader) -> None:
        self.address = address
        self.on_change: Callable[[], object] = _nothing
        self.term_count = 0
        """Number of times this process became leader."""
        self._term_state: tuple[LeaderTerm, EtcdState] | None = None
        self._lock = threading.Lock()
        self._condition = threading.Condition()
        self._version = self._seen = 0
        self._closed = False
        self._election_error = ""
        """Why the election failed, or ""."""
        self.leader: Leader | None = None
        self.probe_loop: ScheduleCallback | None = None
        """Runs a probe on the loop that does the work while this process leads. If it hangs, another process leads."""
        self.on_inbox_messages: Callable[[list[InboxMessage]], None] | None = None
        """Callback on the etcd thread while this process leads: messages that plain etcd clients put into inboxes."""
        self._inbox: list[asyncio.Task[None]] = []
        """The watch of the inboxes and the search for ignored keys, while this process leads the default store."""
        self.ignored_keys: IgnoredKeysMonitor | None = None
        self._etcd: Etcd | None = None
        self.quota = EtcdQuota()
        self._loop = asyncio.new_event_loop()
        self._me = me
        self._election: LeaderElection | None = None
        self._running: Future[None] | None = None
        self._thread = threading.Thread(target=self._run_loop, name="etcd", daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _run_on_loop(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- leadership ---------------------------------------------------------------------------------------------------

    def check_not_dispatched(self) -> None:
        """Check that the store is readable and that no node of ``cluster serve`` dispatches its queues.

        Queues in etcd are either served by servers or dispatched by such nodes, never both."""
        self._run_on_loop(self._check_readable())
        if self.address.name == DEFAULT_NAME and (queues := self._run_on_loop(self._dispatched())):
            text = f"queues of this etcd are dispatched by nodes of `yirangmq cluster serve`: {', '.join(queues[:5])}"
            raise WrongState(f"{text}; consume them, delete their keys under /q/, or add ?name=…", field="store")

    async def _check_readable(self) -> None:
        async with Etcd(self.address) as etcd:
            await find_leader(etcd, self.address.name)

    async def _dispatched(self) -> list[str]:
        async with Etcd(self.address) as etcd:
            return await find_dispatched_queues(etcd)

    def join_election(self, me: Leader | None = None) -> None:
        """Join the leader election. ``me`` is the record that other processes read while this one leads."""
        if me is not None:
            self._me = me
        if self._running is None:
            self._running = asyncio.run_coroutine_threadsafe(self._work(), self._loop)

    async def _work(self) -> None:
        async with Etcd(self.address) as etcd:
            self._etcd = etcd
            await find_leader(etcd, self.address.name)
            self._election = LeaderElection(etcd, self.address.name, self.address.lease, self)
            self._election.me = self._me
            if self.probe_loop is not None:
                self._election.hang_detector = HangDetector(self.probe_loop, self.address.watchdog)
            upkeep = Upkeep(
                etcd,
                self.address,
                self.address.quota,
                MEASURE_SECONDS,
                COMPACT_SECONDS,
                lambda: self._term_state is not None,
            )
            upkeep.probe = leader_key(self.address.name)
            self.quota = upkeep.quota
            chores = asyncio.ensure_future(upkeep.run())
            try:
                await self._election.run()
            finally:
                chores.cancel()
                await asyncio.gather(chores, return_exceptions=True)

    async def on_elected(self, term: LeaderTerm, found: dict[bytes, bytes]) -> None:
        state, orphans = await asyncio.to_thread(read_state, found)
        if orphans:
            await term.commit(dict.fromkeys(orphans), {})
        self.term_count += 1
        self._term_state = term, state
        if self.on_inbox_messages is not None and self._etcd is not None and self.address.name == DEFAULT_NAME:
            self.ignored_keys = IgnoredKeysMonitor(self._etcd, served=True)
            watch = InboxWatch(self._etcd, self.on_inbox_messages)
            self._inbox = [asyncio.ensure_future(one.run()) for one in (watch, self.ignored_keys)]
        self._notify_change()

    def on_term_ended(self, term: LeaderTerm) -> None:
        """Handle the loss of leadership. A transaction in progress fails when it commits."""
        if self._term_state is not None and self._term_state[0] is term:
            self._term_state = None
        for task in self._inbox:
            task.cancel()
        self._inbox, self.ignored_keys = [], None
        self._notify_change()

    def on_leader_changed(self, leader: Leader | None) -> None:
        self.leader = leader
        if leader is not None:
            self._election_error = ""
        self._notify_change()

    def on_election_failed(self, error: Exception) -> None:
        self._election_error = str(error)
        self.on_leader_changed(None)

    def _notify_change(self) -> None:
        with self._condition:
            self._version += 1
            self._condition.notify_all()
        self.on_change()

    @property
    def is_on(self) -> bool:
        term_state = self._term_state
        return term_state is not None and term_state[0].is_on

    @property
    def accepts_new(self) -> bool:
        return self.is_on

    def refusal(self) -> NotActive:
        leader = self.leader
        if leader is None or leader is self._me:
            why = f" ({self._election_error})" if self._election_error else ""
            return NotActive(f"no node leads this store just now{why}; try again in a moment")
        far = [one for one in leader.addresses if one.startswith(("tcp:", "tls:", "http:", "https:"))]
        at = f" at {', '.join(far)}" if far else ""
        return NotActive(f"the active node is {leader.node}{at}")

    def wait_for_leadership(self, seconds: float = ELECTION_TIMEOUT_SECONDS) -> None:
        """Wait until this process leads; for exclusive use without a server. Raises ``Unavailable`` on timeout."""
        with self._condition:
            came = self._condition.wait_for(
                lambda: self.is_on or (self._running is not None and self._running.done()), seconds
            )
        if self._running is not None and self._running.done():
            self._running.result()
        if not came:
            raise Unavailable(f"the store was not available within {seconds:g} s: {self.refusal()}")

    # -- core.ports.Store ---------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[EtcdTransaction]:
        if self._closed:
            raise StoreError("the store is closed")
        with self._lock:
            term_state = self._term_state
            if term_state is None or not term_state[0].is_on:
                raise self.refusal()
            (term, state), edit = term_state, RecordingUndoLog()
            try:
                yield EtcdTransaction(state, edit)
                if edit.has_changed and not write:
                    raise StoreError("a read-only transaction has changed the store")
                self._commit(term, state, edit)
            except BaseException:
                edit.undo()
                raise
        if edit.has_changed:
            with self._condition:
                self._version += 1
                self._condition.notify_all()

    def _commit(self, term: LeaderTerm, state: EtcdState, edit: RecordingUndoLog) -> None:
        writes, early = encode_changes(state, edit)
        if not writes and not early and not edit.external_operations:
            return
        self._count(writes, early)
        try:
            self._run_on_loop(term.commit(writes, early, edit.external_operations))
        except LeadershipLost:
            raise self.refusal() from None
        except CancelledError:
            raise Unavailable("the store was closed before this was confirmed") from None

    def _count(self, *parts: Mapping[bytes, bytes | None]) -> None:
        """Count written bytes, and start a quota measurement early if they are more than ``MEASURE_EARLY_SHARE``."""
        self.quota.take(sum(len(key) + len(value or b"") for part in parts for key, value in part.items()))
        if self.quota.estimated_fullness - self.quota.full > MEASURE_EARLY_SHARE:
            self._loop.call_soon_threadsafe(self.quota.request_measurement)

    def wait(self, timeout: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._version != self._seen, timeout)
            self._seen = self._version

    def check(self, *, repair: bool, progress: CheckProgress = no_progress) -> Iterator[Finding]:
        """Recount the counters. Values that cannot be parsed were refused when this process became leader."""
        findings: list[Finding] = []
        with self.transaction(write=repair) as work:
            for queue in work.queues():
                kept, true = work.counts(queue), work.recount(queue)
                if kept != true:
                    findings.append(Finding("counter", queue, f"counted {kept}, found {true}", is_repaired=repair))
                    if repair:
                        work.set_counts(queue, true)
        yield from findings

    def durability(self) -> str:
        """Return "full": a commit is on disk on a majority of etcd's members."""
        return "full"

    def used_bytes(self) -> int:
        """Return the used bytes as etcd's quota counts them."""
        return round(self.quota.full * self.quota.quota)

    def no_room(self) -> QueueError | None:
        """Return the error for publishing while etcd is full or nearly full, or None."""
        if self.quota.is_full:
            return StoreFull(FULL)
        if self.quota.estimated_fullness >= NEARLY_FULL:
            text = (
                f"etcd is at {self.quota.estimated_fullness:.0%} of its quota, "
                f"messages are accepted below {NEARLY_FULL:.0%}"
            )
            return QuotaExceeded(f"{text}; consuming continues, try again in {RETRY_AFTER:g} s")
        return None

    def close(self) -> None:
        """Stop leading and close; another process can become leader immediately."""
        if self._closed:
            return
        self._closed = True
        with suppress(Exception):
            self._loop.call_soon_threadsafe(self._stop)
            if self._running is not None:
                self._running.result(STOP_SECONDS)
        if self._running is not None:
            self._running.cancel()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    def _stop(self) -> None:
        if self._election is not None:
            self._election.stop.set()


def _nothing() -> None:
    """Default of ``on_change``: do nothing."""


def open_etcd(url: str, environment: Mapping[str, str] = os.environ) -> EtcdStore:
    """Open the store for exclusive use: this process leads until it closes it. Refused while a server leads."""
    address = read_address(url, environment)
    leader = find_current_leader(address)
    if leader is not None and leader.forward:
        where = f" at {', '.join(leader.addresses)}" if leader.addresses else ""
        raise Unavailable(f"this store is served by node {leader.node}{where}: use that node")
    store = EtcdStore(address, Leader(node=f"process-{os.getpid()}"))
    try:
        store.join_election()
        store.wait_for_leadership()
    except BaseException:
        store.close()
        raise
    return store


def find_current_leader(address: EtcdAddress) -> Leader | None:
    async def ask_leader() -> Leader | None:
        async with Etcd(address) as etcd:
            return await find_leader(etcd, address.name)

    return asyncio.run(ask_leader())
