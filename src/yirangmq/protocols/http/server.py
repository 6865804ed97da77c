"""HTTP server on asyncio: sockets, backpressure and limits for each client; and request coalescing.

It serves TCP, TLS and unix sockets. All answers of a commit leave with one write per connection, by a flush after the
commit. Reading pauses while a connection has too many bytes or requests pending, and resumes when they are below the
limits. The connection of a client that reads no bytes for ``write_seconds``, or has too many unsent bytes, is closed.

Request coalescing joins requests of the same kind and queue that arrive in the same iteration of the loop into one
job of the group committer. They are looked up, decided and written together, each with its own answer. If the job
fails as a whole, its requests are tried one by one. Requests of one connection keep their order across kinds: a
request joins only a batch that runs after all earlier requests of its connection. Loop thread only."""

import asyncio
import select
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from mmap import mmap
from pathlib import Path
from typing import Any, Protocol, cast

from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Transaction
from yirangmq.observe.logs import log
from yirangmq.protocols.http.auth import OriginPolicy
from yirangmq.protocols.http.connection import HttpConnection
from yirangmq.protocols.http.context import HttpContext
from yirangmq.protocols.http.limits import HttpLimits
from yirangmq.protocols.http.responses import ResponseTails, encode, plain
from yirangmq.protocols.http.types import Request, Routes
from yirangmq.protocols.listen import (
    ProtocolGuard,
    local_host,
    peer_process,
    prepare_tcp,
    tcp_server,
    unguarded,
    unix_server,
)

# -- connections -------------------------------------------------------------------------------------------------------

BUFFER = 64 * 1024
"""Size of the read buffer, in bytes. All connections share one buffer: its content is consumed before the next read."""
SMALL_WRITE = 64 * 1024
"""Size in bytes up to which pieces are joined for one write; copying more costs more than a second write."""
HANGUP_EVENTS = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class HttpSocketServer:
    """HTTP server: its open connections, and the set of connections with unsent bytes. Loop thread only."""

    def __init__(
        self,
        routes: Routes,
        limits: HttpLimits | None = None,
        admit: Callable[[Request], None] | None = None,
        policy: OriginPolicy | None = None,
    ) -> None:
        self.limits = limits or HttpLimits()
        self.context = HttpContext(routes, self.limits, ResponseTails(self.limits.idle_seconds), admit, policy)
        self.connections: set[HttpSocket] = set()
        self.dirty: set[HttpSocket] = set()
        self.buffer = memoryview(mmap(-1, BUFFER))
        self.is_stopping = False
        self.accepted = 0
        """Connections accepted since the start."""
        self.requests = 0
        """Requests of connections that are closed."""
        self.closed_for: dict[str, int] = {}
        """Refused or disconnected clients since the start, by reason."""
        self.is_flush_scheduled = False
        self.commits: GroupCommitter | None = None

    def flush_after(self, commits: GroupCommitter) -> None:
        """Register ``flush`` as a hook after each commit, so that all answers of a commit are sent by one flush."""
        self.commits = commits
        commits.after_commit.append(self.flush)

    def schedule_flush(self) -> None:
        """Flush at the end of this loop iteration."""
        self.is_flush_scheduled = True
        asyncio.get_running_loop().call_soon(self._run_scheduled_flush)

    def _run_scheduled_flush(self) -> None:
        self.is_flush_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Send the buffered bytes of all connections, one write per connection.

        The connections are independent: a dead one does not affect the others."""
        dirty, self.dirty = self.dirty, set()
        for socket in dirty:
            socket.flush()

    def count(self, reason: str) -> None:
        self.closed_for[reason] = self.closed_for.get(reason, 0) + 1

    def check_timeouts(self, now: float) -> None:
        """Disconnect clients that are too slow or idle for too long. Called about once per second."""
        for socket in list(self.connections):
            socket.check(now)

    def stop(self) -> None:
        """Begin the drain: accept no more requests, end event streams and waiting requests, answer those in flight."""
        self.is_stopping = True
        for socket in list(self.connections):
            socket.stop()
        self.flush()

    def send_goodbye(self) -> None:
        """Refuse all unanswered requests, and close the connections."""
        for socket in list(self.connections):
            socket.http.refuse_all()
        self.flush()

    def abort(self) -> None:
        for socket in list(self.connections):
            socket.abort()

    @property
    def is_idle(self) -> bool:
        """True if no connection is open."""
        return not self.connections

    @property
    def total_requests(self) -> int:
        return self.requests + sum(socket.http.requests for socket in self.connections)

    def describe(self) -> list[dict[str, Any]]:
        now = asyncio.get_running_loop().time()
        return [socket.describe(now) for socket in self.connections]


class HttpSocket(asyncio.BufferedProtocol):
    """HTTP connection on asyncio: reads and writes between one socket and its sans-IO connection."""

    __slots__ = (
        "_is_lingering", "_is_local", "_is_reading", "_loop", "_out", "_out_size", "_peer", "_progress_at", "_server",
        "_since", "_transport", "_unsent", "_written", "http",
    )  # fmt: skip

    http: HttpConnection

    def __init__(self, server: HttpSocketServer, is_local: bool) -> None:
        self._server = server
        self._is_local = is_local
        self._out: list[bytes] = []
        self._out_size = 0
        self._written = self._unsent = 0
        """``_written``: bytes passed to the transport. ``_unsent``: bytes of them that had left it at
        ``_progress_at``."""
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._is_lingering = False
        self._progress_at = self._since = 0.0
        self._peer = "unix"

    # -- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport has the interface, not the type
        self._loop = asyncio.get_running_loop()
        self._since = self._progress_at = self._loop.time()
        self._peer = peer_process(transport) if self._is_local else prepare_tcp(transport)
        policy = server.context.policy
        if policy is not None and policy.learns_addresses and not self._is_local:
            policy.add_address(local_host(transport))
        self.http = HttpConnection(server.context, self, self._peer, self._since)
        if server.is_stopping or len(server.connections) >= server.limits.connections:
            self._refuse_connection()
            return
        self._transport.set_write_buffer_limits(high=server.limits.write_buffer, low=server.limits.write_buffer // 4)
        server.accepted += 1
        server.connections.add(self)

    def _refuse_connection(self) -> None:
        self._server.count("connections")
        no = plain(503, "there are as many connections as there may be; try again later")
        no = no._replace(headers=(*no.headers, ("retry-after", "1")))
        self.http.release()
        assert self._transport is not None
        self._transport.write(encode(no, self._server.context.tails, is_last=True, is_head=False, is_old=False))
        self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_lingering:
            return
        if self.http.receive(self._server.buffer[:nbytes], self._loop.time()):
            self._update_reading()

    def eof_received(self) -> bool:
        self.http.receive_eof()
        if self._is_lingering or self._transport is None:
            return False
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, error: Exception | None) -> None:
        server = self._server
        self.http.release()
        if self in server.connections:
            server.connections.discard(self)
            server.requests += self.http.requests
        server.dirty.discard(self)
        self._transport = None
        self._out.clear()

    def pause_writing(self) -> None:
        self.http.set_write_paused(True)
        self._update_reading()

    def resume_writing(self) -> None:
        self.http.set_write_paused(False)
        self._update_reading()

    # -- Wire -----------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> bool:
        out = self._out
        if not out:
            server = self._server
            server.dirty.add(self)
            if not server.is_flush_scheduled and (server.commits is None or not server.commits.is_answering):
                server.schedule_flush()
        out.append(data)
        self._out_size += len(data)
        if self._out_size > self._server.limits.client_memory:
            self._drop_slow_client()
            return False
        return self._out_size < self._server.limits.write_buffer

    def finish(self, is_clean: bool) -> None:
        self.flush()
        transport = self._transport
        if transport is None or transport.is_closing() or self._is_lingering:
            return
        if is_clean or not transport.can_write_eof():
            transport.close()
            return
        self._is_lingering = True
        self._loop.call_later(self._server.limits.linger_seconds, self._check_lingering)
        transport.write_eof()
        if not self._is_reading:
            transport.resume_reading()

    def _check_lingering(self) -> None:
        """Close, unless the client still reads; then check again after ``linger_seconds``."""
        if self._transport is not None and not self._transport.get_write_buffer_size():
            self._transport.abort()
        elif self._transport is not None:
            self._loop.call_later(self._server.limits.linger_seconds, self._check_lingering)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- flush, backpressure and checks --------------------------------------------------------------------------------

    def flush(self) -> None:
        transport = self._transport
        pieces, size = self._out, self._out_size
        if transport is None or transport.is_closing():
            self._out, self._out_size = [], 0
            return
        if pieces:
            self._out, self._out_size = [], 0
            self._written += size
            if len(pieces) == 1:
                transport.write(pieces[0])
            elif size <= SMALL_WRITE:
                transport.write(b"".join(pieces))
            else:
                transport.writelines(pieces)
            if transport.get_write_buffer_size() > self._server.limits.client_memory:
                self._drop_slow_client()
            elif self.http.responses.pending:
                self.http.drained()
        if not self._is_reading:
            self._update_reading()

    def _update_reading(self) -> None:
        """Pause or resume reading. Before reading resumes, the connection processes bytes that it has buffered."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._is_lingering:
            return
        if self._is_reading and self.http.is_full:
            self._is_reading = False
            transport.pause_reading()
        elif not self._is_reading and self.http.resume(self._loop.time()):
            self._is_reading = True
            transport.resume_reading()

    def _drop_slow_client(self) -> None:
        """Abort the connection of a client that reads too slowly: too many unsent bytes, or the write timeout."""
        self._server.count("slow reader")
        self._out, self._out_size = [], 0
        self.http.release()
        self.abort()

    def stop(self) -> None:
        self.http.stop()

    def check(self, now: float) -> None:
        transport = self._transport
        if transport is None:
            return
        if not transport.is_closing() and not self._is_lingering:
            reason = self.http.check(now)
            if reason:
                self._server.count(reason)
            if not self._is_reading and self._has_hung_up():
                self.http.release()
                transport.abort()
                return
        self._check_progress(transport, now)

    def _check_progress(self, transport: asyncio.Transport, now: float) -> None:
        """Check the write timeout: the client must read some of the unsent bytes within ``write_seconds``."""
        unsent = transport.get_write_buffer_size()
        taken = self._written - unsent
        if not unsent or taken != self._unsent:
            self._unsent, self._progress_at = taken, now
        elif now - self._progress_at > self._server.limits.write_seconds:
            self._drop_slow_client()

    def _has_hung_up(self) -> bool:
        """True if the client has closed the connection. While reading is paused, asyncio does not notice it."""
        socket = self._transport.get_extra_info("socket") if self._transport is not None else None
        if socket is None:
            return False
        poll = select.poll()
        poll.register(socket.fileno(), HANGUP_EVENTS)
        return bool(poll.poll(0))

    def describe(self, now: float) -> dict[str, Any]:
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        about = {"peer": self._peer, "connectedSec": round(now - self._since, 3), "bytesHeld": waiting}
        return {**about, "client": "http", **self.http.describe()}


async def listen_tcp(
    server: HttpSocketServer,
    address: tuple[str, int],
    tls: ssl.SSLContext | None = None,
    guard: ProtocolGuard = unguarded,
) -> asyncio.AbstractServer:
    make = guard("http", lambda: HttpSocket(server, is_local=False))
    return await tcp_server(make, address, tls, server.limits.head_seconds, "http")


async def listen_unix(
    server: HttpSocketServer, path: Path, mode: int = 0o600, guard: ProtocolGuard = unguarded
) -> asyncio.AbstractServer:
    return await unix_server(guard("http+unix", lambda: HttpSocket(server, is_local=True)), path, mode, "http")


# -- request coalescing ------------------------------------------------------------------------------------------------

MAX_BATCH_REQUESTS = 500
"""Maximum number of requests of a batch; a larger batch would delay all other requests for too long."""
Work = Callable[[Transaction, str, Sequence[Any]], Sequence[Any]]
"""(transaction, queue, one item per request) → one answer or error per request."""


class CoalescableRequest(Protocol):
    """A request that can be coalesced."""

    @property
    def request(self) -> Request: ...

    def refuse(self, error: QueueError) -> None: ...


Reply = Callable[[Any, Any], None]
"""(request, its answer)"""


class CoalescedBatch:
    """Batch of coalesced requests: one job of the group committer (``broker.commit_jobs.CommitJob``)."""

    __slots__ = ("_coalescer", "_perform", "_reply", "calls", "error", "items", "number", "queue", "requests", "value")

    def __init__(self, coalescer: "RequestCoalescer", number: int, queue: str, perform: Work, reply: Reply) -> None:
        self._coalescer = coalescer
        self._perform = perform
        self.queue = queue
        self._reply = reply
        self.number = number
        self.calls: list[CoalescableRequest] = []
        self.items: list[Any] = []
        self.value: Any = None
        self.error: QueueError | None = None
        self.requests = 1

    def work(self, transaction: Transaction) -> Sequence[Any]:
        self.requests = len(self.items)
        return self._perform(transaction, self.queue, self.items)

    def done(self, found: Any, error: QueueError | None) -> None:
        """Answer every request of the batch, or enlist each one again in a separate job if the batch failed."""
        if error is not None and len(self.calls) > 1:
            self._retry_singly()
            return
        if error is not None or len(found) != len(self.calls):
            found = [error or QueueError("internal error: a request has no answer")] * len(self.calls)
        for call, answer in zip(self.calls, found, strict=True):
            try:
                if isinstance(answer, QueueError):
                    call.refuse(answer)
                else:
                    self._reply(call, answer)
            except Exception:
                log.exception("http_response_failed")
                with suppress(Exception):  # the connection may be unusable; the other requests still get answers
                    call.refuse(QueueError("internal error"))

    def _retry_singly(self) -> None:
        """Enlist each request in a separate job, because the failure may be caused by one of them."""
        for call, item in zip(self.calls, self.items, strict=True):
            single = CoalescedBatch(self._coalescer, self.number, self.queue, self._perform, self._reply)
            single.calls.append(call)
            single.items.append(item)
            self._coalescer.committer.enlist(single)


