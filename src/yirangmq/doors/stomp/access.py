"""What a STOMP client may do, by the token it shows as ``passcode``: the same tokens, scopes and queues as over HTTP.

Knows: grants. Does not know: frames. A server without tokens is open to everybody who can reach it."""

from collections.abc import Iterable
from hashlib import sha256

from yirangmq.core.access import Grant
from yirangmq.core.errors import NotAllowed


class Access:
    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self._grants = {_digest(grant.token): grant for grant in grants}

    @property
    def is_open(self) -> bool:
        return not self._grants

    def grant(self, login: str, passcode: str) -> Grant | None:
        """None: everything is allowed. Found by its digest, so that the time it takes says nothing about tokens."""
        if not self._grants:
            return None
        for shown in (passcode, login):
            found = self._grants.get(_digest(shown)) if shown else None
            if found is not None:
                return found
        raise NotAllowed("CONNECT with a token of this server as the header passcode", field="passcode")


def check(grant: Grant | None, scope: str, name: str) -> None:
    if grant is not None and not grant.allows(scope, name):
        raise NotAllowed(f"this token does not allow to {scope} in {name!r}", field="passcode")


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
