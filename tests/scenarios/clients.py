"""Producers and consumers of a server as whole processes. They connect again by themselves; what they tell through
their pipe was confirmed to them."""

import random
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from yirangmq import NewMessage, QueueError
from yirangmq.client.connect import connect

RETRIES = 200
"""A client outlives every pause that the test makes."""
DROPPED = 0.02
"""Of the messages taken, so many are never settled, as by a consumer that died."""


def produce(address: str, pipe: Connection, name: str, stop: str) -> None:
    """Publish until told to stop, single messages and batches; tell each id once it is confirmed."""
    chance = random.Random(name)
    with connect(address, consumer=name, retries=RETRIES) as client:
        for number in _until(stop):
            count = chance.choice((1, 1, 5, 60))
            batch = [NewMessage(payload=chance.randbytes(200), id=f"{name}.{number}.{n}") for n in range(count)]
            pipe.send(("published", [stored.id for stored in client.publish_many("work", batch)]))


def consume(address: str, pipe: Connection, name: str, stop: str) -> None:
    """Lease and ack until told to stop; tell (id, attempt) of what came, and of what is acked for good."""
    chance = random.Random(name)
    with connect(address, consumer=name, retries=RETRIES) as client:
        for _ in _until(stop):
            taken = client.lease("work", chance.choice((1, 10, 100)), wait=0.2)
            if not taken:
                continue
            pipe.send(("taken", [(one.id, one.attempt, one.lease_until, time.time()) for one in taken]))
            kept = [one for one in taken if chance.random() >= DROPPED]
            results = client.ack_many([one.lease_id for one in kept])
            pipe.send(("acked", _acked([(one.id, one.attempt) for one in kept], results)))


def subscribe(address: str, pipe: Connection, name: str, stop: str) -> None:
    """The same with messages pushed."""
    chance = random.Random(name)
    client: Any = connect(address, consumer=name, retries=RETRIES)
    with client, client.subscribe("work", 200, idle=0.2) as subscription:
        for _ in _until(stop):
            taken = subscription.next_batch()
            if not taken:
                continue
            pipe.send(("taken", [(one.id, one.attempt, one.lease_until, time.time()) for one in taken]))
            kept = [one for one in taken if chance.random() >= DROPPED]
            results = client.ack_many([one.lease_id for one in kept])
            pipe.send(("acked", _acked([(one.id, one.attempt) for one in kept], results)))


def _acked(what: list[tuple[str, int]], results: list[QueueError | None]) -> list[tuple[str, int]]:
    return [one for one, error in zip(what, results, strict=True) if error is None]


def _until(stop: str) -> Iterator[int]:
    number = 0
    while not Path(stop).exists():
        number += 1
        yield number
