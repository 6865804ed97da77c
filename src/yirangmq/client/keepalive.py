"""How a network connection is set up, on both faces: small frames leave at once, and a dead peer is noticed."""

import contextlib
import socket

IDLE_SECONDS = 15
PROBE_SECONDS = 5
PROBES = 3
"""A server that vanished without a word is noticed after half a minute of silence."""


def prepare(channel: socket.socket) -> None:
    if channel.family not in (socket.AF_INET, socket.AF_INET6):
        return
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", IDLE_SECONDS), ("TCP_KEEPINTVL", PROBE_SECONDS), ("TCP_KEEPCNT", PROBES)):
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):
                channel.setsockopt(socket.IPPROTO_TCP, option, value)
