"""RabbitMQ with quorum queues: durable, persistent messages, publisher confirms, prefetch.

Run as a program it is a client process (``peers_worker``) on pika's event loop; imported it starts the server. A
quorum queue confirms after fsync. Acks have no answer in AMQP 0-9-1: at the end of a known number a question to the
queue is answered behind them, and that is as far as the protocol goes."""

import socket
import time
from collections.abc import Callable
from typing import Any

from peers_process import Server, free_port
from peers_worker import Client, Progress, body, work

WINDOW = 500
PREFETCH = 1000
ACK_EVERY = 200
ACK_AFTER = 0.002
"""Seconds after which a smaller number is acknowledged too."""


class RabbitServer(Server):
    name = "RabbitMQ"

    def open(self) -> None:
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text("")
        port, names = free_port(), free_port()
        environment = {
            **self.packages.environment,
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RUNNING_UNDER_SYSTEMD": "1",  # no shell around it, and none inside
        }
        self.address = {"port": port}
        self.launch([str(self.packages.epmd)], environment)
        self.launch([str(self.packages.rabbitmq)], environment)

    def first_message(self) -> bool:
        """Not a message: the client library lives elsewhere. That it speaks AMQP is what we can see from here."""
        with socket.create_connection(("127.0.0.1", self.address["port"])) as line:
            line.sendall(b"AMQP\x00\x00\x09\x01")
            return line.recv(1) == b"\x01"


class RabbitClient:
    """pika's SelectConnection: of the Python clients we tried it publishes and consumes the most."""

    def __init__(self, orders: dict[str, Any]) -> None:
        import pika

        self._queue = orders["queue"]
        self._properties = pika.BasicProperties(delivery_mode=2)
        self._channel: Any = None
        self._body = body()
        parameters = pika.ConnectionParameters("127.0.0.1", orders["address"]["port"], heartbeat=0)
        self._line = pika.SelectConnection(parameters, on_open_callback=self._opened)
        self._run()

    def _opened(self, line: Any) -> None:
        line.channel(on_open_callback=self._has_channel)

    def _has_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.basic_qos(prefetch_count=PREFETCH)
        quorum = {"x-queue-type": "quorum"}
        channel.queue_declare(self._queue, durable=True, arguments=quorum, callback=lambda _: self._stop())

    def _run(self) -> None:
        self._line.ioloop.start()

    def _stop(self) -> None:
        self._line.ioloop.stop()

    def publish_singly(self, count: int, progress: Progress) -> None:
        self._publish(count, 1, progress)

    def publish_many(self, count: int, progress: Progress) -> None:
        self._publish(count, WINDOW, progress)

    def _publish(self, count: int, window: int, progress: Progress) -> None:
        confirms = _Confirms()
        sent = 0

        def fill(_: Any = None) -> None:
            nonlocal sent
            while sent < count and sent - progress.count < window:
                self._channel.basic_publish("", self._queue, self._body, self._properties)
                sent += 1

        def confirmed(frame: Any) -> None:
            progress.add(confirms.count(frame.method))
            if progress.count == count:
                self._stop()
            else:
                fill()

        self._channel.confirm_delivery(confirmed, callback=fill)
        self._run()

    def consume(self, count: int, progress: Progress) -> None:
        acks = _Acks(self._line.ioloop, self._channel)

        def taken(_channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
            last = progress.count + acks.waiting + 1 == count
            progress.add(acks.add(method.delivery_tag, at_once=last))
            if last:
                self._ask_behind()

        acks.late = progress.add
        self._channel.basic_consume(self._queue, taken)
        self._run()

    def _ask_behind(self) -> None:
        """Answered after the acks before it have arrived."""
        self._channel.queue_declare(self._queue, passive=True, callback=lambda _: self._stop())

    def publish_paced(self, moments: list[float], bodies: Callable[[float], bytes]) -> None:
        confirms = _Confirms()
        left = len(moments)
        due = iter(moments)

        def send() -> None:
            self._channel.basic_publish("", self._queue, bodies(time.monotonic()), self._properties)
            plan()

        def plan(_: Any = None) -> None:
            moment = next(due, None)
            if moment is not None:
                self._line.ioloop.call_later(max(0.0, moment - time.monotonic()), send)

        def confirmed(frame: Any) -> None:
            nonlocal left
            left -= confirms.count(frame.method)
            if not left:
                self._stop()

        self._channel.confirm_delivery(confirmed, callback=plan)
        self._run()

    def consume_timed(self, count: int, seen: Callable[[bytes], None]) -> None:
        acks = _Acks(self._line.ioloop, self._channel)
        left = count

        def taken(_channel: Any, method: Any, _properties: Any, payload: bytes) -> None:
            nonlocal left
            seen(payload)
            left -= 1
            acks.add(method.delivery_tag, at_once=not left)
            if not left:
                self._ask_behind()

        self._channel.basic_consume(self._queue, taken)
        self._run()

    def clean(self) -> None:
        self._channel.queue_delete(self._queue, callback=lambda _: self._stop())
        self._run()


class _Confirms:
    """Confirms name one message, or all up to one; they may come out of order."""

    def __init__(self) -> None:
        self._upto = 0
        self._beyond: set[int] = set()

    def count(self, method: Any) -> int:
        """How many are confirmed now that were not before."""
        if type(method).__name__ != "Ack" and not method.NAME.endswith(".Ack"):
            raise RuntimeError("RabbitMQ refused a message")
        before = self._upto + len(self._beyond)
        if method.multiple:
            self._upto = max(self._upto, method.delivery_tag)
            self._beyond = {tag for tag in self._beyond if tag > self._upto}
        else:
            self._beyond.add(method.delivery_tag)
        while self._upto + 1 in self._beyond:
            self._upto += 1
            self._beyond.remove(self._upto)
        return self._upto + len(self._beyond) - before


class _Acks:
    """Acknowledge many with one frame, a few after a short while."""

    def __init__(self, loop: Any, channel: Any) -> None:
        self._loop = loop
        self._channel = channel
        self._last = 0
        self._timer: Any = None
        self.waiting = 0
        self.late: Callable[[int], None] = lambda count: None

    def add(self, tag: int, *, at_once: bool) -> int:
        """How many were acknowledged by this."""
        self.waiting += 1
        self._last = tag
        if at_once or self.waiting >= ACK_EVERY:
            return self._send()
        if self._timer is None:
            self._timer = self._loop.call_later(ACK_AFTER, self._ring)
        return 0

    def _ring(self) -> None:
        self._timer = None
        if self.waiting:
            self.late(self._send())

    def _send(self) -> int:
        self._channel.basic_ack(self._last, multiple=True)
        sent, self.waiting = self.waiting, 0
        return sent


def connect(orders: dict[str, Any]) -> Client:
    return RabbitClient(orders)


if __name__ == "__main__":
    work(connect)
