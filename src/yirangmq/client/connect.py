"""Entry points of the client: ``connect`` for the blocking client, ``connect_async`` for asyncio.

Both parse the addresses, check the options and assemble the client. The blocking client connects immediately; the
asyncio client connects when it is awaited or first used."""

import random

from yirangmq.client.address import ServerAddress, TlsFiles, read_addresses
from yirangmq.client.async_client import AsyncClient
from yirangmq.client.connection import ReconnectingConnection
from yirangmq.client.sync_client import Client
from yirangmq.client.transport import ClientOptions, TransportFactory
from yirangmq.clock import TimeOrderedIds, default_consumer
from yirangmq.core import validation
from yirangmq.core.ports import Ids

TIMEOUT = 30.0
"""Timeout in seconds for a connection, for a reply, and for free space in the socket's send buffer."""
RETRIES = 8
"""Number of retries. With the backoff between them a server has about 7 s to come back."""
FAILOVER_RETRIES = 50
"""Number of retries with more than one address: about 50 s, for another node to take over."""


def connect(
    address: str,
    *,
    consumer: str | None = None,
    token: str = "",
    ca: str = "",
    cert: str = "",
    key: str = "",
    timeout: float = TIMEOUT,
    retries: int | None = None,
    silence: float | None = None,
    stay_awake: bool = True,
    ids: Ids | None = None,
) -> Client:
    """``silence``: see ``ClientOptions``. The other arguments are those of ``yirangmq.connect``."""
    from yirangmq.client.blocking_transport import BlockingTransportFactory, run

    addresses = read_addresses(address, token, TlsFiles(ca, cert, key))
    client = _new_client(
        BlockingTransportFactory(stay_awake), _options(addresses, consumer, timeout, retries, silence), ids
    )
    run(client.connect())
    return Client(client)


def connect_async(
    address: str,
    *,
    consumer: str | None = None,
    token: str = "",
    ca: str = "",
    cert: str = "",
    key: str = "",
    timeout: float = TIMEOUT,
    retries: int | None = None,
    silence: float | None = None,
    ids: Ids | None = None,
) -> AsyncClient:
    from yirangmq.client.asyncio_transport import AsyncioTransportFactory

    addresses = read_addresses(address, token, TlsFiles(ca, cert, key))
    return _new_client(AsyncioTransportFactory(), _options(addresses, consumer, timeout, retries, silence), ids)


def _options(
    addresses: tuple[ServerAddress, ...],
    consumer: str | None,
    timeout: float,
    retries: int | None,
    silence: float | None,
) -> ClientOptions:
    if retries is None:
        retries = RETRIES if len(addresses) == 1 else FAILOVER_RETRIES
    return ClientOptions(
        addresses,
        default_consumer() if consumer is None else validation.check_consumer(consumer),
        validation.check_milliseconds(timeout, "timeout", least=0.001) / 1000,
        validation.check_count(retries, "retries", least=0, most=10_000),
        silence,
    )


def _new_client(factory: TransportFactory, options: ClientOptions, ids: Ids | None) -> AsyncClient:
    return AsyncClient(ReconnectingConnection(factory, options, random.random), ids or TimeOrderedIds(), options.name)
