"""Server addresses: ``unix:/PATH``, ``tcp://HOST:PORT`` and ``tls://HOST:PORT``, with options, in a comma list.

Several addresses are tried in turn. Options are ``token``, ``tls``, ``ca``, ``cert`` and ``key``. A token never
appears in the text of an address or in an error."""

from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit

from yirangmq.core.errors import BadInput

FORMS = "unix:/PATH, tcp://HOST:PORT or tls://HOST:PORT"
SCHEMES = ("unix", "tcp", "tls")
_TRUTH = {"1": True, "0": False}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """One server address. A unix socket has a ``path``, the others ``host`` and ``port``. ``str`` and ``repr`` omit
    the token."""

    scheme: str
    path: str = ""
    host: str = ""
    port: int = 0
    token: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    """PEM file with the client certificate, if the server requires one; ``key`` holds its private key."""
    key: str = ""

    @property
    def host_and_port(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.path}"
        return f"{'tls' if self.tls else 'tcp'}://{self.host_and_port}"

    def __repr__(self) -> str:
        return f"<Address {self}>"


class TlsFiles(NamedTuple):
    """PEM files of a TLS client: the authority that signed the server's certificate, and the client certificate with
    its key.

    Empty ``ca``: the system's authorities. Empty ``cert``: no client certificate."""

    ca: str = ""
    cert: str = ""
    key: str = ""


def read_addresses(text: str, token: str = "", files: TlsFiles = TlsFiles()) -> tuple[ServerAddress, ...]:  # noqa: B008
    """Parse a comma list of addresses. ``token`` and ``files`` apply to addresses that do not set them.

    In ``tcp://a:1,b:2`` an address without a scheme takes the scheme of the one before it."""
    found: list[ServerAddress] = []
    for part in text.split(","):
        part = part.strip()
        if found and found[-1].scheme != "unix" and "://" not in part and not part.startswith("unix:"):
            part = f"{'tls' if found[-1].tls else 'tcp'}://{part}"
        found.append(_with_files(_read(part, token), files))
    return tuple(found)


def _with_files(address: ServerAddress, files: TlsFiles) -> ServerAddress:
    if not address.tls:
        return address
    has_own = bool(address.cert)
    cert, key = (address.cert, address.key) if has_own else (files.cert, files.key)
    if bool(cert) != bool(key):
        missing = "key" if cert else "cert"
        raise BadInput("a client certificate and its key go together", field=missing)
    return replace(address, ca=address.ca or files.ca, cert=cert, key=key)


def parse_named_address(text: str, like: ServerAddress) -> ServerAddress | None:
    """Parse an address that a server at ``like`` names, to be reached with the same token and TLS files.

    Return None if it is malformed, a unix socket, or differs from ``like`` in its use of TLS."""
    try:
        found = _read(text, like.token)
    except BadInput:
        return None
    if like.scheme == "unix" or found.scheme == "unix" or found.tls != like.tls:
        return None
    return replace(found, ca=like.ca, cert=like.cert, key=like.key)


def is_address(text: str) -> bool:
    return text.lstrip().partition(":")[0] in SCHEMES


def _read(text: str, token: str) -> ServerAddress:
    try:
        parts = urlsplit(text)
        if parts.scheme not in SCHEMES or parts.fragment:
            raise ValueError(f"use {FORMS}")
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
        return _unix(parts, options, token) if parts.scheme == "unix" else _network(parts, options, token)
    except ValueError as error:
        raise BadInput(f"{_without_options(text)!r} is not an address: {error}", field="address") from None


def _unix(parts: SplitResult, options: dict[str, str], token: str) -> ServerAddress:
    path = parts.netloc + parts.path
    if not path:
        raise ValueError("the path of the socket is missing: unix:/PATH")
    address = ServerAddress("unix", path=path, token=options.pop("token", token))
    _refuse(options)
    return address


def _network(parts: SplitResult, options: dict[str, str], token: str) -> ServerAddress:
    if not parts.hostname or parts.port is None:
        raise ValueError(f"host or port is missing: {parts.scheme}://HOST:PORT")
    if parts.path.strip("/") or parts.username is not None:
        raise ValueError("only host, port and options")
    tls = _TRUTH.get(options.pop("tls", "1" if parts.scheme == "tls" else "0"))
    if tls is None or (parts.scheme == "tls" and not tls):
        raise ValueError("tls is 1 or 0, and always 1 in tls://")
    files = TlsFiles(*(options.pop(name, "") for name in TlsFiles._fields))
    if any(files) and not tls:
        raise ValueError("ca, cert and key require tls")
    address = ServerAddress("tcp", "", parts.hostname, parts.port, options.pop("token", token), tls, *files)
    _refuse(options)
    return address


def _refuse(left: dict[str, str]) -> None:
    for name in left:
        raise ValueError(f"{name!r} is not an option; known: token, tls, ca, cert and key")


def _without_options(text: str) -> str:
    """Strip the options, because a token must not appear in an error text."""
    return text.partition("?")[0]
