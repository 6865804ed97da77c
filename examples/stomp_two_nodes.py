"""STOMP with two nodes: a producer and a consumer that leave a node which does not answer, with stomp.py.

    pip install stomp.py
    seq 10 | python examples/stomp_two_nodes.py gateway-1:61613,gateway-2:61613 send orders
    python examples/stomp_two_nodes.py gateway-1:61613,gateway-2:61613 receive orders

Needs two servers. Each line of stdin becomes a message. The token is read from YIRANGMQ_TOKEN, the certificate of the
nodes' authority (TLS) from YIRANGMQ_CA.

A frozen node accepts connections and answers nothing, and stomp.py by itself waits for it without a limit. So each
connection has one address, and each step has a time limit: CONNECTED, every receipt, and the heart-beats between."""

import contextlib
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from itertools import cycle
from typing import Any

import stomp

HEARTBEATS = (5000, 5000)
"""Milliseconds between heart-beats, sent and expected. stomp.py gives a node up after 1.5 times the second number."""
CONNECT_SECONDS = 5.0
RECEIPT_SECONDS = 10.0
PAUSE_SECONDS = 0.2
PASSING = ("not_active", "unavailable", "timed_out", "store_", "quota_exceeded")
"""Codes of errors after which the same message may be accepted later, or by another node."""


class NodeConnection(stomp.ConnectionListener):
    """One connection to one node. Its callbacks run on the threads of stomp.py."""

    def __init__(self, address: tuple[str, int], ca: str, handle: Callable[[bytes], None]) -> None:
        self.handle = handle
        self.changed = threading.Condition()
        self.is_greeted = self.is_lost = False
        self.receipts: set[str] = set()
        self.refused: dict[str, str] = {}
        # One address: with several, stomp.py begins each time with the first that accepts a connection.
        self.line = stomp.Connection12(
            [address], heartbeats=HEARTBEATS, timeout=CONNECT_SECONDS, reconnect_attempts_max=1, auto_decode=False
        )
        if ca:
            self.line.set_ssl([address], ca_certs=ca)
        self.line.set_listener("program", self)

    def on_connected(self, frame: Any) -> None:
        with self.changed:
            self.is_greeted = True
            self.changed.notify_all()

    def on_receipt(self, frame: Any) -> None:
        with self.changed:
            self.receipts.add(frame.headers["receipt-id"])
            self.changed.notify_all()

    def on_disconnected(self) -> None:
        with self.changed:
            self.is_lost = True
            self.changed.notify_all()

    def on_error(self, frame: Any) -> None:
        """The node closes the connection after an error."""
        message = frame.headers.get("message", "")
        with self.changed:
            if not message.startswith(PASSING):
                self.refused[frame.headers.get("receipt-id", "")] = message
            self.is_lost = True
            self.changed.notify_all()

    def on_message(self, frame: Any) -> None:
        self.handle(frame.body)
        self.line.ack(frame.headers["ack"])

    def is_alive(self) -> bool:
        """False once the connection is lost, or heart-beats are missing."""
        return not self.is_lost and bool(self.line.is_connected() or not self.is_greeted)

    def open(self, passcode: str) -> bool:
        """Connect. Return False if the node does not answer in time."""
        try:
            self.line.connect("program", passcode)  # without wait=True, which has no time limit
        except (OSError, stomp.exception.StompException):
            return False
        return self.wait(lambda: self.is_greeted, CONNECT_SECONDS)

    def wait(self, is_done: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition, at most for ``seconds`` and while the connection lives."""
        end = time.monotonic() + seconds
        with self.changed:
            while not is_done() and self.is_alive() and time.monotonic() < end:
                self.changed.wait(PAUSE_SECONDS)
        return is_done()

    def drop(self) -> None:
        """Close the socket. ``disconnect`` would wait for the node, and over TLS ``disconnect_socket`` does too."""
        held = self.line.transport.socket
        if held is not None:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)

    def send(self, queue: str, body: bytes, message_id: str) -> bool:
        """Send a message. Return False if the node does not confirm it in time.

        Raise ``ValueError`` if the node refuses this message, which it would do again."""
        limit = threading.Timer(RECEIPT_SECONDS, self.drop)  # ends a write that blocks because the node does not read
        limit.start()
        try:
            headers = {"receipt": message_id, "_AMQ_DUPL_ID": message_id}
            self.line.send(f"/queue/{queue}", body, headers=headers)
            if self.wait(lambda: message_id in self.receipts, RECEIPT_SECONDS):
                return True
        except (OSError, AttributeError, stomp.exception.StompException) as error:
            print(f"connection lost: {error}", file=sys.stderr, flush=True)
        finally:
            limit.cancel()
        if message_id in self.refused:
            raise ValueError(self.refused[message_id])
        return False


class TwoNodes:
    """A connection to the first of several nodes that answers, and to the next one when it is lost."""

    def __init__(self, addresses: list[tuple[str, int]], passcode: str = "", ca: str = "") -> None:
        self.addresses = cycle(addresses)
        self.passcode, self.ca = passcode, ca
        self.current: NodeConnection | None = None

    def connection(self, handle: Callable[[bytes], None] = print) -> NodeConnection:
        while self.current is None or not self.current.is_alive():
            self.drop()
            found = NodeConnection(next(self.addresses), self.ca, handle)
            if found.open(self.passcode):
                self.current = found
            else:
                found.drop()
                time.sleep(PAUSE_SECONDS)
        return self.current

    def drop(self) -> None:
        if self.current is not None:
            self.current.drop()
        self.current = None

    def send(self, queue: str, body: bytes) -> None:
        """Send until a node confirms it. A node stores the same ``_AMQ_DUPL_ID`` once."""
        message_id = str(uuid.uuid4())
        while not self.connection().send(queue, body, message_id):
            self.drop()

    def receive(self, queue: str, handle: Callable[[bytes], None]) -> None:
        while True:
            connection = self.connection(handle)
            connection.line.subscribe(f"/queue/{queue}", id="1", ack="client-individual")
            while connection.is_alive():
                time.sleep(PAUSE_SECONDS)


def main(addresses: str, verb: str, queue: str) -> None:
    nodes = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in addresses.split(","))]
    two = TwoNodes(nodes, os.environ.get("YIRANGMQ_TOKEN", ""), os.environ.get("YIRANGMQ_CA", ""))
    if verb == "send":
        for text in sys.stdin:
            two.send(queue, text.rstrip("\n").encode())
            print("confirmed", text[:60].rstrip("\n"), flush=True)
        two.drop()
    else:
        two.receive(queue, lambda body: print(body[:60].decode(), flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
