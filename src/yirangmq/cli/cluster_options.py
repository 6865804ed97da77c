"""What the verbs of ``cluster`` share: which etcd, and a client of it for as long as one of them runs."""

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlencode

if TYPE_CHECKING:
    from yirangmq.cluster.etcd.address import Address
    from yirangmq.cluster.etcd.client import Etcd

Answer = TypeVar("Answer")
DEFAULT = "etcd://127.0.0.1:2379"
FILES = {
    "ca": "authority that signed etcd's certificates",
    "cert": "client certificate for etcd",
    "key": "its private key",
}


def etcd_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--store",
        metavar="URL",
        default=None,
        help="etcd://HOST:PORT,HOST:PORT,… with ?user=…&password-file=…&ca=…&cert=…&key=… "
        f"(default: $YIRANGMQ_ETCD or {DEFAULT})",
    )
    for name, what in FILES.items():
        variable = f"$YIRANGMQ_ETCD_{name.upper()}"
        group.add_argument(
            f"--{name}", metavar="FILE", help=f"{what}, a PEM file (or {variable}, or {name}=… in the URL)"
        )


def run_with(args: argparse.Namespace, act: Callable[["Etcd", "Address"], Coroutine[Any, Any, Answer]]) -> Answer:
    """Something with a client, in an event loop of its own."""
    from yirangmq.cluster.etcd.address import read_address
    from yirangmq.cluster.etcd.client import Etcd

    address = read_address(with_files(args, os.environ), os.environ)

    async def whole() -> Answer:
        async with Etcd(address) as etcd:
            return await act(etcd, address)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(whole())


def with_files(args: argparse.Namespace, env: Mapping[str, str]) -> str:
    """The URL of etcd, with the TLS files of the options or the environment where the URL names none."""
    url = str(args.store or env.get("YIRANGMQ_ETCD") or DEFAULT)
    named = {name for name, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True)}
    files = {name: getattr(args, name) or env.get(f"YIRANGMQ_ETCD_{name.upper()}", "") for name in FILES}
    added = urlencode({name: file for name, file in files.items() if file and name not in named})
    return f"{url}{'&' if '?' in url else '?'}{added}" if added else url


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed: about a third more messages a second."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop
