"""Access control: verbs and scopes, token grants, subjects of certificates, programs and routes.

Every protocol names the verb of each of its routes, frames, methods and commands, and asks ``Grant.allows``. Which
scopes allow a verb is written in ``ALLOWED`` and nowhere else; ``tools/security_docs.py`` prints docs/security.md from
it.

A certificate's subject is written as in RFC 4514: ``CN=gateway,OU=payments,O=Bank``. A rule may name some of its
attributes. A certificate matches if its subject has every attribute that the rule names, with exactly that value. TLS
has verified the certificate before.

A program is identified by its address, its token, its certificate, or several of them. It consumes from its own queues,
and publishes to the queues of the programs that the routes allow. Pure: token files and connections are elsewhere."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, NamedTuple

from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.validation import Fields, kind

# -- subjects of certificates ------------------------------------------------------------------------------------------

Attributes = frozenset[tuple[str, str]]
SHORT = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
    "domainComponent": "DC",
    "emailAddress": "emailAddress",
    "serialNumber": "serialNumber",
    "userId": "UID",
}
"""OpenSSL's names of attributes, and how people write them."""
LONGEST = 1000
SPLIT = re.compile(r"(?<!\\),")


def read_subject(given: object, field: str) -> Attributes:
    """The attributes that a rule names."""
    if not isinstance(given, str) or not 0 < len(given) <= LONGEST:
        raise BadInput("must be the subject of a certificate, such as 'CN=gateway,O=Bank'", field=field)
    found = set()
    for part in SPLIT.split(given):
        name, equals, value = part.strip().partition("=")
        known = {short.lower(): short for short in SHORT.values()}
        if not equals or not value or name.strip().lower() not in known:
            raise BadInput(
                f"{part.strip()!r} is no attribute of a subject; write CN=gateway,O=Bank with some of "
                f"{', '.join(SHORT.values())}",
                field=field,
            )
        found.add((known[name.strip().lower()], value.strip().replace("\\,", ",")))
    return frozenset(found)


def subject_of(certificate: Mapping[str, object] | None) -> Attributes:
    """Of what ``ssl`` says of a verified certificate; nothing for a client without one."""
    parts: Iterable[Iterable[tuple[str, str]]] = (certificate or {}).get("subject", ())  # type: ignore[assignment]
    return frozenset((SHORT.get(name, name), value) for part in parts for name, value in part)


def show_subject(attributes: Attributes) -> str:
    order = list(SHORT.values())
    rank = {name: place for place, name in enumerate(order)}
    pairs = sorted(attributes, key=lambda pair: (rank.get(pair[0], len(order)), pair))
    return ",".join(f"{name}={value.replace(',', chr(92) + ',')}" for name, value in pairs)


# -- verbs, scopes and grants ------------------------------------------------------------------------------------------

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
    program (``core.access``) has a name, perhaps addresses it must come from, and ``sends``: queues that it publishes
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


# -- programs and routes -----------------------------------------------------------------------------------------------

MOST_PROGRAMS = 1_000
ANYBODY = "*"
"""As the source or the target of a route: every program."""
Network = IPv4Network | IPv6Network


