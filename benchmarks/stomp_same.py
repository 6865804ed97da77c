"""One script, one client that is not ours (stomp.py), two brokers: Debian's ActiveMQ and this server. Each step says
what the client saw; the two must be equal, but for those that docs/stomp.md lists.

    make stomp-same

Exits with 1 if a step differs that may not."""

import contextlib
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stomp
from activemq import ActiveMQ, Ours, StompServer

PATIENCE = 10.0
QUIET = 0.4
"""Seconds without a message after which none is expected."""
ON_PURPOSE = {
    "nack": "follows the policy of the queue instead of going to the dead letters at once",
    "priority": "is always looked at",
    "error closes": "every ERROR closes, as the protocol says",
    "selector": "is refused",
    "group header": "is given back",
    "wrong destination": "what begins with a slash and is no kind of destination is refused",
}
CONNECTIONS = {"1.0": stomp.StompConnection10, "1.1": stomp.StompConnection11, "1.2": stomp.StompConnection12}


class Client(stomp.ConnectionListener):
    """One connection, and what it hears."""

    def __init__(self, server: StompServer, version: str = "1.2", client_id: str = "", **options: Any) -> None:
        self.version = version
        self.messages: list[Any] = []
        self.receipts: list[str] = []
        self.errors: list[Any] = []
        self.beats = 0
        self.is_over = False
        self._number = 0
        options = {"auto_decode": False, "reconnect_attempts_max": 1, **options}
        self.line = CONNECTIONS[version]([("127.0.0.1", server.address["port"])], **options)
        self.line.set_listener("", self)
        self.line.connect(wait=True, headers={"client-id": client_id} if client_id else {})

    def on_message(self, frame: Any) -> None:
        self.messages.append(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.append(frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        self.errors.append(frame)

    def on_heartbeat(self) -> None:
        self.beats += 1

    def on_disconnected(self) -> None:
        self.is_over = True

    # -- acts

    def confirm(self, act: Callable[..., Any], *values: Any, **named: Any) -> bool:
        self._number += 1
        receipt = f"r{self._number}"
        act(*values, **{**named, "receipt": receipt})
        return until(lambda: receipt in self.receipts or bool(self.errors)) and receipt in self.receipts

    def send(self, destination: str, *bodies: bytes | str, **headers: str) -> bool:
        said = [
            self.confirm(lambda receipt, body=body: self.line.send(destination, body, headers=headers, receipt=receipt))
            for body in bodies
        ]
        return all(said)

    def subscribe(self, destination: str, ack: str = "client-individual", **headers: str) -> bool:
        return self.confirm(self.line.subscribe, destination, id="1", ack=ack, headers=headers)

    def take(self, count: int) -> list[Any]:
        """So many messages, or those that come."""
        until(lambda: len(self.messages) >= count)
        time.sleep(QUIET if count == 0 else 0.05)
        found, self.messages = self.messages, []
        return found

    def bodies(self, count: int) -> list[bytes]:
        return [message.body for message in self.take(count)]

    def ack(self, message: Any, act: str = "ack", **headers: str) -> bool:
        verb = getattr(self.line, act)
        if self.version == "1.2":
            return self.confirm(verb, message.headers["ack"], **headers)
        if self.version == "1.1":
            return self.confirm(verb, message.headers["message-id"], message.headers["subscription"], **headers)
        return self.confirm(verb, message.headers["message-id"], **headers)

    def lose(self) -> None:
        with contextlib.suppress(Exception):
            self.line.transport.disconnect_socket()
        until(lambda: self.is_over)


def until(is_so: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


# -- the script: each step a function of a server, its answer a plain value --------------------------------------------


def versions(server: StompServer) -> Any:
    said = []
    for version in CONNECTIONS:
        client = Client(server, version)
        destination = f"/queue/versions-{version}"
        sent = client.send(destination, b"hello", persistent="true")
        client.subscribe(destination, "client")
        [message] = client.take(1)
        said.append((sent, message.body, client.ack(message), client.confirm(client.line.disconnect_with_receipt)))
    return said


def any_bytes(server: StompServer) -> Any:
    client = Client(server)
    client.send("/queue/bytes", bytes(range(256)), b"", "text without bytes: äöü")
    client.subscribe("/queue/bytes", "auto")
    return client.bodies(3)


def headers(server: StompServer) -> Any:
    client = Client(server)
    given = {
        "correlation-id": "c-1", "reply-to": "/queue/back", "type": "order", "persistent": "true", "priority": "7",
        "x-mine": "a:b\\c\nd", "expires": "9999999999999",
    }  # fmt: skip
    client.send("/queue/headers", b"x", **given)
    client.subscribe("/queue/headers", "auto")
    [message] = client.take(1)
    names = [*given, "destination", "subscription"]
    return {name: message.headers.get(name) for name in names}, sorted(
        name for name in ("message-id", "timestamp") if name in message.headers
    )


def order(server: StompServer) -> Any:
    client = Client(server)
    for number in range(100):
        client.line.send("/queue/order", str(number))
    client.subscribe("/queue/order", "auto")
    return client.bodies(100)


def ack_client(server: StompServer) -> Any:
    return _acked(server, "client")


def ack_individual(server: StompServer) -> Any:
    return _acked(server, "client-individual")


def ack_auto(server: StompServer) -> Any:
    return _acked(server, "auto")


def _acked(server: StompServer, mode: str) -> Any:
    """The second of three is acked, then the connection is lost: what comes again, and how."""
    queue = f"/queue/ack-{mode}"
    client = Client(server)
    client.send(queue, b"1", b"2", b"3", persistent="true")
    client.subscribe(queue, mode)
    messages = client.take(3)
    if mode != "auto":
        client.ack(messages[1])
    client.lose()
    again = Client(server)
    again.subscribe(queue, "auto")
    return [(message.body, message.headers.get("redelivered")) for message in again.take(2 if mode != "auto" else 0)]


def unsubscribed(server: StompServer) -> Any:
    client = Client(server)
    client.subscribe("/queue/unsubscribed", "auto")
    client.confirm(client.line.unsubscribe, "1")
    client.send("/queue/unsubscribed", b"x")
    return client.bodies(0)


def prefetch(server: StompServer) -> Any:
    client = Client(server)
    client.send("/queue/prefetch", b"1", b"2", b"3")
    client.subscribe("/queue/prefetch", **{"activemq.prefetchSize": "1"})
    first = client.take(1)
    then = client.take(0)
    client.ack(first[0])
    return len(first), len(then), client.bodies(1)


def committed(server: StompServer) -> Any:
    return _transaction(server, "commit")


def aborted(server: StompServer) -> Any:
    return _transaction(server, "abort")


def _transaction(server: StompServer, end: str) -> Any:
    client, other = Client(server), Client(server)
    client.send(f"/queue/in-{end}", b"work")
    client.subscribe(f"/queue/in-{end}", "client")
    [work] = client.take(1)
    other.subscribe(f"/queue/out-{end}", "auto")
    name = client.line.begin()
    client.send(f"/queue/out-{end}", b"1", b"2", transaction=name)
    client.ack(work, transaction=name)
    before = other.bodies(0)
    client.confirm(getattr(client.line, end), name)
    after = other.bodies(2 if end == "commit" else 0)
    client.lose()
    again = Client(server)
    again.subscribe(f"/queue/in-{end}", "auto")
    return before, after, again.bodies(0 if end == "commit" else 1)


def delayed(server: StompServer) -> Any:
    client = Client(server)
    client.subscribe("/queue/delayed", "auto")
    begun = time.monotonic()
    client.send("/queue/delayed", b"x", AMQ_SCHEDULED_DELAY="1000")
    bodies = client.bodies(1)
    return bodies, time.monotonic() - begun >= 0.9


def expired(server: StompServer) -> Any:
    client = Client(server)
    soon = round(time.time() * 1000) + 200
    client.send("/queue/expired", b"late", expires=str(soon))
    client.send("/queue/expired", b"fresh")
    time.sleep(0.5)
    client.subscribe("/queue/expired", "auto")
    return client.bodies(1)


def topics(server: StompServer) -> Any:
    sender, one, two = Client(server), Client(server), Client(server)
    sender.send("/topic/news.a", b"before")
    one.subscribe("/topic/news.*", "auto")
    two.subscribe("/topic/news.>", "auto")
    sender.send("/topic/news.a", b"1")
    sender.send("/topic/news.a.b", b"2")
    heard = [(message.body, message.headers["destination"]) for message in two.take(2)]
    return one.bodies(1), heard


def durable(server: StompServer) -> Any:
    name = {"activemq.subscriptionName": "main"}
    client = Client(server, client_id="billing")
    client.subscribe("/topic/durable", "auto", **name)
    sender = Client(server)
    sender.send("/topic/durable", b"1", persistent="true")
    first = client.bodies(1)
    client.confirm(client.line.disconnect_with_receipt)
    until(lambda: client.is_over)
    sender.send("/topic/durable", b"2", b"3", persistent="true")
    again = Client(server, client_id="billing")
    again.subscribe("/topic/durable", "auto", **name)
    return first, again.bodies(2)


def request_and_reply(server: StompServer) -> Any:
    asking, answering = Client(server), Client(server)
    asking.subscribe("/temp-queue/back", "auto")
    asking.send("/queue/ask", b"ask", **{"reply-to": "/temp-queue/back"})
    answering.subscribe("/queue/ask", "auto")
    [question] = answering.take(1)
    answering.send(question.headers["reply-to"], b"answer")
    return asking.bodies(1)


def groups(server: StompServer) -> Any:
    client = Client(server)
    for number in range(3):
        client.send("/queue/groups", str(number), JMSXGroupID="g")
    client.subscribe("/queue/groups", "auto")
    return client.bodies(3)


def group_header(server: StompServer) -> Any:
    client = Client(server)
    client.send("/queue/group-header", b"x", JMSXGroupID="g")
    client.subscribe("/queue/group-header", "auto")
    return [message.headers.get("JMSXGroupID") for message in client.take(1)]


def heart_beats(server: StompServer) -> Any:
    client = Client(server, heartbeats=(1000, 1000))
    return until(lambda: client.beats >= 2), client.line.is_connected()


def shared(server: StompServer) -> Any:
    """Two consumers, each message to one of them."""
    sender, consumers = Client(server), [Client(server), Client(server)]
    for one in consumers:
        one.subscribe("/queue/shared", "auto", **{"activemq.prefetchSize": "1"})
    sender.send("/queue/shared", *(str(number) for number in range(20)))
    until(lambda: sum(len(one.messages) for one in consumers) >= 20)
    bodies = [message.body for one in consumers for message in one.messages]
    return sorted(bodies, key=int), all(one.messages for one in consumers)


def killed(server: StompServer) -> Any:
    """kill -9: what was persistent and receipted is there again."""
    client = Client(server)
    client.send("/queue/killed", *(str(number) for number in range(20)), persistent="true")
    server.stop(signal.SIGKILL)
    until(lambda: client.is_over)
    server.restart()
    again = Client(server)
    again.subscribe("/queue/killed", "auto")
    return again.bodies(20)


def wrong_ack(server: StompServer) -> Any:
    client = Client(server)
    client.line.ack("no-such-id", receipt="r")
    return until(lambda: bool(client.errors)), "r" in client.receipts


def wrong_transaction(server: StompServer) -> Any:
    client = Client(server)
    client.line.commit("never-begun", receipt="r")
    return until(lambda: bool(client.errors)), "r" in client.receipts


def bare_name(server: StompServer) -> Any:
    """A destination without a slash is a queue."""
    client = Client(server)
    client.send("bare", b"x")
    client.subscribe("/queue/bare", "auto")
    return [(message.body, message.headers["destination"]) for message in client.take(1)]


def wrong_destination(server: StompServer) -> Any:
    client = Client(server)
    client.line.send("/nowhere/x", b"x", receipt="r")
    return until(lambda: bool(client.errors)), "r" in client.receipts


def error_closes(server: StompServer) -> Any:
    client = Client(server)
    client.line.commit("never-begun")
    until(lambda: bool(client.errors))
    return until(lambda: client.is_over, 2.0)


def nack(server: StompServer) -> Any:
    client = Client(server)
    client.send("/queue/nack", b"x", persistent="true")
    client.subscribe("/queue/nack")
    [message] = client.take(1)
    client.ack(message, "nack")
    return len(client.take(1)) if isinstance(server, Ours) else len(client.take(0))


def priority(server: StompServer) -> Any:
    client = Client(server)
    for number in (1, 9, 5):
        client.send("/queue/priority", str(number), priority=str(number))
    client.subscribe("/queue/priority", "auto")
    return client.bodies(3)


def selector(server: StompServer) -> Any:
    client = Client(server)
    return client.subscribe("/queue/selector", selector="a = 1"), bool(client.errors)


STEPS = (
    versions, any_bytes, headers, order, ack_client, ack_individual, ack_auto, unsubscribed, prefetch, committed,
    aborted, delayed, expired, topics, durable, request_and_reply, groups, group_header, heart_beats, shared, killed,
    wrong_ack, wrong_transaction, bare_name, wrong_destination, error_closes, nack, priority, selector,
)  # fmt: skip


def _disconnect_with_receipt(line: Any, receipt: str) -> None:
    line.disconnect(receipt=receipt)


def play(server: StompServer) -> dict[str, str]:
    said = {}
    for step in STEPS:
        try:
            answer = repr(step(server))
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        said[step.__name__.replace("_", " ")] = answer
        print(f"  {server.name}: {step.__name__}", flush=True)
    return said


def compare(theirs: dict[str, str], ours: dict[str, str]) -> int:
    wrong = 0
    for name, answer in theirs.items():
        if answer == ours[name]:
            print(f"same     {name}")
            continue
        is_meant = name in ON_PURPOSE
        wrong += not is_meant
        print(f"{'on purpose' if is_meant else 'DIFFERENT'}  {name}: {ON_PURPOSE.get(name, '')}")
        print(f"    ActiveMQ  {answer[:300]}\n    yirangmq  {ours[name][:300]}")
    print(f"target: same answers as ActiveMQ | {len(theirs) - wrong} of {len(theirs)} | all but those on purpose | "
          f"{'short' if wrong else 'reached'}")  # fmt: skip
    return wrong


def main() -> int:
    logging.disable(logging.CRITICAL)
    for kind in CONNECTIONS.values():
        kind.disconnect_with_receipt = _disconnect_with_receipt
    folder = Path(tempfile.mkdtemp(prefix="stomp-same-"))
    said = []
    try:
        for server in (ActiveMQ(folder / "activemq"), Ours(folder / "ours")):
            try:
                server.start()
                said.append(play(server))
            finally:
                server.stop(signal.SIGKILL)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if compare(*said) else 0


if __name__ == "__main__":
    sys.exit(main())
