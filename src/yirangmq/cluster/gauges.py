"""What a member of etcd shows of itself to everybody, at ``/metrics``: its quota, which its other answers keep to
themselves before 3.6, and its sizes, which where there are users only root is told. Knows: that page. Does not know:
what follows from it."""

import asyncio
import math
import ssl
import urllib.request
from typing import NamedTuple

from yirangmq.cluster.address import Address

SECONDS = 2.0
MOST_BYTES = 4 * 1024**2
NAMES = {
    b"etcd_server_quota_backend_bytes": "quota",
    b"etcd_mvcc_db_total_size_in_bytes": "size",
    b"etcd_mvcc_db_total_size_in_use_in_bytes": "in_use",
}


class Gauges(NamedTuple):
    """In bytes; 0: not shown."""

    quota: int = 0
    size: int = 0
    in_use: int = 0


def read_gauges(page: bytes) -> Gauges:
    found: dict[str, int] = {}
    for line in page.splitlines():
        name, _, value = line.partition(b" ")
        if name in NAMES:
            try:
                number = float(value)
            except ValueError:
                continue
            found[NAMES[name]] = int(number) if math.isfinite(number) and number > 0 else 0
    return Gauges(**found)


async def ask_gauges(endpoint: str, address: Address) -> Gauges:
    """Nothing where the page is elsewhere, or is shown only to those with a certificate."""
    if address.tls is not None and address.tls.cert is not None:
        return Gauges()
    return await asyncio.to_thread(_ask, endpoint, address)


def _ask(endpoint: str, address: Address) -> Gauges:
    try:
        context = None
        if address.tls is not None:
            authority = address.tls.ca
            context = ssl.create_default_context(cadata=authority.decode() if authority else None)
        scheme = "http" if context is None else "https"
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(f"{scheme}://{endpoint}/metrics", timeout=SECONDS) as answer:
            return read_gauges(answer.read(MOST_BYTES))
    except (OSError, ValueError):
        return Gauges()
