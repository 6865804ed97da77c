"""Watch of a key range in etcd that survives lost connections: every event once and in order.

A watch resumes after the last event that it delivered, not after the revision of the last answer. That revision is
the store's, and may be far ahead of a watch that is catching up. The fragments of a large answer are delivered
together."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from grpc import aio

from yirangmq.cluster.etcd.channel import (
    MESSAGES,
    WATCH,
    ClusterConnection,
    MemberConnection,
    RevisionCompacted,
    TokenExpired,
    raise_connection_closed,
    raise_translated,
)
from yirangmq.core.errors import NotAllowed, Unavailable

PAUSE_SECONDS = 0.1
_Create = MESSAGES["WatchCreateRequest"]


class EtcdWatch:
    """Watch of a key range: ``async for events in watch`` yields lists of events of whole revisions.

    ``revision`` is the next revision to deliver. Lost connections and expired tokens are retried. The iteration ends
    only with an error, such as ``RevisionCompacted`` or ``NotAllowed``, or by cancellation."""

    def __init__(
        self, connection: ClusterConnection, key: bytes, end: bytes, revision: int, filters: Sequence[int] = ()
    ) -> None:
        self._connection = connection
        self._key = key
        self._end = end
        self._filters = filters
        self.revision = revision

    async def __aiter__(self) -> AsyncGenerator[list[Any], None]:
        while True:
            try:
                member = await self._connection.member()
                async for events in self._over(member):
                    yield events
                self._connection.abandon(member)
            except TokenExpired:
                self._connection.forget_token()
            except Unavailable:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _over(self, member: MemberConnection) -> AsyncIterator[list[Any]]:
        """Yield events from one connection until it fails."""
        metadata = (*await self._connection.metadata(member), ("hasleader", "true"))
        call = member.stream(WATCH)(metadata=metadata)
        leaving = asyncio.ensure_future(member.left.wait())
        try:
            await call.write(WATCH.request(create_request=self._wanted()))
            held: list[Any] = []
            while (answer := await _read(call, leaving)) is not None:
                self._check(answer)
                held.extend(answer.events)
                if answer.fragment:
                    continue
                if held:
                    self.revision = held[-1].kv.mod_revision + 1
                    yield held
                    held = []
                elif not answer.created:
                    self.revision = max(self.revision, answer.header.revision + 1)
        except aio.AioRpcError as error:
            self._connection.abandon(member)
            raise_translated(error, member.endpoint)
        except (asyncio.CancelledError, asyncio.InvalidStateError, aio.UsageError):
            raise_connection_closed(member)
        finally:
            leaving.cancel()
            call.cancel()

    def _wanted(self) -> Any:
        return _Create(
            key=self._key,
            range_end=self._end or None,
            start_revision=self.revision,
            filters=self._filters,
            fragment=True,
            progress_notify=True,
        )

    def _check(self, answer: Any) -> None:
        if not answer.canceled:
            return
        if answer.compact_revision:
            raise RevisionCompacted(
                f"revision {self.revision} is gone; the history begins at {answer.compact_revision}"
            )
        if "permission denied" in answer.cancel_reason or "invalid auth token" in answer.cancel_reason:
            kind = TokenExpired if "token" in answer.cancel_reason else NotAllowed
            raise kind(f"watch of {self._key!r}: {answer.cancel_reason}")
        raise Unavailable(f"watch of {self._key!r}: {answer.cancel_reason}")


async def _read(call: Any, leaving: asyncio.Future[Any]) -> Any | None:
    """Read the next answer; None if the stream has ended or its connection was abandoned."""
    reading = asyncio.ensure_future(call.read())
    try:
        await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            return None
        answer = reading.result()
        return None if answer is aio.EOF else answer
    finally:
        if not reading.done():
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, aio.AioRpcError):
                await reading
