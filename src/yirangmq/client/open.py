"""From an address to a client: the parts put together."""

import random

from yirangmq.client.address import read_addresses
from yirangmq.client.courier import Courier, Terms, Wires
from yirangmq.client.faces import Client
from yirangmq.client.verbs import AsyncClient
from yirangmq.clock import TimeOrderedIds, default_consumer
from yirangmq.core import names
from yirangmq.core.ports import Ids

TIMEOUT = 30.0
"""Seconds to wait for a connection, for an answer, and for room to send."""
RETRIES = 8
"""Tries after the first: with the pauses between them, about seven seconds for a server to come back."""


def connect(
    address: str,
    *,
    consumer: str | None = None,
    token: str = "",
    timeout: float = TIMEOUT,
    retries: int = RETRIES,
    ids: Ids | None = None,
) -> Client:
    from yirangmq.client.blocking import BlockingWires, run

    client = _made(BlockingWires(), _terms(address, consumer, token, timeout, retries), ids)
    run(client.connect())
    return Client(client)


def connect_async(
    address: str,
    *,
    consumer: str | None = None,
    token: str = "",
    timeout: float = TIMEOUT,
    retries: int = RETRIES,
    ids: Ids | None = None,
) -> AsyncClient:
    from yirangmq.client.looping import LoopWires

    return _made(LoopWires(), _terms(address, consumer, token, timeout, retries), ids)


def _terms(address: str, consumer: str | None, token: str, timeout: float, retries: int) -> Terms:
    return Terms(
        read_addresses(address, token),
        default_consumer() if consumer is None else names.check_consumer(consumer),
        names.check_milliseconds(timeout, "timeout", least=0.001) / 1000,
        names.check_count(retries, "retries", least=0, most=10_000),
    )


def _made(wires: Wires, terms: Terms, ids: Ids | None) -> AsyncClient:
    return AsyncClient(Courier(wires, terms, random.random), ids or TimeOrderedIds(), terms.name)
