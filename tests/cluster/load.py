"""Producers and consumers that go on whatever happens to the nodes, and remember what they were told."""

import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.etcd_servers import PATIENCE
from tests.support.server_process import until
from yirangmq.client.connect import connect
from yirangmq.core.errors import QueueError

LEASE_SECONDS = 8
"""What was leased by a call whose answer died with its node comes back after this."""
RETRIES = 1_000


class Load:
    """``confirmed``: published, and told so; ``acked``: the same of acks; ``late``: given out after it was acked."""

    def __init__(self, addresses: str, queue: str) -> None:
        self.confirmed: list[str] = []
        self.acked: set[str] = set()
        self.late: set[str] = set()
        self.given: Counter[str] = Counter()
        self.errors: list[str] = []
        self._addresses = addresses
        self._queue = queue
        self._stop, self._done = threading.Event(), threading.Event()
        self._producers = [threading.Thread(target=self._produce, args=(number,)) for number in range(2)]
        self._consumers = [threading.Thread(target=self._consume, args=(number,)) for number in range(2)]

    def start(self) -> None:
        for one in (*self._producers, *self._consumers):
            one.start()

    def goes_on(self, count: int = 100) -> None:
        """So many more are published, and so many more acked."""
        sent, acked = len(self.confirmed), len(self.acked)
        until(lambda: self.errors or (len(self.confirmed) >= sent + count and len(self.acked) >= acked + count))
        assert self.errors == []

    def finish(self) -> None:
        """No more is published; all of it is acked."""
        self._stop.set()
        for one in self._producers:
            one.join(PATIENCE)
        wanted = set(self.confirmed)
        until(lambda: self.errors or wanted <= self.acked)
        self.end()
        assert self.errors == []
        assert wanted <= self.acked
        assert self.late == set()

    def end(self) -> None:
        self._stop.set()
        self._done.set()
        for one in (*self._producers, *self._consumers):
            one.join(PATIENCE)

    def _produce(self, number: int) -> None:
        try:
            with connect(self._addresses, consumer=f"producer-{number}", retries=RETRIES) as client:
                while not self._stop.is_set():
                    bodies = [{"text": uuid.uuid4().hex} for _ in range(10)]
                    self.confirmed += [receipt.id for receipt in client.publish_many(self._queue, bodies)]
                    self._stop.wait(0.01)
        except QueueError as error:
            self._fail(error)

    def _consume(self, number: int) -> None:
        try:
            with connect(self._addresses, consumer=f"consumer-{number}", retries=RETRIES) as client:
                while not self._done.is_set():
                    got = client.lease(self._queue, limit=20, wait=0.5, lease_seconds=LEASE_SECONDS)
                    self.late.update(one.id for one in got if one.id in self.acked)
                    self.given.update(one.id for one in got)
                    told = client.ack_many([one.lease_id for one in got])
                    self.acked.update(one.id for one, error in zip(got, told, strict=True) if error is None)
        except QueueError as error:
            self._fail(error)

    def _fail(self, error: QueueError) -> None:
        if not self._done.is_set():
            self.errors.append(f"{error.code}: {error}")


@contextmanager
def load(addresses: str, queue: str) -> Iterator[Load]:
    made = Load(addresses, queue)
    made.start()
    try:
        yield made
    finally:
        with suppress(QueueError):
            made.end()
