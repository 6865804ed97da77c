"""What a STOMP client may do, by the token it shows as ``passcode``, and its address: the same tokens, programs, scopes
and queues as over HTTP.

Knows: grants. Does not know: frames. A server without tokens is open to everybody who can reach it."""

from collections.abc import Callable, Iterable

from yirangmq.core.access import CONSUME, GREET, PUBLISH, Grant
from yirangmq.core.errors import Stranger
from yirangmq.doors import gate
from yirangmq.doors.attempts import Attempts


class Access:
    def __init__(self, grants: Iterable[Grant] = (), attempts: Attempts | None = None) -> None:
        self._gate = gate.Gate(grants, attempts)

    @property
    def is_open(self) -> bool:
        return self._gate.is_open

    def delay(self, login: str, passcode: str, address: str) -> float:
        """Seconds to wait before they are looked at."""
        return self._gate.delay(passcode or login, address)

    def wait(self, seconds: float, act: Callable[[], None]) -> None:
        self._gate.wait(seconds, act)

    def grant(self, login: str, passcode: str, address: str = "") -> Grant | None:
        """None: everything is allowed. One secret is looked at, the same as in ``delay``: a client that knows a token
        could guess others with the second one, and would never be delayed."""
        if self._gate.is_open:
            return None
        found = self._gate.find(passcode or login, address)
        if found is None:
            raise Stranger("CONNECT with a token of this server as the header passcode", field="passcode")
        return found


COMMANDS: dict[str, str] = {
    "CONNECT": GREET,
    "STOMP": GREET,
    "SEND": PUBLISH,
    "SUBSCRIBE": CONSUME,
    "UNSUBSCRIBE": GREET,
    "ACK": CONSUME,
    "NACK": CONSUME,
    "BEGIN": GREET,
    "COMMIT": GREET,
    "ABORT": GREET,
    "DISCONNECT": GREET,
}
"""The verb of every command in the table of ``core.access``. UNSUBSCRIBE ends what the same connection has begun; what
a transaction holds was checked frame by frame."""


def check(grant: Grant | None, command: str, name: str) -> None:
    gate.check(grant, COMMANDS[command], name, "passcode")
