"""Subjects of client certificates, and the pattern by which a program's rule names them. Pure text: TLS has verified
the certificate before.

A subject is written as in RFC 4514: ``CN=gateway,OU=payments,O=Bank``. A rule may name some of its attributes; a
certificate fits if its subject has every attribute that the rule names, with exactly that value."""

import re
from collections.abc import Iterable, Mapping

from yirangmq.core.errors import BadInput

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
