"""Programs that may come, and the table of who sends to whom."""

from typing import Any

import pytest

from yirangmq.core.access import (
    ADMIN,
    CONSUME,
    LIST,
    LOOK,
    PUBLISH,
    check_routes,
    grants,
    read_programs,
    read_routes,
    show,
)
from yirangmq.core.errors import BadInput
from yirangmq.protocols.context import Authenticator, host_of

THREE: list[dict[str, Any]] = [
    {"name": "ATMH", "token": "token-of-atmh---", "addresses": ["10.0.0.1"]},
    {
        "name": "JETCO",
        "token": "token-of-jetco--",
        "addresses": ["10.1.0.0/16", "fd00::/8"],
        "queues": ["to-jetco", "j.*"],
    },
    {"name": "EPSCO", "addresses": ["10.2.0.7"]},
]
TABLE = [
    {"source": "ATMH", "target": "JETCO"},
    {"source": "ATMH", "target": "EPSCO"},
    {"source": "JETCO", "target": "ATMH"},
    {"source": "EPSCO", "target": "ATMH"},
]
programs, routes = read_programs(THREE, "programs"), read_routes(TABLE, "routes")
atmh, jetco, epsco = grants(programs, routes, {})
gate = Authenticator((atmh, jetco, epsco))


@pytest.mark.parametrize(
    ("who", "scope", "queue", "may"),
    [
        (atmh, PUBLISH, "to-jetco", True),
        (atmh, PUBLISH, "j.7", True),
        (atmh, PUBLISH, "EPSCO", True),
        (atmh, PUBLISH, "ATMH", False),
        (atmh, CONSUME, "ATMH", True),
        (atmh, CONSUME, "to-jetco", False),
        (jetco, PUBLISH, "ATMH", True),
        (jetco, PUBLISH, "EPSCO", False),
        (jetco, CONSUME, "j.x", True),
        (epsco, PUBLISH, "to-jetco", False),
        (epsco, ADMIN, "EPSCO", False),
        (epsco, LIST, "ATMH", True),
        (epsco, LIST, "to-jetco", False),
        (epsco, LOOK, "ATMH", False),
        (epsco, LOOK, "EPSCO", False),
    ],
)
def test_access_table_decides_by_program_scope_and_queue(who: Any, scope: str, queue: str, may: bool) -> None:
    assert who.allows(scope, queue) is may


@pytest.mark.parametrize(
    ("token", "address", "name"),
    [
        ("token-of-atmh---", "10.0.0.1:5000", "ATMH"),
        ("token-of-atmh---", "10.0.0.2:5000", None),
        ("token-of-jetco--", "10.1.200.3:1", "JETCO"),
        ("token-of-jetco--", "[fd00::7]:61613", "JETCO"),
        ("token-of-jetco--", "[::ffff:10.1.0.9]:61613", "JETCO"),
        ("", "10.2.0.7:9", "EPSCO"),
        ("whatever", "10.2.0.7:9", "EPSCO"),
        ("", "10.0.0.1:5000", None),
        ("token-of-jetco--", "unix", None),
    ],
)
def test_access_program_is_identified_by_its_token_and_address(token: str, address: str, name: str | None) -> None:
    found = gate.find(token, address)
    assert (found.name if found else None) == name


def test_access_route_with_an_asterisk_stands_for_all_programs() -> None:
    table = read_routes([{"source": "*", "target": "ATMH"}, {"source": "ATMH", "target": "*"}], "routes")
    assert [row["sendsTo"] for row in show(programs, table)] == [["JETCO", "EPSCO"], ["ATMH"], ["ATMH"]]


def test_token_of_a_program_is_not_shown_only_whether_it_has_one() -> None:
    assert "secret" not in repr(show(programs, routes)) + repr(programs) + repr(atmh)
    assert [row["hasToken"] for row in show(programs, routes)] == [True, True, False]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ([{"name": "A"}], "programs[0].addresses"),
        ([{"name": "A", "token": "short"}], "programs[0].token"),
        ([{"name": "A", "token": "a-token-long-enough", "tokenFile": "x"}], "programs[0].token"),
        ([{"name": "A", "addresses": ["10.0.0.300"]}], "programs[0].addresses"),
        ([{"name": "A", "addresses": ["10.0.0.1/8"]}], "programs[0].addresses"),
        ([{"name": "A", "addresses": ["::1"], "queues": []}], "programs[0].queues"),
        ([{"name": "A", "addresses": ["::1"], "sends": []}], "programs[0].sends"),
        ([{"name": "A", "addresses": ["::1"]}] * 2, "programs[1].name"),
        ({}, "programs"),
    ],
)
def test_access_program_that_is_invalid_is_refused_with_its_field(given: Any, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_programs(given, "programs")
    assert refused.value.field == field


def test_access_route_to_an_unknown_program_is_refused() -> None:
    with pytest.raises(BadInput, match="'BANK' is not in programs"):
        check_routes(programs, read_routes([{"source": "ATMH", "target": "BANK"}], "routes"))


@pytest.mark.parametrize(
    ("peer", "host"),
    [("1.2.3.4:56", "1.2.3.4"), ("[::1]:56", "::1"), ("::1", "::1"), ("fe80::1%eth0", "fe80::1"), ("unix", "unix")],
)
def test_access_host_of_a_peer_address_has_no_port_brackets_or_zone(peer: str, host: str) -> None:
    assert host_of(peer) == host
