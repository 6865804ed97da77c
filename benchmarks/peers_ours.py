"""Our daemon over its unix socket. Run as a program it is a client process (``peers_worker``) on our own client
library; imported it starts the server."""

import sys
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

from peers_process import Server
from peers_worker import Client, Progress, body, work

import yirangmq

CREDIT = 1000
LEASE_SECONDS = 600


class OurServer(Server):
    """As anybody would start it; only the log is short."""

    name = "ours"

    def open(self) -> None:
        self.address = {"url": f"unix:{self.folder / 'yirangmq.sock'}"}
        words = ["serve", "--data", str(self.folder), "--log-level", "warning", "--http", "off"]
        self.launch([sys.executable, "-m", "yirangmq", *words], {})

    def first_message(self) -> bool:
        return self._tries(lambda queues: queues.publish("first", b"x"))

    def first_delivery(self, queue: str) -> bool:
        return self._tries(lambda queues: queues.lease(queue, 1, lease_seconds=LEASE_SECONDS))

    def _tries(self, ask: Callable[[Any], Any]) -> bool:
        try:
            with yirangmq.connect(self.address["url"], retries=0) as queues:
                return bool(ask(queues))
        except yirangmq.Unreachable:
            return False


class OurClient:
    def __init__(self, orders: dict[str, Any]) -> None:
        self._url = orders["address"]["url"]
        self._queue = orders["queue"]
        self._body = body()
        self._queues: Any = yirangmq.connect(self._url)

    def publish_singly(self, count: int, progress: Progress) -> None:
        for _ in range(count):
            self._queues.publish(self._queue, self._body)
            progress.add(1)

    def publish_many(self, count: int, progress: Progress) -> None:
        progress.add(len(self._queues.publish_many(self._queue, repeat(self._body, count))))

    def consume(self, count: int, progress: Progress) -> None:
        with self._queues.subscribe(self._queue, CREDIT, lease_seconds=LEASE_SECONDS) as subscription:
            for batch in subscription.batches():
                subscription.ack_nowait(batch)
                subscription.settle()
                progress.add(len(batch))
                if progress.count >= count:
                    return

    def publish_paced(self, moments: list[float], bodies: Callable[[float], bytes]) -> None:
        with self._queues.sender(self._queue) as sender:
            for moment in moments:
                while (left := moment - time.monotonic()) > 0:
                    time.sleep(left)
                sender.send(bodies(time.monotonic()))

    def consume_timed(self, count: int, seen: Callable[[bytes], None]) -> None:
        left = count
        with self._queues.subscribe(self._queue, CREDIT, lease_seconds=LEASE_SECONDS) as subscription:
            for batch in subscription.batches():
                for delivery in batch:
                    seen(delivery.payload)
                subscription.ack_nowait(batch)
                left -= len(batch)
                if not left:
                    return

    def clean(self) -> None:
        self._queues.delete_queue(self._queue)


def connect(orders: dict[str, Any]) -> Client:
    return OurClient(orders)


if __name__ == "__main__":
    work(connect)
