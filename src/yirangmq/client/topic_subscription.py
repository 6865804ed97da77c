"""Topic subscription: records in order, each once; confirmed after processing, before it, or by the program.

It has a separate connection, and outlives it: after a loss it resumes after the last record that the program
received (``client.topic_connection``). A request for the next record marks the earlier ones as processed.
Coroutines, which ``client.sync_client`` also runs over blocking sockets."""

import contextlib
import inspect
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Any

from yirangmq.client.connection import ReconnectingConnection
from yirangmq.client.cursors import CursorKeeper, NoCursorKeeper
from yirangmq.client.session import ConnectionLost
from yirangmq.client.topic_connection import LISTEN_SECONDS, TopicConnection, TopicEventListener, TopicOptions, reason
from yirangmq.client.values import TopicRecord
from yirangmq.core.errors import QueueError, Unavailable, Unreachable
from yirangmq.core.topics import SubscriberState

NO_TIMEOUT_SECONDS = 10.0 * 366 * 86400
MIN_WAIT_SECONDS = 0.05
"""Shortest wait for data, in seconds, while a position that is due cannot be stored because there is no connection."""


class AsyncTopicSubscription:
    """Topic subscription: ``async for record in subscription``.

    The iteration ends when the subscription is closed, or when no record arrived for ``idle`` seconds. A request for
    the next record marks the ones before it as processed."""

    def __init__(
        self,
        connection: ReconnectingConnection,
        options: TopicOptions,
        cursor_keeper: CursorKeeper,
        on_event: TopicEventListener,
        left: Callable[["AsyncTopicSubscription"], None],
        retries: int = 0,
    ) -> None:
        self._connection = connection
        self._retries = retries
        self._options = options
        self._cursor_keeper = cursor_keeper
        self._on_close = left
        self._topic_connection = TopicConnection(connection, options, cursor_keeper, on_event)
        self._tracker = self._topic_connection.tracker
        self._seconds = connection.options.timeout
        self._fetch_lock = connection.lock()
        self._has_cursor = not isinstance(cursor_keeper, NoCursorKeeper)
        self._last_returned = self._done = 0
        self.ready: deque[TopicRecord] = deque()
        """Received, but not yet returned to the program."""

    # -- status --------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> SubscriberState:
        """CONNECTED, ONLINE, RECOVERING or OFFLINE."""
        return self._topic_connection.state

    @property
    def epoch(self) -> str:
        """Epoch of the log of topics; empty before the first connection."""
        return self._tracker.epoch

    @property
    def sequence(self) -> int:
        """Sequence of the last record returned to the program; 0 before the first."""
        return self._last_returned

    @property
    def lag(self) -> int:
        """Sequences of the log that have not arrived, as far as the server has reported."""
        return max(0, self._tracker.feed_last - self._tracker.reached)

    @property
    def duplicates(self) -> int:
        """Number of records that arrived again and were dropped."""
        return self._tracker.duplicates

    @property
    def lost(self) -> list[tuple[int, int]]:
        """Gaps that the server reported: ranges of records that the log has lost."""
        return [*self._tracker.lost]

    # -- records -------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> "AsyncTopicSubscription":
        return self

    async def __anext__(self) -> TopicRecord:
        record = await self.next()
        if record is None:
            raise StopAsyncIteration
        return record

    async def next(self, wait: float | None = None) -> TopicRecord | None:
        """Return the next record. Return None if none arrived within ``wait`` seconds (default: ``idle``), or after
        the end."""
        if self._has_cursor and self.ready:
            await self._mark_processed()
        while not self.ready:
            batch = await self._fetch(wait)
            if not batch:
                return None
            self.ready.extend(batch)
        record = self.ready.popleft()
        await self._mark_returned(record.sequence)
        return record

    def next_now(self) -> TopicRecord | None:
        """Return the next record if it has arrived and no position has to be stored before, else None."""
        if not self.ready:
            return None
        if self._has_cursor and self._options.confirm != "manual":
            if self._options.confirm == "before":
                return None
            self._done = max(self._done, self._last_returned)
            if self._cursor_keeper.due_in(self._done) == 0:
                return None
        record = self.ready.popleft()
        self._last_returned = record.sequence
        return record

    async def batches(self) -> AsyncGenerator[list[TopicRecord], None]:
        """Iterate over the records in batches, one per read: the fastest way to consume many."""
        while batch := await self.next_batch():
            yield batch

    async def next_batch(self, wait: float | None = None) -> list[TopicRecord]:
        """Return all records that have arrived; an empty list if none arrived within ``wait`` seconds, or after the
        end."""
        if self._has_cursor and self.ready:
            await self._mark_processed()
        batch = [*self.ready] if self.ready else await self._fetch(wait)
        self.ready.clear()
        if batch:
            await self._mark_returned(batch[-1].sequence)
        return batch

    async def run(self, callback: Callable[[TopicRecord], Any]) -> None:
        """Call ``callback`` with each record until the subscription ends. An awaitable result is awaited.

        The record is confirmed after that; it is not confirmed if the callback raises."""
        while (record := await self.next()) is not None:
            result = callback(record)
            if inspect.isawaitable(result):
                await result
            if self._options.confirm == "after":
                self._done = max(self._done, record.sequence)

    async def _mark_returned(self, sequence: int) -> None:
        """Note a record that is returned to the program. With ``confirm="before"`` its confirmation is durable
        first."""
        self._last_returned = sequence
        if self._options.confirm != "before" or not self._has_cursor:
            return
        self._done = sequence
        await self._store_cursor_durably(NO_TIMEOUT_SECONDS)

    async def _mark_processed(self) -> None:
        """Mark the returned records as processed while others are ready, and store the position if that is due.

        After a loss it connects again: the program may take hours for the records that it has. If that fails, the
        next call tries again after ``reconnect`` seconds."""
        if self._options.confirm != "after":
            return
        self._done = max(self._done, self._last_returned)
        if self._cursor_keeper.due_in(self._done) != 0:
            return
        async with self._fetch_lock:
            try:
                await self._store_cursor()
                if self._cursor_keeper.needs_connection and self._topic_connection.latest_transport is None:
                    await self._topic_connection.reconnect_once()
            except ConnectionLost as error:
                await self._topic_connection.reconnect_once(error)

    async def _store_cursor(self) -> None:
        """Store the position if that is due. The caller holds ``_fetch_lock``."""
        if self._topic_connection.is_over or self._cursor_keeper.due_in(self._done) != 0:
            return
        if self._cursor_keeper.needs_connection and not self._topic_connection.is_same_epoch:
            return
        await self._cursor_keeper.store(self._topic_connection.latest_transport, self._tracker.epoch, self._done)

    async def _store_cursor_durably(self, until: float) -> None:
        """Confirm the position durably, over as many connections as needed."""
        while not self._topic_connection.is_over:
            try:
                await self._topic_connection.drop_interrupted()
                transport = await self._topic_connection.connected() if self._cursor_keeper.needs_connection else None
                if transport is not None and not self._topic_connection.is_same_epoch:
                    return  # the log of this position is lost
                if self._tracker.epoch:
                    await self._cursor_keeper.flush(transport, self._tracker.epoch, self._done, self._seconds)
                return
            except (ConnectionLost, Unreachable) as error:
                await self._topic_connection.reconnect_until(error, until)
                if time.monotonic() >= until:
                    raise Unavailable(f"sequence {self._done} could not be confirmed: {error}") from None

    async def _fetch(self, wait: float | None) -> list[TopicRecord]:
        async with self._fetch_lock:
            if self._options.confirm != "manual":
                # A request for more marks the earlier records as processed.
                self._done = max(self._done, self._last_returned)
            until = time.monotonic() + (self._options.idle if wait is None else wait)
            while True:
                batch = self._take_received()
                with contextlib.suppress(ConnectionLost):  # it is found again below, or by the next fetch
                    await self._store_cursor()
                left = until - time.monotonic()
                if batch or left <= 0 or self._topic_connection.is_over:
                    return batch
                try:
                    await self._topic_connection.wait_for_data(min(left, self._wait_seconds()))
                except (ConnectionLost, Unreachable) as error:
                    await self._topic_connection.reconnect_until(error, until)

    def _wait_seconds(self) -> float:
        """Return how long to wait for data at once: until the position is to be stored."""
        due = self._cursor_keeper.due_in(self._done)
        return LISTEN_SECONDS if due is None else min(LISTEN_SECONDS, max(due, MIN_WAIT_SECONDS))

    def _take_received(self) -> list[TopicRecord]:
        """Return the new records of one read, and process the frames about them."""
        found: list[TopicRecord] = []
        for part in self._topic_connection.inbox.take():
            if type(part) is list:
                found += self._tracker.take(part)
            elif self._topic_connection.on_event(part):
                self._last_returned = self._done = self._tracker.last
                self._cursor_keeper.reset(is_new_epoch=True)
        if not found and not self.ready and self._options.confirm != "manual":
            self._done = max(self._done, self._tracker.reached)  # no unprocessed record up to there matches the filter
        return found

    # -- confirmation --------------------------------------------------------------------------------------------------

    async def confirm(self, sequence: int | None = None) -> None:
        """Mark everything up to ``sequence`` as processed (default: every record returned so far).

        The position is durable when this returns. Call it from the thread or task that consumes the records."""
        self._done = max(self._done, self._last_returned if sequence is None else sequence)
        await self._store_cursor_durably(time.monotonic() + self._seconds)

    # -- connect and close ---------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect now instead of at the first record, with the client's retries. Raises the error of the last try."""
        async with self._fetch_lock:
            tries = 1
            while not await self._try_connect(is_last=tries > self._retries):
                await self._connection.sleep(self._connection.seconds(tries))
                tries += 1
            self.ready.extend(self._take_received())

    async def _try_connect(self, *, is_last: bool) -> bool:
        try:
            await self._topic_connection.connected()
        except (ConnectionLost, Unreachable) as error:
            if is_last or isinstance(error.__cause__, QueueError):
                raise (reason(error) if isinstance(error, ConnectionLost) else error) from None
            return False
        return True

    async def __aenter__(self) -> "AsyncTopicSubscription":
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Confirm the position and disconnect. The last record returned counts as processed only if another one was
        requested after it."""
        self._on_close(self)
        await self._topic_connection.stop()
        async with self._fetch_lock:
            self.ready.clear()
            try:
                await self._flush_cursor()
            except (ConnectionLost, Unreachable):
                pass  # unconfirmed records are sent again next time
            finally:
                await self._topic_connection.close()

    async def _flush_cursor(self) -> None:
        """Store the position durably at the end. A connection that a signal handler broke is replaced for that."""
        tracker, keeper, connection = self._tracker, self._cursor_keeper, self._topic_connection
        if not tracker.epoch:
            return
        if keeper.needs_connection and await connection.drop_interrupted() and keeper.due_in(self._done) is not None:
            with contextlib.suppress(QueueError):
                await connection.connected()
        if not keeper.needs_connection or connection.is_same_epoch:
            await keeper.flush(connection.transport, tracker.epoch, self._done, self._seconds)
