"""The settings of a server: one frozen value, read once. Defaults < JSON file < environment < flags.

A setting ``max_frame_bytes`` is the member ``max_frame_bytes`` of the file, the variable ``YIRANGMQ_MAX_FRAME_BYTES``
and the flag ``--max-frame-bytes``. docs/configuration.md is printed from the fields below."""

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Any

from yirangmq.core.errors import BadInput
from yirangmq.core.names import check_consumer
from yirangmq.core.strict import kind

PREFIX = "YIRANGMQ_"
OFF = "off"
MIB = 1024 * 1024
UNITS = {"": 1, "k": 1024, "kib": 1024, "m": MIB, "mib": MIB, "g": 1024 * MIB, "gib": 1024 * MIB}
LEVELS = ("debug", "info", "warning", "error")

Reader = Callable[[object], Any]
"""A value from JSON, or the text of a variable or a flag, to a setting; ``ValueError`` says what it must be."""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {kind(value)}")
    return value


def _choice(*allowed: str) -> Reader:
    def read(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}, not {value!r}")
        return str(value)

    return read


def _flag(value: object) -> bool:
    known = {True: True, False: False, "true": True, "false": False, "1": True, "0": False}
    if not isinstance(value, bool | str) or value not in known:
        raise ValueError(f"must be true or false, not {value!r}")
    return known[value]


def _number(least: float, most: float) -> Reader:
    def read(value: object) -> float:
        try:
            number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            raise ValueError(f"must be a number from {least:g} to {most:g}, not {value!r}")
        return number

    return read


def _whole(least: int, most: int) -> Reader:
    def read(value: object) -> int:
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise ValueError(f"must be a whole number from {least} to {most}, not {value!r}")
        return number

    return read


def _size(least: int, most: int) -> Reader:
    """Bytes: a number, or a text such as ``16MiB``."""
    check = _whole(least, most)

    def read(value: object) -> int:
        found = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", value.strip().lower()) if isinstance(value, str) else None
        if found is not None and found[2] in UNITS:
            value = int(found[1]) * UNITS[found[2]]
        number: int = check(value)
        return number

    return read


def _mode(value: object) -> int:
    if not isinstance(value, str) or not re.fullmatch(r"0?[0-7]{3}", value):
        raise ValueError(f"must be a file mode of three octal digits as a text, such as '660', not {value!r}")
    return int(value, 8)


def _node(value: object) -> str:
    try:
        return check_consumer(value, "")
    except BadInput as error:
        raise ValueError(str(error)) from None


def _setting(default: Any, read: Reader, about: str, *, shown: str = "", secret: bool = False) -> Any:
    """``shown`` is the default as people should see it."""
    return field(default=default, repr=not secret, metadata={"read": read, "about": about, "shown": shown})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    data: str = _setting("yirang-data", _text, "folder for the store, the socket and the lock; made if it is not there")
    store: str = _setting(
        "", _text, "where messages are kept: `sqlite:FILE`, `files:FOLDER` or `memory:`", shown="sqlite:DATA/queue.db"
    )
    durability: str = _setting(
        "full", _choice("full", "os"), "`full`: a reply survives a power cut; `os`: it survives a killed process"
    )
    socket: str = _setting(
        "",
        _text,
        "path of the unix socket, or `off`; whoever may write the file is trusted",
        shown="DATA/yirangmq.sock",
    )
    socket_mode: int = _setting(0o660, _mode, "file mode of the unix socket", shown="660")
    tcp: str = _setting(
        OFF, _text, "`HOST:PORT` to listen at, or `off`; beyond this machine it needs a token, or `insecure`"
    )
    insecure: bool = _setting(False, _flag, "listen beyond this machine without a token", shown="false")
    token: str = _setting("", _text, "what TCP clients must show; better in the file than in a flag", secret=True)
    token_file: str = _setting("", _text, "file with the token; its first line counts")
    tls_cert: str = _setting("", _text, "certificate chain for TCP, a PEM file; with `tls_key`")
    tls_key: str = _setting("", _text, "its private key, a PEM file")
    node: str = _setting("", _node, "the name of this server in replies and logs", shown="the name of the host")
    max_frame_bytes: int = _setting(
        16 * MIB, _size(1024, 1024 * MIB), "largest frame a client may send; refused by its head", shown="16MiB"
    )
    max_connections: int = _setting(1000, _whole(1, 100_000), "clients connected at the same time")
    idle_seconds: float = _setting(
        600.0, _number(0.1, 10**7), "a client that waits for nothing and says nothing for so long is closed"
    )
    frame_seconds: float = _setting(
        30.0, _number(0.1, 10**6), "a frame, the first one with its token, or a TLS handshake may take so long"
    )
    write_buffer_bytes: int = _setting(
        MIB,
        _size(4096, 1024 * MIB),
        "bytes waiting for a client past which nothing is pushed to it or read from it, until it reads",
        shown="1MiB",
    )
    client_memory_bytes: int = _setting(
        64 * MIB, _size(64 * 1024, 64 * 1024 * MIB), "bytes waiting for a client past which it is closed", shown="64MiB"
    )
    max_pending: int = _setting(
        256, _whole(1, 100_000), "requests of one client not yet answered past which nothing more is read from it"
    )
    on_stop: str = _setting(
        "keep",
        _choice("keep", "release"),
        "leases when the server stops: `keep` (a consumer that comes again settles them) or `release` (back in line)",
    )
    stop_seconds: float = _setting(
        10.0, _number(0, 3600), "a stopping server waits so long for clients to read answers"
    )
    disk_low_bytes: int = _setting(
        64 * MIB,
        _size(0, 2**60),
        "free bytes of the store's disk below which publishing is refused, and consuming goes on; 0: never",
        shown="64MiB",
    )
    max_store_bytes: int = _setting(
        0,
        _size(0, 2**60),
        "bytes in use of an SQLite store past which publishing is refused, and consuming goes on; 0: no limit",
        shown="0",
    )
    backlog_limit: int = _setting(
        0, _whole(0, 2**53), "waiting messages of a queue past which `health` says degraded; 0: never"
    )
    log_level: str = _setting("info", _choice(*LEVELS), "what is logged: `debug`, `info`, `warning` or `error`")
    log_format: str = _setting("json", _choice("json", "text"), "one JSON document a line, or text for people")

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:{self.data}/queue.db"

    @property
    def socket_path(self) -> str:
        """ "" is off."""
        return "" if self.socket == OFF else self.socket or f"{self.data}/yirangmq.sock"

    @property
    def tcp_address(self) -> tuple[str, int] | None:
        return None if self.tcp in ("", OFF) else _host_and_port(self.tcp)

    @property
    def node_name(self) -> str:
        plain = "".join(c if c.isalnum() and c.isascii() else "-" for c in socket.gethostname())[:40]
        return self.node or plain.strip("-") or "node"


