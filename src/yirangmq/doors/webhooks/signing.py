"""The signature on what is pushed: HMAC-SHA256 over the time and the body. ``docs/http.md`` shows how to check it."""

import hashlib
import hmac


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """``sha256=…`` of the timestamp, a dot, and the body."""
    return "sha256=" + hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