class Route(NamedTuple):
    """``source`` may send to ``target``."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    token: str = field(default="", repr=False)
    token_file: str = ""
    addresses: tuple[Network, ...] = ()
    """Where it comes from; none: from anywhere, if it shows its token."""
    certificate: Attributes = frozenset()
    """What the subject of its client certificate must have; empty: none is asked for."""
    queues: tuple[str, ...] = ()
    """Its own: it takes from them, and others send to it by them."""


def read_programs(given: object, name: str) -> tuple[Program, ...]:
    """A list of ``{"name", "token" or "tokenFile", "addresses", "certificate", "queues"}``."""
    found: dict[str, Program] = {}
    for place, one in enumerate(_listed(given, name)):
        program = _program(Fields(one, f"{name}[{place}]"))
        if program.name in found:
            raise BadInput(f"{program.name!r} is there twice", field=f"{name}[{place}].name")
        found[program.name] = program
    return tuple(found.values())


def _program(part: Fields) -> Program:
    called = validation.check_consumer(part.take("name", None), part.name("name"))
    token, file = part.take("token", ""), part.take("tokenFile", "")
    addresses = tuple(_network(one, part.name("addresses")) for one in _listed(part.take("addresses", []), "addresses"))
    certificate = part.take("certificate", None)
    subject = frozenset() if certificate is None else read_subject(certificate, part.name("certificate"))
    queues = _patterns(part.take("queues", [called]), part.name("queues"))
    part.done()
    if not isinstance(token, str) or not isinstance(file, str) or (token and file):
        raise BadInput("may have token or tokenFile, as a string, not both", field=part.name("token"))
    if token:
        check_token(token, part.name("token"))
    if not (token or file or addresses or subject):
        raise BadInput(
            "needs a token, a tokenFile, addresses or a certificate to be known by", field=part.name("addresses")
        )
    return Program(called, token, file, addresses, subject, queues)


def read_routes(given: object, name: str) -> tuple[Route, ...]:
    """A list of ``{"source", "target"}``."""
    found = []
    for place, one in enumerate(_listed(given, name)):
        part = Fields(one, f"{name}[{place}]")
        ends = [part.take("source", None), part.take("target", None)]
        part.done()
        checked = [
            end if end == ANYBODY else validation.check_consumer(end, part.name("source, target")) for end in ends
        ]
        found.append(Route(str(checked[0]), str(checked[1])))
    return tuple(dict.fromkeys(found))


def check_routes(programs: Sequence[Program], routes: Sequence[Route]) -> None:
    known = {program.name for program in programs} | {ANYBODY}
    for route in routes:
        for end in route:
            if end not in known:
                raise BadInput(f"{end!r} is none of the programs", field="routes")


def targets_of(source: str, programs: Sequence[Program], routes: Iterable[Route]) -> list[str]:
    """Names of the programs that this one may send to; to itself only if the table says so by its name."""
    ends = {
        route.target
        for route in routes
        if route.source == source or (route.source == ANYBODY and route.target != source)
    }
    return [one.name for one in programs if one.name in ends or (ANYBODY in ends and one.name != source)]


def grants(programs: Sequence[Program], routes: Sequence[Route], tokens: Mapping[str, str]) -> tuple[Grant, ...]:
    """What each may do. ``tokens``: those that were read from files, by program."""
    queues = {program.name: program.queues for program in programs}
    found = []
    for program in programs:
        sends = [queue for target in targets_of(program.name, programs, routes) for queue in queues[target]]
        token = tokens.get(program.name, program.token)
        scopes = frozenset({PUBLISH, CONSUME})
        found.append(
            Grant(token, scopes, program.queues, program.name, program.addresses, tuple(sends), program.certificate)
        )
    return tuple(found)


def show(programs: Sequence[Program], routes: Sequence[Route]) -> list[dict[str, Any]]:
    """For operators; tokens are not shown."""
    return [
        {
            "name": program.name,
            "addresses": [str(address) for address in program.addresses],
            "hasToken": bool(program.token or program.token_file),
            "certificate": show_subject(program.certificate) or None,
            "queues": list(program.queues),
            "sendsTo": targets_of(program.name, programs, routes),
        }
        for program in programs
    ]


def _network(given: object, field: str) -> Network:
    try:
        return ip_network(given if isinstance(given, str) else "")
    except ValueError:
        raise BadInput(f"{given!r} is no address or network, such as 10.0.0.7 or 10.0.0.0/24", field=field) from None


def _listed(given: object, name: str) -> Sequence[Any]:
    if not isinstance(given, list | tuple) or len(given) > MOST_PROGRAMS:
        raise BadInput(f"must be an array of at most {MOST_PROGRAMS}, not {kind(given)}", field=name)
    return given


def _patterns(given: object, field: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not given or not all(isinstance(one, str) and one for one in given):
        raise BadInput("must be an array of at least one name or pattern of queues", field=field)
    return tuple(given)
