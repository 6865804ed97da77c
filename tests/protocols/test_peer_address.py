"""The address of a client, by which programs are known and wrong tokens are counted."""

import asyncio
from ipaddress import ip_network

import pytest

from yirangmq.core.access import AccessGrant
from yirangmq.protocols.context import host_of, is_from
from yirangmq.protocols.listen import prepare_tcp, sockets_of, tcp_server


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_peer_address_of_a_tcp_client_matches_the_address_of_its_grant(host: str) -> None:
    """On the version before the port of an IPv6 client was read as a part of its address."""
    peers: list[str] = []

    class Told(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            peers.append(prepare_tcp(transport))
            transport.close()

    async def scene() -> None:
        server = await tcp_server(Told, (host, 0), None, 1)
        reader, writer = await asyncio.open_connection(host, sockets_of(server)[0].getsockname()[1])
        await reader.read()
        writer.close()
        server.close()

    asyncio.run(scene())
    assert [host_of(peer) for peer in peers] == [host]
    assert is_from(AccessGrant("", addresses=(ip_network(host),)), peers[0])
    assert not is_from(AccessGrant("", addresses=(ip_network("::2"),)), peers[0])
