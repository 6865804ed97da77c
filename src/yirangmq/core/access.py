"""Access control: verbs and scopes, token grants, subjects of certificates, programs and routes.

Every protocol names the verb of each of its routes, frames, methods and commands, and calls ``AccessGrant.allows``.
``ALLOWED`` is the only table of the scopes that allow each verb; ``tools/security_docs.py`` prints docs/security.md
from it.

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
ATTRIBUTE_ABBREVIATIONS = {
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
"""Short names of subject attributes (RFC 4514), by the long names of OpenSSL."""
MAX_SUBJECT_CHARS = 1000
SPLIT = re.compile(r"(?<!\\),")


def read_subject(given: object, field: str) -> Attributes:
    """Parse the subject that a rule names; ``BadInput`` if it is malformed."""
    if not isinstance(given, str) or not 0 < len(given) <= MAX_SUBJECT_CHARS:
        raise BadInput("must be the subject of a certificate, such as 'CN=gateway,O=Bank'", field=field)
    found = set()
    for part in SPLIT.split(given):
        name, equals, value = part.strip().partition("=")
        known = {short.lower(): short for short in ATTRIBUTE_ABBREVIATIONS.values()}
        if not equals or not value or name.strip().lower() not in known:
            raise BadInput(
                f"{part.strip()!r} is not an attribute of a subject; write CN=gateway,O=Bank with some of "
                f"{', '.join(ATTRIBUTE_ABBREVIATIONS.values())}",
                field=field,
            )
        found.add((known[name.strip().lower()], value.strip().replace("\\,", ",")))
    return frozenset(found)


def subject_of(certificate: Mapping[str, object] | None) -> Attributes:
    """Return the subject of a verified certificate, as ``ssl`` reports it; empty for a client without a certificate."""
    parts: Iterable[Iterable[tuple[str, str]]] = (certificate or {}).get("subject", ())  # type: ignore[assignment]
    return frozenset((ATTRIBUTE_ABBREVIATIONS.get(name, name), value) for part in parts for name, value in part)


def show_subject(attributes: Attributes) -> str:
    order = list(ATTRIBUTE_ABBREVIATIONS.values())
    rank = {name: place for place, name in enumerate(order)}
    pairs = sorted(attributes, key=lambda pair: (rank.get(pair[0], len(order)), pair))
    return ",".join(f"{name}={value.replace(',', chr(92) + ',')}" for name, value in pairs)


# -- verbs, scopes and grants ------------------------------------------------------------------------------------------

PUBLISH, CONSUME, LOOK, OPERATE, ADMIN = SCOPES = ("publish", "consume", "look", "operate", "admin")
"""Scopes of a token. ``ADMIN`` includes all others, ``OPERATE`` includes ``LOOK``."""
DEFAULT_SCOPES = (PUBLISH, CONSUME)
"""Default scopes of a token rule that names none."""
GREET, LIST, FOLLOW = "greet", "list", "follow"
"""Verbs that are not scopes. Every other verb has the name of the scope that grants it."""
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
"""Scopes that allow each verb. No other table says this."""
VERBS = {
    GREET: "connect, read the health of the server and its API description",
    LIST: "names, counts and states of queues and topics",
    PUBLISH: "publish messages and records, and check whether they would be accepted",
    CONSUME: "lease messages, settle what was leased, subscribe to topics, keep cursors",
    FOLLOW: "read the records of a topic",
    LOOK: "read messages and dead letters without leasing them, history, policies, events, metrics, alerts",
    OPERATE: "pause, resume, redrive, quarantine, sweep, steer consumers, acknowledge alerts; nothing is destroyed",
    ADMIN: "set and check policies, delete queues, drop and purge messages, change bridges, commit batches",
}
"""Meaning of each verb, as docs/security.md prints it."""
ANYWHERE = ""
"""Passed instead of a queue name if the verb needs no queue (a consumer's heartbeat), or if the caller checks each
name afterwards."""
MIN_SECRET_CHARS = 16
"""Minimum length of a token, key or password, in characters. 16 random hexadecimal digits are 64 bits; a generated
token has 192 bits."""


@dataclass(frozen=True, slots=True)
class AccessGrant:
    """Access grant: the scopes of a token, in queues with names that match one of the patterns (``*``, ``?``, ``[…]``).

    The grant of a program has a ``name``, and may have ``addresses`` from which it must connect. ``sends`` has the
    queues that it publishes to; None: the same as ``queues``. A program without a token is identified by its address
    alone."""

    token: str = field(repr=False)
    scopes: frozenset[str] = frozenset({ADMIN})
    queues: tuple[str, ...] = ("*",)
    name: str = ""
    addresses: tuple[IPv4Network | IPv6Network, ...] = ()
    sends: tuple[str, ...] | None = None
    certificate: Attributes = frozenset()
    """Attributes that the subject of the client's certificate must have; empty: no certificate is required."""

    def allows(self, verb: str, queue: str | None) -> bool:
        """Return True if the verb is allowed. ``queue``: the name of a queue or topic. None means the server as a
        whole, and requires the pattern ``*``."""
        if ALLOWED[verb].isdisjoint(self.scopes):
            return False
        if queue == ANYWHERE or verb == GREET:
            return True
        if queue is None:
            return "*" in self.queues
        patterns = self.queues
        if self.sends is not None and verb in _OF_SENDERS:
            patterns = self.sends if verb == PUBLISH else (*self.queues, *self.sends)
        return any(re.match(translate(pattern), queue) for pattern in patterns)  # re caches compiled patterns


_OF_SENDERS = frozenset({PUBLISH, LIST})
"""Verbs that are checked against ``AccessGrant.sends`` too."""


@dataclass(frozen=True, slots=True)
class TokenRule:
    """Token rule of the settings: a grant with a token that is either given or still in a file."""

    token: str = field(repr=False)
    token_file: str
    scopes: frozenset[str]
    queues: tuple[str, ...]

    def grant(self, token: str) -> AccessGrant:
        return AccessGrant(check_token(token, "token"), self.scopes, self.queues)


def read_rules(given: object, name: str) -> tuple[TokenRule, ...]:
    """Parse an array of ``{"token" or "tokenFile", "scopes", "queues"}``."""
    if not isinstance(given, list):
        raise BadInput(f"must be an array of objects, not {kind(given)}", field=name)
    return tuple(_rule(one, f"{name}[{place}]") for place, one in enumerate(given))


def _rule(given: object, name: str) -> TokenRule:
    fields = Fields(given, name)
    token, file = fields.take("token", ""), fields.take("tokenFile", "")
    scopes = _texts(fields.take("scopes", list(DEFAULT_SCOPES)), fields.name("scopes"))
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
    """Return the token if it fits into an HTTP header and is long enough; otherwise raise ``BadInput``."""
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise BadInput("must be visible ASCII characters without a space", field=name)
    return check_secret(token, name)


def check_secret(secret: str, name: str) -> str:
    """Check the length of a secret that a client or another node sends or signs with."""
    if len(secret) < MIN_SECRET_CHARS:
        raise BadInput(
            f"must have at least {MIN_SECRET_CHARS} characters, not {len(secret)}; 'yirangmq token new' prints one",
            field=name,
        )
    return secret


# -- programs and routes -----------------------------------------------------------------------------------------------

MAX_PROGRAMS = 1_000
ANY_SOURCE = "*"
"""Source or target of a route: every program."""
Network = IPv4Network | IPv6Network


class ProgramRoute(NamedTuple):
    """Route between programs: ``source`` may publish to the queues of ``target``."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class ProgramRule:
    name: str
    token: str = field(default="", repr=False)
    token_file: str = ""
    addresses: tuple[Network, ...] = ()
    """Addresses from which the program connects; empty: any address, if it presents its token."""
    certificate: Attributes = frozenset()
    """Attributes that the subject of its client certificate must have; empty: no certificate is required."""
    queues: tuple[str, ...] = ()
    """The program's own queues: it consumes from them, and other programs publish to them."""


def read_programs(given: object, name: str) -> tuple[ProgramRule, ...]:
    """Parse an array of ``{"name", "token" or "tokenFile", "addresses", "certificate", "queues"}``."""
    found: dict[str, ProgramRule] = {}
    for place, one in enumerate(_listed(given, name)):
        program = _program(Fields(one, f"{name}[{place}]"))
        if program.name in found:
            raise BadInput(f"{program.name!r} is there twice", field=f"{name}[{place}].name")
        found[program.name] = program
    return tuple(found.values())


def _program(part: Fields) -> ProgramRule:
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
        raise BadInput("needs a token, a tokenFile, addresses or a certificate", field=part.name("addresses"))
    return ProgramRule(called, token, file, addresses, subject, queues)


def read_routes(given: object, name: str) -> tuple[ProgramRoute, ...]:
    """Parse an array of ``{"source", "target"}``; duplicates are removed."""
    found = []
    for place, one in enumerate(_listed(given, name)):
        part = Fields(one, f"{name}[{place}]")
        ends = [part.take("source", None), part.take("target", None)]
        part.done()
        checked = [
            end if end == ANY_SOURCE else validation.check_consumer(end, part.name("source, target")) for end in ends
        ]
        found.append(ProgramRoute(str(checked[0]), str(checked[1])))
    return tuple(dict.fromkeys(found))


def check_routes(programs: Sequence[ProgramRule], routes: Sequence[ProgramRoute]) -> None:
    known = {program.name for program in programs} | {ANY_SOURCE}
    for route in routes:
        for end in route:
            if end not in known:
                raise BadInput(f"{end!r} is not in programs", field="routes")


def targets_of(source: str, programs: Sequence[ProgramRule], routes: Iterable[ProgramRoute]) -> list[str]:
    """Return the names of the programs that ``source`` may publish to. It may publish to itself only if a route names
    it as both source and target."""
    ends = {
        route.target
        for route in routes
        if route.source == source or (route.source == ANY_SOURCE and route.target != source)
    }
    return [one.name for one in programs if one.name in ends or (ANY_SOURCE in ends and one.name != source)]


def grants(
    programs: Sequence[ProgramRule], routes: Sequence[ProgramRoute], tokens: Mapping[str, str]
) -> tuple[AccessGrant, ...]:
    """Return the grant of each program. ``tokens``: tokens that were read from files, by the name of the program."""
    queues = {program.name: program.queues for program in programs}
    found = []
    for program in programs:
        sends = [queue for target in targets_of(program.name, programs, routes) for queue in queues[target]]
        token = tokens.get(program.name, program.token)
        scopes = frozenset({PUBLISH, CONSUME})
        found.append(
            AccessGrant(
                token, scopes, program.queues, program.name, program.addresses, tuple(sends), program.certificate
            )
        )
    return tuple(found)


def show(programs: Sequence[ProgramRule], routes: Sequence[ProgramRoute]) -> list[dict[str, Any]]:
    """Return the programs for display to operators, without tokens."""
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
        raise BadInput(
            f"{given!r} is not an address or network, such as 10.0.0.7 or 10.0.0.0/24", field=field
        ) from None


def _listed(given: object, name: str) -> Sequence[Any]:
    if not isinstance(given, list | tuple) or len(given) > MAX_PROGRAMS:
        raise BadInput(f"must be an array of at most {MAX_PROGRAMS}, not {kind(given)}", field=name)
    return given


def _patterns(given: object, field: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not given or not all(isinstance(one, str) and one for one in given):
        raise BadInput("must be an array of at least one name or pattern of queues", field=field)
    return tuple(given)
