"""What a STOMP client may do, by the token it shows as ``passcode``, and its address: the same tokens, programs, scopes
and queues as over HTTP.

Knows: grants. Does not know: frames. A server without tokens is open to everybody who can reach it."""

from collections.abc import Iterable

from yirangmq.core.access import Grant
from yirangmq.core.errors import Stranger
from yirangmq.doors import gate


class Access:
    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self._gate = gate.Gate(grants)

    @property
    def is_open(self) -> bool:
        return self._gate.is_open

    def grant(self, login: str, passcode: str, address: str = "") -> Grant | None:
        """None: everything is allowed."""
        if self._gate.is_open:
            return None
        for shown in (passcode, login):
            found = self._gate.find(shown, address) if shown else None
            if found is not None:
                return found
        found = self._gate.find("", address)
        if found is None:
            raise Stranger("CONNECT with a token of this server as the header passcode", field="passcode")
        return found


def check(grant: Grant | None, scope: str, name: str) -> None:
    gate.check(grant, scope, name, "passcode")
