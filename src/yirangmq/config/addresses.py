"""Addresses in settings: host and port, and whether other machines reach it."""

from ipaddress import ip_address

from yirangmq.core.errors import BadInput


def host_and_port(text: str, field: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if port.isdecimal() and int(port) > 65535:
        raise BadInput(f"{text!r}: the port must be at most 65535", field=field)
    if not colon or not port.isdecimal():
        raise BadInput(f"{text!r} is not HOST:PORT, such as 127.0.0.1:7411", field=field)
    return host, int(port)


def is_local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
