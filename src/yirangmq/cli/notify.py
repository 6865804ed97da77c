"""Tells the service supervisor, if there is one, how we are: systemd's datagrams."""

import os
import socket


def notify(text: str) -> None:
    """``READY=1``, ``STOPPING=1``, ``WATCHDOG=1``. Nobody listening is no error."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.sendto(text.encode(), address)
    except OSError:
        pass
