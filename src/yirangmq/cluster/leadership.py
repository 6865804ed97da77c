"""Leader election for a store in etcd: one node creates the leader's key, the others watch it; hang detection.

The key is attached to the leader's lease. Its create revision is the fencing token of every commit
(``cluster.fenced_commits``). A node that was deposed waits a second, so that the others try first.

The lease is kept alive in the etcd thread, which goes on when the server's loop hangs. The leader therefore asks
that loop for a sign of life, and gives up the lead if it stays silent too long. A node whose loop hangs does not
stand."""

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
"""It is asked when this part of the time has passed."""
Ask = Callable[[Callable[[], object]], object]
"""Has a function called in the loop that is asked, from another thread."""


class Pulse:
    """To be used in the loop that asks."""

    def __init__(self, ask: Ask, seconds: float) -> None:
        self._ask = ask
        self.seconds = seconds

    async def stops(self) -> None:
        """Until it has been silent for too long."""
        while True:
            if not await self._turned():
                return
            await asyncio.sleep(self.seconds / PARTS)

    async def turns(self) -> None:
        """Until it answers."""
        while not await self._turned():
            pass

    async def _turned(self) -> bool:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        with suppress(RuntimeError):  # it has ended
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
"""Who was deposed lets the others try first."""
DELETE = 1
ROOT = b"/yirangmq/"
log = logging.getLogger("yirangmq.cluster")


class Leader(NamedTuple):
    """What the leader's key says: where other nodes pass calls on to (``forward``, with a ``secret`` that only those
    know who may read etcd; ``pin`` is the digest of its certificate), and where clients reach it."""

    node: str = ""
    forward: str = ""
    secret: str = ""
    pin: str = ""
    addresses: tuple[str, ...] = ()


class Hung(Exception):
    """The loop that works has not turned for too long."""


class Followers(Protocol):
    """Told, in the loop of the campaign, what becomes of it."""

    def leads(self, reign: Reign, found: dict[bytes, bytes]) -> Awaitable[None]: ...

    def ended(self, reign: Reign) -> None: ...

    def sees(self, leader: Leader | None) -> None: ...

    def fails(self, error: Exception) -> None:
        """It cannot stand, and tries again."""


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
    """Who leads now; None: nobody."""
    kv = await etcd.get(leader_key(name))
    return None if kv is None else read_leader(kv.value)


class Campaign:
    """``me`` is what the key says while we lead; it may change until we stand."""

    def __init__(self, etcd: Etcd, name: str, seconds: int, followers: Followers) -> None:
        self._etcd = etcd
        self._prefix = prefix_of(name)
        self._key = leader_key(name)
        self._seconds = seconds
        self._followers = followers
        self.me = Leader()
        self.pulse: Pulse | None = None
        """Of the loop that works while we lead, where that is another than ours."""
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Until ``stop``; then the lease is revoked, and another leads within a moment."""
        while not self.stop.is_set():
            try:
                if not await self._is_awake():
                    return
                async with await Lease.grant(self._etcd, self._seconds) as lease:
                    await self._stand_on(lease)
            except (QueueError, Compacted, Deposed) as error:
                self._followers.fails(error)
                log.warning("cannot stand", extra={"values": {"node": self.me.node, "error": str(error)}})
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
            if held.lease == lease.id:  # won before, and the answer was lost
                if await self._lead(int(held.create_revision), lease):
                    continue
                return
            self._followers.sees(read_leader(held.value))
            await _first((self.stop.wait(), lease.lost.wait(), self._gone(revision + 1)))
            self._followers.sees(None)
            if not await self._is_awake():
                return

    async def _is_awake(self) -> bool:
        """Whoever hangs does not stand; False: ``stop`` came first."""
        if self.pulse is not None:
            await _first((self.stop.wait(), self.pulse.turns()))
        return not self.stop.is_set()

    async def _lead(self, fence: int, lease: Lease) -> bool:
        """Until it ends; whether to stand again on the same lease."""
        reign = Reign(self._etcd, self._prefix, fence, lease)
        told = {"node": self.me.node, "fence": fence}
        try:
            found = await reign.begin()
            await self._followers.leads(reign, found)
            self._followers.sees(self.me)
            log.info("leads the store", extra={"values": told | {"keys": len(found)}})
            ends = (self.stop.wait(), lease.lost.wait(), reign.over.wait(), self._gone(fence + 1), self._hangs())
            await _first(ends)
        except Hung:
            log.error("hangs, and leaves the lead to others", extra={"values": told})
            return False
        except Deposed:
            pass
        finally:
            reign.over.set()
            self._followers.sees(None)
            self._followers.ended(reign)
            log.info("no longer leads the store", extra={"values": told})
        if self.stop.is_set() or lease.lost.is_set():
            return False
        kv = await self._etcd.get(self._key)
        if kv is not None and kv.create_revision == fence:  # still ours: begin again, with what etcd has
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            await asyncio.sleep(STEP_ASIDE_SECONDS)
        return True

    async def _hangs(self) -> None:
        """It raises when the work has stood still for too long, and never returns."""
        if self.pulse is not None:
            await self.pulse.stops()
            raise Hung
        await asyncio.Event().wait()

    async def _gone(self, revision: int) -> None:
        """Until the key is deleted, or is another's."""
        async for events in self._etcd.watch(self._key, revision=revision):
            if any(event.type == DELETE for event in events):
                return


async def _first(waits: "tuple[Any, ...]", seconds: float | None = None) -> None:
    """Until one of these has come; an error of one is raised."""
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
