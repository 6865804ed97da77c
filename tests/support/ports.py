"""Ports for servers that must be told theirs, or come back at the same one.

They lie below those that the system gives out by itself, to clients and to whoever asks for port 0: nobody else takes
one while its server is not there yet, or is killed. Each process of tests begins elsewhere."""

import itertools
import os
import socket

FIRST, ROOM = 20_000, 12_000
_numbers = itertools.count(os.getpid() * 101)


def free_port() -> int:
    """One that is free for TCP and for UDP, and was not given before."""
    for number in itertools.islice(_numbers, ROOM):
        port = FIRST + number % ROOM
        if _is_free(port, socket.SOCK_STREAM) and _is_free(port, socket.SOCK_DGRAM):
            return port
    raise AssertionError("no free port")


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def _is_free(port: int, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
