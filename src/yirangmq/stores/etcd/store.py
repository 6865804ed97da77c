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
from yirangmq.cluster.dispatch.recovery import Deposed
from yirangmq.cluster.etcd.address import NAME, Address, read_address
from yirangmq.cluster.etcd.channel import FULL
from yirangmq.cluster.etcd.client import Etcd
from yirangmq.cluster.etcd.quota import Room, Upkeep
from yirangmq.cluster.fenced_commits import Reign
from yirangmq.cluster.keys import Inbox, Put
from yirangmq.cluster.leadership import Ask, Campaign, Leader, Pulse, find_leader, leader_key
from yirangmq.cluster.node import dispatched
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
from yirangmq.core.ports import Finding
from yirangmq.stores.etcd.state import EtcdState, EtcdTransaction, RecordingEdit, read_state, writes_of

Answer = TypeVar("Answer")
LOOK_SECONDS = 1.0
MUCH = 0.02
"""Share of the quota, estimated to be written since the last measurement, above which the next one starts early."""
COMPACT_SECONDS = 30.0
PATIENCE_SECONDS = 30.0
"""Timeout of a process that opens the store for exclusive use, in seconds."""
STOP_SECONDS = 5.0


class EtcdStore:
    """Message store in etcd (``core.ports.Store``), usable while this process is the leader.

    ``changed`` is called on the etcd thread when this process gains or loses leadership, or sees another leader.
    ``_lock`` serialises transactions; ``_news`` guards ``_version``. Elections and commits run on the etcd thread."""

    def __init__(self, address: Address, me: Leader) -> None:
        self.address = address
        self.changed: Callable[[], object] = _nothing
        self.reigns = 0
        """Number of times this process became leader."""
        self._now: tuple[Reign, EtcdState] | None = None
        self._lock = threading.Lock()
        self._news = threading.Condition()
        self._version = self._seen = 0
        self._closed = False
        self._trouble = ""
        """Why the election failed, or ""."""
        self.leader: Leader | None = None
        self.ask_work: Ask | None = None
        """Runs a probe on the loop that does the work while this process leads. If it hangs, another process leads."""
        self.arrived: Callable[[list[Put]], None] | None = None
        """Callback on the etcd thread while this process leads: messages that plain etcd clients put into inboxes."""
        self._inbox: asyncio.Task[None] | None = None
        self._etcd: Etcd | None = None
        self.room = Room()
        self._loop = asyncio.new_event_loop()
        self._me = me
        self._campaign: Campaign | None = None
        self._running: Future[None] | None = None
        self._thread = threading.Thread(target=self._run_loop, name="etcd", daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _ask(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- leadership ---------------------------------------------------------------------------------------------------

    def check_free(self) -> None:
        """Check that the store is readable and that no node of ``cluster serve`` dispatches its queues.

        Queues in etcd are either served by servers or dispatched by such nodes, never both."""
        self._ask(self._look())
        if self.address.name == NAME and (queues := self._ask(self._dispatched())):
            text = f"queues of this etcd are dispatched by nodes of `yirangmq cluster serve`: {', '.join(queues[:5])}"
            raise WrongState(f"{text}; let them run empty, delete their keys under /q/, or add ?name=…", field="store")

    async def _look(self) -> None:
        async with Etcd(self.address) as etcd:
            await find_leader(etcd, self.address.name)

    async def _dispatched(self) -> list[str]:
        async with Etcd(self.address) as etcd:
            return await dispatched(etcd)

    def stand(self, me: Leader | None = None) -> None:
        """Join the leader election. ``me`` is the record that other processes read while this one leads."""
        if me is not None:
            self._me = me
        if self._running is None:
            self._running = asyncio.run_coroutine_threadsafe(self._work(), self._loop)

    async def _work(self) -> None:
        async with Etcd(self.address) as etcd:
            self._etcd = etcd
            await find_leader(etcd, self.address.name)
            self._campaign = Campaign(etcd, self.address.name, self.address.lease, self)
            self._campaign.me = self._me
            if self.ask_work is not None:
                self._campaign.pulse = Pulse(self.ask_work, self.address.watchdog)
            upkeep = Upkeep(
                etcd, self.address, self.address.quota, LOOK_SECONDS, COMPACT_SECONDS, lambda: self._now is not None
            )
            upkeep.probe = leader_key(self.address.name)
            self.room = upkeep.room
            chores = asyncio.ensure_future(upkeep.run())
            try:
                await self._campaign.run()
            finally:
                chores.cancel()
                await asyncio.gather(chores, return_exceptions=True)

    async def leads(self, reign: Reign, found: dict[bytes, bytes]) -> None:
        state, orphans = await asyncio.to_thread(read_state, found)
        if orphans:
            await reign.commit(dict.fromkeys(orphans), {})
        self.reigns += 1
        self._now = reign, state
        if self.arrived is not None and self._etcd is not None and self.address.name == NAME:
            self._inbox = asyncio.ensure_future(Inbox(self._etcd, self.arrived).run())
        self._tell()

    def ended(self, reign: Reign) -> None:
        """Handle the loss of leadership. A transaction in progress fails when it commits."""
        if self._now is not None and self._now[0] is reign:
            self._now = None
        if self._inbox is not None:
            self._inbox.cancel()
            self._inbox = None
        self._tell()

    def sees(self, leader: Leader | None) -> None:
        self.leader = leader
        if leader is not None:
            self._trouble = ""
        self._tell()

    def fails(self, error: Exception) -> None:
        self._trouble = str(error)
        self.sees(None)

    def _tell(self) -> None:
        with self._news:
            self._version += 1
            self._news.notify_all()
        self.changed()

    @property
    def is_on(self) -> bool:
        now = self._now
        return now is not None and now[0].is_on

    @property
    def takes_in(self) -> bool:
        return self.is_on

    def refusal(self) -> NotActive:
        leader = self.leader
        if leader is None or leader is self._me:
            why = f" ({self._trouble})" if self._trouble else ""
            return NotActive(f"no node leads this store just now{why}; try again in a moment")
        far = [one for one in leader.addresses if one.startswith(("tcp:", "tls:", "http:", "https:"))]
        at = f" at {', '.join(far)}" if far else ""
        return NotActive(f"the active node is {leader.node}{at}")

    def wait_to_lead(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until this process leads; for exclusive use without a server. Raises ``Unavailable`` on timeout."""
        with self._news:
            came = self._news.wait_for(
                lambda: self.is_on or (self._running is not None and self._running.done()), seconds
            )
        if self._running is not None and self._running.done():
            self._running.result()
        if not came:
            raise Unavailable(f"the store could not be had within {seconds:g} s: {self.refusal()}")

    # -- core.ports.Store ---------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[EtcdTransaction]:
        if self._closed:
            raise StoreError("the store is closed")
        with self._lock:
            now = self._now
            if now is None or not now[0].is_on:
                raise self.refusal()
            (reign, state), edit = now, RecordingEdit()
            try:
                yield EtcdTransaction(state, edit)
                if edit.has_changed and not write:
                    raise StoreError("a transaction for reading has changed something")
                self._commit(reign, state, edit)
            except BaseException:
                edit.undo()
                raise
        if edit.has_changed:
            with self._news:
                self._version += 1
                self._news.notify_all()

    def _commit(self, reign: Reign, state: EtcdState, edit: RecordingEdit) -> None:
        writes, early = writes_of(state, edit)
        if not writes and not early and not edit.also:
            return
        self._count(writes, early)
        try:
            self._ask(reign.commit(writes, early, edit.also))
        except Deposed:
            raise self.refusal() from None
        except CancelledError:
            raise Unavailable("the store was closed before this was confirmed") from None

    def _count(self, *parts: Mapping[bytes, bytes | None]) -> None:
        """Count written bytes, and start a quota measurement early if they are more than ``MUCH``."""
        self.room.take(sum(len(key) + len(value or b"") for part in parts for key, value in part.items()))
        if self.room.likely - self.room.full > MUCH:
            self._loop.call_soon_threadsafe(self.room.ask)

    def wait(self, timeout: float) -> None:
        with self._news:
            self._news.wait_for(lambda: self._version != self._seen, timeout)
            self._seen = self._version

    def check(self, *, repair: bool) -> Iterator[Finding]:
        """Recount the counters. Values that cannot be parsed were refused when this process became leader."""
        findings: list[Finding] = []
        with self.transaction(write=repair) as work:
            for queue in work.queues():
                kept, true = work.counts(queue), work.recount(queue)
                if kept != true:
                    findings.append(Finding("counter", queue, f"counted {kept}, found {true}", mended=repair))
                    if repair:
                        work.set_counts(queue, true)
        yield from findings

    def durability(self) -> str:
        """Return "full": a commit is on disk on a majority of etcd's members."""
        return "full"

    def used_bytes(self) -> int:
        """Return the used bytes as etcd's quota counts them."""
        return round(self.room.full * self.room.quota)

    def no_room(self) -> QueueError | None:
        """Return the error for publishing while etcd is full or nearly full, or None."""
        if self.room.is_full:
            return StoreFull(FULL)
        if self.room.likely >= NEARLY_FULL:
            text = f"etcd is at {self.room.likely:.0%} of its quota, messages are taken below {NEARLY_FULL:.0%}"
            return QuotaExceeded(f"{text}; consuming goes on, try again in {RETRY_AFTER:g} s")
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
        if self._campaign is not None:
            self._campaign.stop.set()


def _nothing() -> None:
    """Default of ``changed``: do nothing."""


def open_etcd(url: str, environment: Mapping[str, str] = os.environ) -> EtcdStore:
    """Open the store for exclusive use: this process leads until it closes it. Refused while a server leads."""
    address = read_address(url, environment)
    leader = who_leads(address)
    if leader is not None and leader.forward:
        where = f" at {', '.join(leader.addresses)}" if leader.addresses else ""
        raise Unavailable(f"this store is served by node {leader.node}{where}: ask there")
    store = EtcdStore(address, Leader(node=f"process-{os.getpid()}"))
    try:
        store.stand()
        store.wait_to_lead()
    except BaseException:
        store.close()
        raise
    return store


def who_leads(address: Address) -> Leader | None:
    async def ask_leader() -> Leader | None:
        async with Etcd(address) as etcd:
            return await find_leader(etcd, address.name)

    return asyncio.run(ask_leader())
