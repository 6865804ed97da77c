"""The programs that may use a server, and the table of who sends to whom.

A program is known by its address, its token, or both. It takes from its own queues, and sends to those of the programs
that stand beside it in the table. Knows: the rules. Does not know: files, connections."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, NamedTuple

from yirangmq.core import names
from yirangmq.core.access import CONSUME, PUBLISH, Grant, check_token
from yirangmq.core.certificates import Attributes, read_subject, show_subject
from yirangmq.core.errors import BadInput
from yirangmq.core.strict import Fields, kind

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
    called = names.check_consumer(part.take("name", None), part.name("name"))
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
        checked = [end if end == ANYBODY else names.check_consumer(end, part.name("source, target")) for end in ends]
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