def variable(setting: str) -> str:
    return PREFIX + setting.upper()


def flag(setting: str) -> str:
    return "--" + setting.replace("_", "-")


def default_of(setting: "Field[Any]") -> str:
    """The default as people should see it."""
    shown = str(setting.metadata["shown"] or (setting.default if setting.default is not MISSING else ""))
    return shown.removesuffix(".0")


def load(document: object, env: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """The settings in force. ``flags`` are by name of the setting; those not given are None."""
    if not isinstance(document, Mapping):
        raise BadInput(f"must be a JSON object, not {kind(document)}", field="config")
    known = {setting.name: setting for setting in fields(Config)}
    found: dict[str, Any] = {}
    for name, value in document.items():
        if name not in known:
            raise BadInput(f"is not a setting; {_hint(str(name), known)}", field=str(name))
        found[name] = _read(known[name], value, name)
    variables = {variable(name): name for name in known}
    for text, value in env.items():
        if text in variables:
            found[variables[text]] = _read(known[variables[text]], value, text)
        elif text.startswith(PREFIX) and get_close_matches(text, variables, 1, 0.9):
            raise BadInput(f"is not a setting; {_hint(text, variables)}", field=text)
    for name, given in flags.items():
        if given is not None:
            found[name] = _read(known[name], given, flag(name))
    return checked(Config(**found))


def _hint(name: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def _read(setting: "Field[Any]", value: object, field: str) -> Any:
    try:
        return setting.metadata["read"](value)
    except ValueError as error:
        raise BadInput(str(error), field=field) from None


def checked(config: Config) -> Config:
    """Settings that must fit each other."""
    if config.token and config.token_file:
        raise BadInput("stands beside token_file; give one of them", field="token")
    if bool(config.tls_cert) != bool(config.tls_key):
        raise BadInput("a certificate and its key go together", field="tls_key" if config.tls_cert else "tls_cert")
    if config.write_buffer_bytes > config.client_memory_bytes:
        raise BadInput("must not be larger than client_memory_bytes", field="write_buffer_bytes")
    if config.max_store_bytes and not config.store_url.startswith("sqlite:"):
        raise BadInput("only an SQLite store can tell its size; disk_low_bytes works for all", field="max_store_bytes")
    address = config.tcp_address
    if address is None and not config.socket_path:
        raise BadInput("is off, and so is tcp: nobody could reach the server", field="socket")
    if address is not None and not (config.token or config.token_file or config.insecure or _is_local(address[0])):
        raise BadInput(
            f"{config.tcp} can be reached from other machines: set token or token_file, or say insecure", field="tcp"
        )
    return config


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise BadInput(f"{text!r} is not HOST:PORT, such as 127.0.0.1:7411", field="tcp")
    return host, int(port)


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
