"""Who may do what in which queues: tokens, scopes, patterns. Knows: the rules. Does not know: files, requests."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from ipaddress import IPv4Network, IPv6Network

from yirangmq.core.certificates import Attributes
from yirangmq.core.errors import BadInput
from yirangmq.core.strict import Fields, kind

PUBLISH, CONSUME, ADMIN, LOOK = "publish", "consume", "admin", "look"
SCOPES = (PUBLISH, CONSUME, ADMIN)
"""``ADMIN`` includes the others; ``LOOK`` is nobody's own: it is allowed with any of them."""
SHORTEST_SECRET = 16
"""Characters of a token, key or password. 16 random hexadecimal digits are 64 bits; a generated token has 192."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What the bearer of a token may do, in queues whose names match one of the patterns (``*``, ``?``, ``[…]``). A
    program (``core.programs``) has a name, perhaps addresses it must come from, and ``sends``: queues that it publishes
    to, if these are not those it takes from. Without a token it is known by its address alone."""

    token: str = field(repr=False)
    scopes: frozenset[str] = frozenset({ADMIN})
    queues: tuple[str, ...] = ("*",)
    name: str = ""
    addresses: tuple[IPv4Network | IPv6Network, ...] = ()
    sends: tuple[str, ...] | None = None
    certificate: Attributes = frozenset()
    """What the subject of the client's certificate must have; empty: no certificate is asked for."""

    def allows(self, scope: str, queue: str | None) -> bool:
        """``queue`` None is the server as a whole: for those who may do this in all queues, but for looking."""
        if scope != LOOK and not {scope, ADMIN} & self.scopes:
            return False
        if queue is None:
            return scope == LOOK or "*" in self.queues
        patterns = self.queues if scope != PUBLISH or self.sends is None else self.sends
        if scope == LOOK and self.sends is not None:
            patterns = (*self.queues, *self.sends)
        return any(re.match(translate(pattern), queue) for pattern in patterns)  # re keeps what it compiled


@dataclass(frozen=True, slots=True)
class TokenRule:
    """A grant whose token may still be in a file."""

    token: str = field(repr=False)
    token_file: str
    scopes: frozenset[str]
    queues: tuple[str, ...]

    def grant(self, token: str) -> Grant:
        return Grant(check_token(token, "token"), self.scopes, self.queues)


def read_rules(given: object, name: str) -> tuple[TokenRule, ...]:
    """A list of ``{"token" or "tokenFile", "scopes", "queues"}``."""
    if not isinstance(given, list):
        raise BadInput(f"must be an array of objects, not {kind(given)}", field=name)
    return tuple(_rule(one, f"{name}[{place}]") for place, one in enumerate(given))


def _rule(given: object, name: str) -> TokenRule:
    fields = Fields(given, name)
    token, file = fields.take("token", ""), fields.take("tokenFile", "")
    scopes = _texts(fields.take("scopes", list(SCOPES[:2])), fields.name("scopes"))
    queues = _texts(fields.take("queues", ["*"]), fields.name("queues"))
    fields.done()
    if not isinstance(token, str) or not isinstance(file, str) or bool(token) == bool(file):
        raise BadInput("must have either token or tokenFile, as a string", field=name)
    for scope in scopes:
        if scope not in SCOPES:
            raise BadInput(f"must be some of {', '.join(SCOPES)}, not {scope!r}", field=fields.name("scopes"))
    if token:
        check_token(token, fields.name("token"))
    return TokenRule(token, file, frozenset(scopes), tuple(queues))


def _texts(given: object, name: str) -> Sequence[str]:
    if not isinstance(given, list) or not given or not all(isinstance(one, str) and one for one in given):
        raise BadInput("must be an array of at least one string", field=name)
    return given


def check_token(token: str, name: str) -> str:
    """A token that fits into a header, and is long enough."""
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise BadInput("must be visible ASCII characters without a space", field=name)
    return check_secret(token, name)


def check_secret(secret: str, name: str) -> str:
    """The rule for every secret that a client or another node shows or signs with."""
    if len(secret) < SHORTEST_SECRET:
        raise BadInput(
            f"must have at least {SHORTEST_SECRET} characters, not {len(secret)}; 'yirangmq token new' prints one",
            field=name,
        )
    return secret
