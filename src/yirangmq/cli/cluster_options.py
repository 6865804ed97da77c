"""What the verbs of ``cluster`` share: which etcd, and a client of it for as long as one of them runs."""

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from yirangmq.cluster.address import Address
    from yirangmq.cluster.etcd import Etcd

Answer = TypeVar("Answer")
DEFAULT = "etcd://127.0.0.1:2379"


def etcd_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--store",
        metavar="URL",
        default=None,
        help="etcd://HOST:PORT,HOST:PORT,… with ?user=…&password-file=…&ca=…&cert=…&key=… "
        f"(default: $YIRANGMQ_ETCD or {DEFAULT})",
    )


def run_with(args: argparse.Namespace, act: Callable[["Etcd", "Address"], Coroutine[Any, Any, Answer]]) -> Answer:
    """Something with a client, in an event loop of its own."""
    from yirangmq.cluster.address import read_address
    from yirangmq.cluster.etcd import Etcd

    address = read_address(args.store or os.environ.get("YIRANGMQ_ETCD") or DEFAULT, os.environ)

    async def whole() -> Answer:
        async with Etcd(address) as etcd:
            return await act(etcd, address)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(whole())


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed: about a third more messages a second."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop
