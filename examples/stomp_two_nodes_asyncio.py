"""STOMP with two nodes, on asyncio: a producer and a consumer that leave a silent node, with stompman.

    pip install stompman
    seq 10 | python examples/stomp_two_nodes_asyncio.py gateway-1:61613,gateway-2:61613 send orders
    python examples/stomp_two_nodes_asyncio.py gateway-1:61613,gateway-2:61613 receive orders

Needs two servers. Each line of stdin becomes a message. The token is read from YIRANGMQ_TOKEN, the certificate of the
nodes' authority (TLS) from YIRANGMQ_CA.

A frozen node accepts connections and answers nothing. stompman limits the time of CONNECT and of receipts, and
``is_alive`` says whether heart-beats arrive, but it does not leave a silent node by itself: ``at_any_node`` does."""

import asyncio
import os
import ssl
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import cycle

import stompman
from stompman.connection import Connection

HEARTBEAT = stompman.Heartbeat(will_send_interval_ms=5000, want_to_receive_interval_ms=5000)
CONNECT_SECONDS = 5
RECEIPT_SECONDS = 10.0
PAUSE_SECONDS = 0.2
CHECK_SECONDS = 0.5
PASSING = ("not_active", "unavailable", "timed_out", "store_", "quota_exceeded")
"""Codes of errors after which the same message may be accepted later, or by another node."""
MAX_LINE_BYTES = 16 * 1024 * 1024


class AbortedConnection(Connection):
    """Closes its socket at once: over TLS a close in order waits 30 s for a frozen node."""

    async def close(self) -> None:
        self.writer.transport.abort()


class NodeSilent(Exception):
    """No heart-beat arrived in time."""


async def at_any_node(
    addresses: list[tuple[str, int]], work: Callable[[stompman.Client], Awaitable[None]], passcode: str, ca: str
) -> None:
    """Run ``work`` with a client of the first node that answers, and again at the next one when that is lost."""
    tls = ssl.create_default_context(cafile=ca) if ca else None
    for host, port in cycle(addresses):
        client = stompman.Client(
            [stompman.ConnectionParameters(host, port, "program", passcode)],  # one: a silent node is never tried twice
            heartbeat=HEARTBEAT,
            ssl=tls,
            connect_timeout=CONNECT_SECONDS,
            connection_confirmation_timeout=CONNECT_SECONDS,
            connect_retry_attempts=1,
            check_server_alive_interval_factor=2,
            connection_class=AbortedConnection,
        )
        is_done = False
        try:
            async with client:
                task = asyncio.ensure_future(work(client))
                try:
                    while not task.done():
                        await asyncio.wait([task], timeout=CHECK_SECONDS)
                        if not client.is_alive() and not task.done():
                            raise NodeSilent(host)
                    task.result()
                    is_done = True
                finally:
                    task.cancel()
        except* (NodeSilent, stompman.Error, OSError) as lost:
            print(f"{host}:{port}: {lost.exceptions[0]!r}", file=sys.stderr, flush=True)
        if is_done:
            return
        await asyncio.sleep(PAUSE_SECONDS)


async def lines() -> AsyncIterator[str]:
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode().rstrip("\n")


class Sender:
    """Sends the lines of stdin. A line that was not confirmed is sent again with the same ``_AMQ_DUPL_ID``."""

    def __init__(self, queue: str) -> None:
        self.destination = f"/queue/{queue}"
        self.source = lines()
        self.line: str | None = None
        self.id = ""

    async def work(self, client: stompman.Client) -> None:
        while True:
            if self.line is None:
                self.line, self.id = await anext(self.source, None), str(uuid.uuid4())
            if self.line is None:
                return
            headers = {"_AMQ_DUPL_ID": self.id}
            try:
                await client.send(
                    self.line.encode(), self.destination, headers=headers, receipt_timeout=RECEIPT_SECONDS
                )
            except stompman.SendReceiptError as error:
                told = "" if error.frame is None else error.frame.headers.get("message", "")
                if error.reason == "rejected" and not told.startswith(PASSING):
                    raise ValueError(told) from error  # the node would refuse this message again
                raise
            print("confirmed", self.line[:60], flush=True)
            self.line = None


def receiver(queue: str) -> Callable[[stompman.Client], Awaitable[None]]:
    async def handle(frame: stompman.MessageFrame) -> None:
        print(frame.body[:60].decode(), flush=True)

    async def work(client: stompman.Client) -> None:
        await client.subscribe(
            f"/queue/{queue}", handle, on_suppressed_exception=lambda error, _: print(repr(error), file=sys.stderr)
        )
        await asyncio.Event().wait()

    return work


def main(addresses: str, verb: str, queue: str) -> None:
    nodes = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in addresses.split(","))]
    work = Sender(queue).work if verb == "send" else receiver(queue)
    token, ca = os.environ.get("YIRANGMQ_TOKEN", ""), os.environ.get("YIRANGMQ_CA", "")
    asyncio.run(at_any_node(nodes, work, token, ca))


if __name__ == "__main__":
    main(*sys.argv[1:])
