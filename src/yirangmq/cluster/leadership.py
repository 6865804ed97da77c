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

from yirangmq.cluster.dispatch.recovery import Deposed
from yirangmq.cluster.etcd.channel import Compacted
from yirangmq.cluster.etcd.client import Etcd, created_at, get, put
from yirangmq.cluster.etcd.lease import Lease
from yirangmq.cluster.fenced_commits import Reign
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.format.json_codec import dumps, loads

# -- hang detection ----------------------------------------------------------------------------------------------------

PARTS = 4
"""Probes per timeout: the loop is probed again a quarter of the timeout after its last answer."""
Ask = Callable[[Callable[[], object]], object]
"""Schedules a function in the probed loop from another thread, as ``call_soon_threadsafe`` does."""


class Pulse:
    """Watchdog of an event loop: probes it from another thread's loop, in which the methods here run.

    ``seconds`` is the time after which a loop that has not answered counts as hung."""

    def __init__(self, ask: Ask, seconds: float) -> None:
        self._ask = ask
        self.seconds = seconds

    async def stops(self) -> None:
        """Wait until the loop has not answered for ``seconds``."""
        while True:
            if not await self._turned():
                return
            await asyncio.sleep(self.seconds / PARTS)

    async def turns(self) -> None:
        """Wait until the loop answers."""
        while not await self._turned():
            pass

    async def _turned(self) -> bool:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        with suppress(RuntimeError):  # the probed loop is closed
            self._ask(lambda: loop.call_soon_threadsafe(heard.set))
        try:
            async with asyncio.timeout(self.seconds):
                await heard.wait()
        except TimeoutError:
            return False
        return True


# -- election ----------------------------------------------------------------------------------------------------------

PAUSE_SECONDS = 0.2
STEP_ASIDE_SECONDS = 1.0
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


class Hung(Exception):
    """The watched event loop has not answered in time."""


class Followers(Protocol):
    """Callbacks of an election, called in the loop that runs it."""

    def leads(self, reign: Reign, found: dict[bytes, bytes]) -> Awaitable[None]: ...

    def ended(self, reign: Reign) -> None: ...

    def sees(self, leader: Leader | None) -> None: ...

    def fails(self, error: Exception) -> None:
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


class Campaign:
    """Leader election of one store: try to create the leader's key, lead, or watch the other leader.

    ``me`` is the value of the leader's key while this node leads. It may be changed until the node stands."""

    def __init__(self, etcd: Etcd, name: str, seconds: int, followers: Followers) -> None:
        self._etcd = etcd
        self._prefix = prefix_of(name)
        self._key = leader_key(name)
        self._seconds = seconds
        self._followers = followers
        self.me = Leader()
        self.pulse: Pulse | None = None
        """Watchdog of the server's loop; None if that loop also runs the election."""
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Run until ``stop``; then revoke the lease, so that another node leads within a moment."""
        while not self.stop.is_set():
            try:
                if not await self._is_awake():
                    return
                async with await Lease.grant(self._etcd, self._seconds) as lease:
                    await self._stand_on(lease)
            except (QueueError, Compacted, Deposed) as error:
                self._followers.fails(error)
                log.warning("store_election_failed", extra={"values": {"node": self.me.node, "error": str(error)}})
                await _first((self.stop.wait(),), PAUSE_SECONDS)

    async def _stand_on(self, lease: Lease) -> None:
        while not self.stop.is_set() and not lease.lost.is_set():
            text = dumps(self.me._asdict() | {"addresses": list(self.me.addresses)})
            answer = await self._etcd.txn(
                [created_at(self._key, 0)], [put(self._key, text, lease.id)], [get(self._key)]
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
            self._followers.sees(read_leader(held.value))
            await _first((self.stop.wait(), lease.lost.wait(), self._gone(revision + 1)))
            self._followers.sees(None)
            if not await self._is_awake():
                return

    async def _is_awake(self) -> bool:
        """Wait until the server's loop answers; a node with a hung loop does not stand. False if ``stop`` is set."""
        if self.pulse is not None:
            await _first((self.stop.wait(), self.pulse.turns()))
        return not self.stop.is_set()

    async def _lead(self, fence: int, lease: Lease) -> bool:
        """Lead until the term ends; return whether to stand again on the same lease."""
        reign = Reign(self._etcd, self._prefix, fence, lease)
        told = {"node": self.me.node, "fence": fence}
        try:
            found = await reign.begin()
            await self._followers.leads(reign, found)
            self._followers.sees(self.me)
            log.info("store_leadership_acquired", extra={"values": told | {"keys": len(found)}})
            ends = (self.stop.wait(), lease.lost.wait(), reign.over.wait(), self._gone(fence + 1), self._hangs())
            await _first(ends)
        except Hung:
            log.error("store_leadership_released_hung", extra={"values": told})
            return False
        except Deposed:
            pass
        finally:
            reign.over.set()
            self._followers.sees(None)
            self._followers.ended(reign)
            log.info("store_leadership_ended", extra={"values": told})
        if self.stop.is_set() or lease.lost.is_set():
            return False
        kv = await self._etcd.get(self._key)
        if kv is not None and kv.create_revision == fence:  # still our key: start a new term with the state in etcd
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            await asyncio.sleep(STEP_ASIDE_SECONDS)
        return True

    async def _hangs(self) -> None:
        """Raise ``Hung`` when the server's loop does not answer in time; never return."""
        if self.pulse is not None:
            await self.pulse.stops()
            raise Hung
        await asyncio.Event().wait()

    async def _gone(self, revision: int) -> None:
        """Wait until the leader's key is deleted."""
        async for events in self._etcd.watch(self._key, revision=revision):
            if any(event.type == DELETE for event in events):
                return


async def _first(waits: "tuple[Any, ...]", seconds: float | None = None) -> None:
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
