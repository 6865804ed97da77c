"""Address of an etcd cluster: endpoints, TLS files, credentials and store options as an ``etcd://`` URL.

The form is ``etcd://h1:2379,h2,h3?user=…&ca=…``; the default port is 2379. The password comes from a
file or the environment, and is refused in a URL, because URLs are shown in logs and process lists."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from yirangmq.core import validation
from yirangmq.core.errors import BadInput

SCHEME = "etcd://"
PORT = 2379
ADDRESS_OPTIONS = ("user", "password-file", "ca", "cert", "key", "name", "lease", "quota", "watchdog")
DEFAULT_NAME = "main"
LEASE = 5
WATCHDOG = 30
QUOTA = 2 * 1024**3
"""Default quota of etcd, in bytes. It is used if no other value is configured, because members before etcd 3.6 do not
report their quota."""
PASSWORD_VARIABLE = "YIRANGMQ_ETCD_PASSWORD"
"""Environment variable with the password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdTls:
    """TLS material in PEM: ``ca`` verifies the servers' certificates, ``cert`` and ``key`` authenticate the client."""

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAddress:
    """Address and options of an etcd cluster.

    ``timeout`` bounds one call, in seconds. An election of etcd takes one or two seconds; a call that waits longer for
    a dead leader only prolongs the outage."""

    endpoints: tuple[str, ...]
    tls: EtcdTls | None = None
    user: str = ""
    password: str = ""
    timeout: float = 2.0
    name: str = DEFAULT_NAME
    """Name of the served store; one etcd may hold several."""
    lease: int = LEASE
    """Lease of the store's leader in seconds: after it has expired, another node may lead."""
    quota: int = QUOTA
    watchdog: int = WATCHDOG
    """Time in seconds that a leader may hang before another node leads."""


def read_address(text: str, environment: Mapping[str, str]) -> EtcdAddress:
    if not text.startswith(SCHEME):
        raise BadInput(f"{text!r} is not an etcd cluster; use etcd://HOST:PORT,HOST:PORT,…", field="store")
    hosts, _, query = text.removeprefix(SCHEME).partition("?")
    endpoints = tuple(_endpoint(host) for host in hosts.rstrip("/").split(","))
    options = _options(query)
    files = {name: _read(options, name) for name in ("ca", "cert", "key", "password-file")}
    if (files["cert"] is None) != (files["key"] is None):
        raise BadInput("cert and key go together", field="store")
    tls = EtcdTls(ca=files["ca"], cert=files["cert"], key=files["key"]) if files["ca"] or files["cert"] else None
    user, given = options.get("user", ""), files["password-file"]
    password = given.decode().rstrip("\n") if given is not None else environment.get(PASSWORD_VARIABLE, "")
    if user and not password:
        raise BadInput(f"user {user!r} needs a password: password-file=FILE, or ${PASSWORD_VARIABLE}", field="store")
    return EtcdAddress(
        endpoints=endpoints,
        tls=tls,
        user=user,
        password=password if user else "",
        name=validation.check_queue(options.get("name", DEFAULT_NAME), "store"),
        lease=_number(options, "lease", LEASE),
        quota=_number(options, "quota", QUOTA),
        watchdog=_number(options, "watchdog", WATCHDOG),
    )


def _endpoint(host: str) -> str:
    name, colon, port = host.rpartition(":")
    if host.endswith("]") or not colon:
        name, port = host, str(PORT)
    if not name or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadInput(f"{host!r} is not HOST or HOST:PORT", field="store")
    return f"{name}:{port}"


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name == "password":
            raise BadInput(
                f"a password is not allowed in the address; use password-file=FILE or ${PASSWORD_VARIABLE}",
                field="store",
            )
        if name not in ADDRESS_OPTIONS:
            raise BadInput(f"{name!r} is not one of {', '.join(ADDRESS_OPTIONS)}", field="store")
    return options


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal() or not 0 < int(text) < 2**62:
        raise BadInput(f"{name}={text} is not a whole number above 0", field="store")
    return int(text)


def _read(options: Mapping[str, str], name: str) -> bytes | None:
    if name not in options:
        return None
    try:
        return Path(options[name]).read_bytes()
    except OSError as error:
        raise BadInput(f"{name}: {options[name]}: {error.strerror}", field="store") from None
