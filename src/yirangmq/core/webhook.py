"""Where a queue's messages are pushed to, as its policy says it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from yirangmq.core import names
from yirangmq.core.errors import BadInput, BadPolicy
from yirangmq.core.strict import Fields, kind

LONGEST_URL = 2_000
MOST_HEADERS = 50
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
VALUE = re.compile(r"[\x20-\x7e]{0,2000}")
OURS = frozenset({"host", "connection", "content-length", "content-type", "transfer-encoding", "expect", "upgrade"})
"""Headers that are not the policy's to say; those that begin with ``X-MQ-`` are not either."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """``secret`` is the name of one that the server has; "" is none, and messages are not signed."""

    url: str
    secret: str = ""
    timeout_ms: int = 30_000
    concurrency: int = 4
    headers: Mapping[str, str] = field(default_factory=dict)


def read_webhook(given: object) -> Webhook | None:
    """Null is none."""
    if given is None:
        return None
    part = Fields(given, "webhook", BadPolicy)
    hook = Webhook(
        url=_read_url(part.take("url", None), part.name("url")),
        secret=_read_secret(part.take("secret", None), part.name("secret")),
        timeout_ms=round(part.number("timeoutSec", 30, least=0.001, most=3600) * 1000),
        concurrency=part.whole("concurrency", 4, least=1, most=1000),
        headers=_read_headers(part.take("headers", {}), part.name("headers")),
    )
    part.done()
    return hook


def _read_url(given: object, field: str) -> str:
    if not isinstance(given, str) or not 0 < len(given) <= LONGEST_URL or not VALUE.fullmatch(given) or " " in given:
        raise BadPolicy(f"must be an address of at most {LONGEST_URL} plain characters", field=field)
    try:
        parts = urlsplit(given)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not is_whole:
        raise BadPolicy("must begin with http:// or https:// and name a host", field=field)
    if parts.username is not None or parts.fragment:
        raise BadPolicy("must hold neither a user nor a fragment; say who you are in headers", field=field)
    return given


def _read_secret(given: object, field: str) -> str:
    if given is None:
        return ""
    try:
        return names.check_id(given, field)
    except BadInput as error:
        raise BadPolicy(str(error).removeprefix(f"{field}: "), field=field) from None


def _read_headers(given: object, field: str) -> Mapping[str, str]:
    if not isinstance(given, Mapping) or len(given) > MOST_HEADERS:
        raise BadPolicy(f"must be an object of at most {MOST_HEADERS} headers, not {kind(given)}", field=field)
    headers: dict[str, str] = {}
    for name, value in given.items():
        where = f"{field}.{str(name)[:60]}"
        if not isinstance(name, str) or not TOKEN.fullmatch(name):
            raise BadPolicy("is not the name of a header", field=where)
        if name.lower() in OURS or name.lower().startswith("x-mq-"):
            raise BadPolicy("is said by the server", field=where)
        if not isinstance(value, str) or not VALUE.fullmatch(value):
            raise BadPolicy("must be a text of at most 2000 plain characters", field=where)
        headers[name] = value
    return headers


def show_webhook(hook: Webhook | None) -> dict[str, Any] | None:
    """As its document; ``read_webhook`` of it gives the same."""
    if hook is None:
        return None
    seconds = hook.timeout_ms / 1000
    return {
        "url": hook.url,
        "secret": hook.secret or None,
        "timeoutSec": int(seconds) if seconds == int(seconds) else seconds,
        "concurrency": hook.concurrency,
        "headers": dict(hook.headers),
    }
