"""Response headers of stored payloads.

A payload comes from a producer and is served from the dashboard's origin, so a browser must not run it there. It keeps
its bytes and its ``Content-Type``; the headers below take away what a browser would do with them."""

import re
from functools import lru_cache

from yirangmq.doors.http.exchange import Headers

SANDBOX: Headers = (
    ("content-security-policy", "sandbox; default-src 'none'; frame-ancestors 'none'"),
    ("cross-origin-resource-policy", "same-origin"),
)
"""A document without scripts, forms, subresources and an origin; no other page frames or includes it."""
ATTACHMENT: Headers = (("content-disposition", "attachment"),)
"""The browser saves it instead of opening it."""

PLAIN_TYPE = re.compile(r"([a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+)[ \t]*(;[^,]*)?", re.IGNORECASE)
"""One media type. Of several with commas between them a browser takes the last."""
INERT = frozenset(
    {
        "text/plain", "text/csv", "application/json", "application/x-ndjson", "application/octet-stream",
        "image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp",
    }
)  # fmt: skip
"""Types that no browser runs. HTML, XHTML, SVG, XML, scripts, style sheets, PDF and types not known here are not among
them."""
INERT_KINDS = ("audio/", "video/")


@lru_cache(maxsize=256)
def payload_headers(media_type: str) -> Headers:
    """The headers for a payload of this type, ``Content-Type`` among them."""
    return (("content-type", media_type), *SANDBOX, *(() if is_inert(media_type) else ATTACHMENT))


def is_inert(media_type: str) -> bool:
    found = PLAIN_TYPE.fullmatch(media_type)
    if found is None:
        return False
    kind = found[1].lower()
    return kind in INERT or kind.startswith(INERT_KINDS) or (kind.startswith("application/") and kind.endswith("+json"))