class RequestCoalescer:
    """Request coalescing: one batch per kind of work and queue.

    ``call`` adds requests to a batch until the group committer takes its jobs for the next commit
    (``GroupCommitter.on_taken``), independent of the outcome of that commit. Loop thread only."""

    def __init__(self, committer: GroupCommitter) -> None:
        committer.on_taken.append(self._close)
        self.committer = committer
        self._numbers = count(1)
        self._open: dict[tuple[Work, str], CoalescedBatch] = {}
        self._latest_batch: dict[str, int] = {}
        """By peer: the number of its latest batch in this loop iteration."""

    def call(self, call: CoalescableRequest, queue: str, item: Any, work: Work, reply: Reply) -> None:
        """Add a request about a queue to a batch of the next commit; ``reply`` is called with its answer.

        ``work`` must be the same object for all requests of a kind, because batches are found by it."""
        key = work, queue
        peer = call.request.peer
        batch = self._open.get(key)
        if batch is None or batch.number < self._latest_batch.get(peer, 0) or len(batch.items) >= MAX_BATCH_REQUESTS:
            batch = self._open[key] = CoalescedBatch(self, next(self._numbers), queue, work, reply)
            self.committer.enlist(batch)
        batch.calls.append(call)
        batch.items.append(item)
        self._latest_batch[peer] = batch.number

    def order_after(self, request: Request) -> None:
        """Order later requests of this connection after a request that is not coalesced."""
        if self._open:
            self._latest_batch[request.peer] = next(self._numbers)

    def _close(self) -> None:
        """Close all open batches: the committer has taken them."""
        if self._open:
            self._open.clear()
            self._latest_batch.clear()
