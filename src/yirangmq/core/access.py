"""Access control: the table of verbs and scopes, and what a token grants in which queues and topics.

Every protocol names the verb of each of its routes, frames, methods and commands, and asks ``Grant.allows``. Which
scopes allow a verb is written in ``ALLOWED`` and nowhere else; ``docs/security.md`` is printed from it. Knows: the
rules. Does not know: files, requests."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from ipaddress import IPv4Network, IPv6Network

from yirangmq.core.certificates import Attributes
from yirangmq.core.errors import BadInput
from yirangmq.core.strict import Fields, kind

PUBLISH, CONSUME, LOOK, OPERATE, ADMIN = SCOPES = ("publish", "consume", "look", "operate", "admin")
"""What a token may be given. ``ADMIN`` includes all others, ``OPERATE`` includes ``LOOK``."""
USUAL = (PUBLISH, CONSUME)
"""Of a token whose rule names none."""
GREET, LIST, FOLLOW = "greet", "list", "follow"
"""Verbs that are no scopes; the other verbs have the names of the scopes that bring them."""
ALLOWED: dict[str, frozenset[str]] = {
    GREET: frozenset(SCOPES),
    LIST: frozenset(SCOPES),
    PUBLISH: frozenset({PUBLISH, ADMIN}),
    CONSUME: frozenset({CONSUME, ADMIN}),
    FOLLOW: frozenset({CONSUME, LOOK, OPERATE, ADMIN}),
    LOOK: frozenset({LOOK, OPERATE, ADMIN}),
    OPERATE: frozenset({OPERATE, ADMIN}),
    ADMIN: frozenset({ADMIN}),
}
"""The table: by verb the scopes that allow it."""
VERBS = {
    GREET: "connect, ask whether the server is well, read its API description",
    LIST: "names, counts and states of queues and topics",
    PUBLISH: "publish messages and records, and try out whether they would be accepted",
    CONSUME: "lease messages, settle what was leased, subscribe to topics, keep cursors",
    FOLLOW: "read the records of a topic",
    LOOK: "read messages and dead letters without leasing them, history, policies, events, metrics, alerts",
    OPERATE: "pause, resume, redrive, quarantine, sweep, steer consumers, acknowledge alerts; nothing is destroyed",
    ADMIN: "set and check policies, delete queues, drop and purge messages, change bridges, commit batches",
}
"""What each verb stands for, in the words of the documentation."""
ANYWHERE = ""
"""In place of a name: the verb needs no queue (a consumer's heartbeat), or each name is asked about afterwards."""
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

    def allows(self, verb: str, queue: str | None) -> bool:
        """``queue``: of a queue or topic. None is the server as a whole: for those who may do this in all queues."""
        if ALLOWED[verb].isdisjoint(self.scopes):
            return False
        if queue == ANYWHERE or verb == GREET:
            return True
        if queue is None:
            return "*" in self.queues
        patterns = self.queues
        if self.sends is not None and verb in _OF_SENDERS:
            patterns = self.sends if verb == PUBLISH else (*self.queues, *self.sends)
        return any(re.match(translate(pattern), queue) for pattern in patterns)  # re keeps what it compiled


_OF_SENDERS = frozenset({PUBLISH, LIST})
"""Verbs for which the queues count that a program sends to."""


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
    scopes = _texts(fields.take("scopes", list(USUAL)), fields.name("scopes"))
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
