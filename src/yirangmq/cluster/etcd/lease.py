"""Lease of etcd: a task keeps it alive, and the local monotonic clock decides when it is lost.

The time to live counts from the moment of the request, not of the answer. ``is_alive`` compares the clock, so a process
that was suspended sees immediately that its lease has expired, before the task has run again."""

import asyncio
import contextlib
import time
from typing import Any

from grpc import aio

from yirangmq.cluster.etcd.channel import KEEP_ALIVE, MemberConnection, raise_connection_closed, raise_translated
from yirangmq.cluster.etcd.client import Etcd
from yirangmq.core.errors import NotAllowed, Unavailable

RENEWALS_PER_TTL = 3
"""Renewals per time to live: the lease is renewed when a third of it has passed."""
PAUSE_SECONDS = 0.2


class EtcdLease:
    """Lease that is kept alive inside ``async with await EtcdLease.grant(etcd, 5) as lease``, and revoked at its
    end."""

    def __init__(self, etcd: Etcd, id: int, seconds: int, asked_at: float) -> None:
        self._etcd = etcd
        self.id = id
        self.seconds = seconds
        self.lost = asyncio.Event()
        self._until = asked_at + seconds
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def grant(cls, etcd: Etcd, seconds: int) -> "EtcdLease":
        asked_at = time.monotonic()
        id, given = await etcd.grant(seconds)
        return cls(etcd, id, given, asked_at)

    @property
    def is_alive(self) -> bool:
        return not self.lost.is_set() and time.monotonic() < self._until

    @property
    def left(self) -> float:
        """Remaining time to live in seconds, without a further renewal."""
        return 0.0 if self.lost.is_set() else max(0.0, self._until - time.monotonic())

    async def __aenter__(self) -> "EtcdLease":
        self._task = asyncio.ensure_future(self._keep_alive())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        with contextlib.suppress(Unavailable, NotAllowed):
            await self._etcd.revoke(self.id)

    async def stop(self) -> None:
        """Stop the renewal without revoking the lease; it expires."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_alive(self) -> None:
        try:
            while self.is_alive:
                wait = self.seconds / RENEWALS_PER_TTL if await self._renewed() else PAUSE_SECONDS
                await asyncio.sleep(min(wait, max(0.0, self._until - time.monotonic())))
        finally:
            self.lost.set()

    async def _renewed(self) -> bool:
        asked_at = time.monotonic()
        try:
            seconds = await self._asked()
        except (Unavailable, NotAllowed):
            return False
        self._until = asked_at + seconds if seconds else asked_at
        return True

    async def _asked(self) -> int:
        """Renew the lease; return its time to live in seconds, 0 if it has expired."""
        member = await self._etcd.connection.member()
        call: Any = None
        try:
            metadata = await self._etcd.connection.metadata(member)
            call = member.stream(KEEP_ALIVE)(timeout=self._etcd.connection.address.timeout, metadata=metadata)
            await call.write(KEEP_ALIVE.request(ID=self.id))
            answer = await call.read()
            return 0 if answer is aio.EOF else int(answer.TTL)
        except aio.AioRpcError as error:
            self._fail(member, error)
        except (asyncio.CancelledError, asyncio.InvalidStateError, aio.UsageError):
            raise_connection_closed(member)
        finally:
            if call is not None:
                call.cancel()
        return 0

    def _fail(self, member: MemberConnection, error: Any) -> None:
        if "auth token" in (error.details() or ""):
            self._etcd.connection.forget_token()
        else:
            self._etcd.connection.abandon(member)
        raise_translated(error, member.endpoint)
