"""How a connection is set up, on both faces: small frames leave at once, a dead peer is noticed, and there is room for
all that may be under way."""

import contextlib
import socket

IDLE_SECONDS = 15
PROBE_SECONDS = 5
PROBES = 3
"""A server that vanished without a word is noticed after half a minute of silence."""

ROOM = 1024 * 1024
"""Bytes a unix socket holds for a server that is busy with its commit: all of them join the next one. With the system's
200 KB a third as many do, and publishing many is a quarter slower. (TCP finds its own size.)"""


def prepare(channel: socket.socket) -> None:
    if channel.family == socket.AF_UNIX:
        with contextlib.suppress(OSError):
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        return
    if channel.family not in (socket.AF_INET, socket.AF_INET6):
        return
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", IDLE_SECONDS), ("TCP_KEEPINTVL", PROBE_SECONDS), ("TCP_KEEPCNT", PROBES)):
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):
                channel.setsockopt(socket.IPPROTO_TCP, option, value)
