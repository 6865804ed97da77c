"""Leader election for a store in etcd: one node creates the leader's key, the others watch it; hang detection.

The key is attached to the leader's lease. Its create revision is the fencing token of every commit
(``cluster.fenced_commits``). A node that was deposed waits a second, so that the others try first.

The etcd thread keeps the lease alive even while the server's loop hangs. The leader therefore probes that loop, and
steps down if the loop does not answer in time. A node with a hung loop does not stand for election."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from yirangmq.cluster.dispatch.recovery import LeadershipLost
from yirangmq.cluster.etcd.channel import RevisionCompacted
from yirangmq.cluster.etcd.client import Etcd, create_revision_equals, get, put
from yirangmq.cluster.etcd.lease import EtcdLease
from yirangmq.cluster.fenced_commits import LeaderTerm
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.format.json_codec import dumps, loads

# -- hang detection ----------------------------------------------------------------------------------------------------

PROBES_PER_TIMEOUT = 4
"""Probes per timeout: the loop is probed again a quarter of the timeout after its last answer."""
ScheduleCallback = Callable[[Callable[[], object]], object]
"""Schedules a function in the probed loop from another thread, as ``call_soon_threadsafe`` does."""


class HangDetector:
    """Watchdog of an event loop: probes it from another thread's loop, in which the methods here run.

    ``seconds`` is the time after which a loop that has not answered counts as hung."""

    def __init__(self, schedule: ScheduleCallback, seconds: float) -> None:
        self._schedule = schedule
        self.seconds = seconds

    async def wait_for_hang(self) -> None:
        """Wait until the loop has not answered for ``seconds``."""
        while True:
            if not await self._answers():
                return
            await asyncio.sleep(self.seconds / PROBES_PER_TIMEOUT)

    async def wait_for_answer(self) -> None:
        """Wait until the loop answers."""
        while not await self._answers():
            pass

    async def _answers(self) -> bool:
        loop, answered = asyncio.get_running_loop(), asyncio.Event()
        with suppress(RuntimeError):  # the probed loop is closed
            self._schedule(lambda: loop.call_soon_threadsafe(answered.set))
        try:
            async with asyncio.timeout(self.seconds):
                await answered.wait()
        except TimeoutError:
            return False
        return True


# -- election ----------------------------------------------------------------------------------------------------------

PAUSE_SECONDS = 0.2
STEP_DOWN_SECONDS = 1.0
"""Pause of a deposed node before it stands again, so that the others try first."""
DELETE = 1
ROOT = b"/yirangmq/"
log = logging.getLogger("yirangmq.cluster")


class Leader(NamedTuple):
    """Value of the leader's key.

    Other nodes proxy calls to ``forward`` with ``secret``, which only readers of etcd know; ``pin`` is the digest of
    the leader's certificate. Clients reach the leader at ``addresses``."""

    node: str = ""
    forward: str = ""
    secret: str = ""
    pin: str = ""
    addresses: tuple[str, ...] = ()


class EventLoopHung(Exception):
    """The watched event loop has not answered in time."""


class ElectionListener(Protocol):
    """Callbacks of an election, called in the loop that runs it."""

    def on_elected(self, term: LeaderTerm, found: dict[bytes, bytes]) -> Awaitable[None]: ...

    def on_term_ended(self, term: LeaderTerm) -> None: ...

    def on_leader_changed(self, leader: Leader | None) -> None: ...

    def on_election_failed(self, error: Exception) -> None:
        """An attempt to stand failed; the election retries."""


def prefix_of(name: str) -> bytes:
    return ROOT + name.encode() + b"/"


def read_leader(text: bytes) -> Leader:
    try:
        kept = loads(text)
        texts = {name: str(kept.get(name, "")) for name in ("node", "forward", "secret", "pin")}
        return Leader(**texts, addresses=tuple(map(str, kept.get("addresses", ()))))
    except (BadInput, TypeError, AttributeError):
        return Leader("?")


def leader_key(name: str) -> bytes:
    return prefix_of(name) + b"leader"


async def find_leader(etcd: Etcd, name: str) -> Leader | None:
    """Return the current leader; None if there is none."""
    kv = await etcd.get(leader_key(name))
    return None if kv is None else read_leader(kv.value)


class LeaderElection:
    """Leader election of one store: try to create the leader's key, lead, or watch the other leader.

    ``me`` is the value of the leader's key while this node leads. It may be changed until the node stands."""

    def __init__(self, etcd: Etcd, name: str, seconds: int, listener: ElectionListener) -> None:
        self._etcd = etcd
        self._prefix = prefix_of(name)
        self._key = leader_key(name)
        self._seconds = seconds
        self._listener = listener
        self.me = Leader()
        self.hang_detector: HangDetector | None = None
        """Watchdog of the server's loop; None if that loop also runs the election."""
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Run until ``stop``; then revoke the lease, so that another node leads within a moment."""
        while not self.stop.is_set():
            try:
                if not await self._wait_responsive():
                    return
                async with await EtcdLease.grant(self._etcd, self._seconds) as lease:
                    await self._compete(lease)
            except (QueueError, RevisionCompacted, LeadershipLost) as error:
                self._listener.on_election_failed(error)
                log.warning("store_election_failed", extra={"values": {"node": self.me.node, "error": str(error)}})
                await _wait_first((self.stop.wait(),), PAUSE_SECONDS)

    async def _compete(self, lease: EtcdLease) -> None:
        while not self.stop.is_set() and not lease.lost.is_set():
            text = dumps(self.me._asdict() | {"addresses": list(self.me.addresses)})
            answer = await self._etcd.txn(
                [create_revision_equals(self._key, 0)], [put(self._key, text, lease.id)], [get(self._key)]
            )
            revision = int(answer.header.revision)
            if answer.succeeded:
                if await self._lead(revision, lease):
                    continue
                return
            held = answer.responses[0].response_range.kvs[0]
            if held.lease == lease.id:  # won in an earlier attempt, and its answer was lost
                if await self._lead(int(held.create_revision), lease):
                    continue
                return
            self._listener.on_leader_changed(read_leader(held.value))
            await _wait_first((self.stop.wait(), lease.lost.wait(), self._wait_key_deleted(revision + 1)))
            self._listener.on_leader_changed(None)
            if not await self._wait_responsive():
                return

    async def _wait_responsive(self) -> bool:
        """Wait until the server's loop answers; a node with a hung loop does not stand. False if ``stop`` is set."""
        if self.hang_detector is not None:
            await _wait_first((self.stop.wait(), self.hang_detector.wait_for_answer()))
        return not self.stop.is_set()

    async def _lead(self, fence: int, lease: EtcdLease) -> bool:
        """Lead until the term ends; return whether to stand again on the same lease."""
        term = LeaderTerm(self._etcd, self._prefix, fence, lease)
        log_values = {"node": self.me.node, "fence": fence}
        try:
            found = await term.start()
            await self._listener.on_elected(term, found)
            self._listener.on_leader_changed(self.me)
            log.info("store_leadership_acquired", extra={"values": log_values | {"keys": len(found)}})
            ends = (
                self.stop.wait(),
                lease.lost.wait(),
                term.finished.wait(),
                self._wait_key_deleted(fence + 1),
                self._hangs(),
            )
            await _wait_first(ends)
        except EventLoopHung:
            log.error("store_leadership_released_hung", extra={"values": log_values})
            return False
        except LeadershipLost:
            pass
        finally:
            term.finished.set()
            self._listener.on_leader_changed(None)
            self._listener.on_term_ended(term)
            log.info("store_leadership_ended", extra={"values": log_values})
        if self.stop.is_set() or lease.lost.is_set():
            return False
        kv = await self._etcd.get(self._key)
        if kv is not None and kv.create_revision == fence:  # still our key: start a new term with the state in etcd
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            await asyncio.sleep(STEP_DOWN_SECONDS)
        return True

    async def _hangs(self) -> None:
        """Raise ``EventLoopHung`` when the server's loop does not answer in time; never return."""
        if self.hang_detector is not None:
            await self.hang_detector.wait_for_hang()
            raise EventLoopHung
        await asyncio.Event().wait()

    async def _wait_key_deleted(self, revision: int) -> None:
        """Wait until the leader's key is deleted."""
        async for events in self._etcd.watch(self._key, revision=revision):
            if any(event.type == DELETE for event in events):
                return


async def _wait_first(waits: "tuple[Any, ...]", seconds: float | None = None) -> None:
    """Wait until the first awaitable completes or ``seconds`` have passed, and cancel the others.

    An error of a completed one is raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(Exception):
            await asyncio.gather(*tasks, return_exceptions=True)
