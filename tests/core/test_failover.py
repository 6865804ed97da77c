"""The rule itself: every combination of what may be known, and what must hold in all of them."""

from collections.abc import Iterator
from itertools import product

import pytest

from yirangmq.core.failover import (
    Decision,
    FailoverTiming,
    FailoverVerdict,
    LocalNode,
    Peer,
    Probe,
    Role,
    Status,
    decide,
)
from yirangmq.core.failover_witness import Witness

PACE = FailoverTiming()
WATCHED = FailoverTiming(has_witness=True)
NOW = 10_000_000


def peer(age: int, **more: object) -> Peer:
    known = {"node": "b", "role": Role.ACTIVE, "status": Status.RUNNING, "term": 4, "running": 0, "active": 0}
    return Peer(**known | {"at": NOW - age} | more)  # type: ignore[arg-type]


def standby(**more: object) -> LocalNode:
    return LocalNode("a", **{"term": 4, "started_at": NOW - 60_000, "decided_at": NOW} | more)  # type: ignore[arg-type]


def judged(
    own: LocalNode, heard: Peer | None, probe: Probe = Probe.SILENT, witness: Witness = Witness.NONE
) -> FailoverVerdict:
    return decide(PACE, own, heard, probe, witness, NOW).verdict


@pytest.mark.parametrize(
    ("age", "wanted"), [(5000, "stay"), (10_000, "stay"), (15_000, "stay"), (15_001, "take-over"), (10**7, "take-over")]
)
def test_takeover_follows_three_missed_heartbeats_and_not_two(age: int, wanted: str) -> None:
    assert judged(standby(), peer(age)) == wanted


@pytest.mark.parametrize(
    ("status", "age", "wanted"),
    [
        (Status.RUNNING, 15_001, "take-over"),
        (Status.STARTING, 15_001, "stay"),
        (Status.STARTING, 30_001, "take-over"),
        (Status.STOPPING, 10**6, "stay"),
        (Status.STOPPED, 10**6, "stay"),
    ],
)
def test_takeover_depends_on_the_last_status_of_the_peer_unless_ordered(status: Status, age: int, wanted: str) -> None:
    assert judged(standby(), peer(age, status=status)) == wanted
    if wanted == "stay":
        assert judged(standby(order=True), peer(age, status=status)) == "take-over"


def test_takeover_is_preceded_by_a_connection_probe_and_cancelled_if_it_succeeds() -> None:
    assert judged(standby(), peer(20_000), Probe.NONE) == "probe"
    assert judged(standby(), peer(20_000), Probe.REACHED) == "stay"


def test_takeover_follows_a_probe_that_another_program_answers_and_none_that_another_key_answers() -> None:
    """S-19: an open port is no evidence by itself: only an answer of the peer shows that it lives."""
    assert judged(standby(), peer(20_000), Probe.FOREIGN) == "take-over"
    assert judged(standby(), peer(20_000), Probe.REJECTED) == "stay"
    assert judged(standby(order=True), peer(20_000), Probe.REJECTED) == "stay"


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("heard", [None, peer(20_000)], ids=["never", "before"])
def test_takeover_does_not_follow_while_heartbeats_of_the_peer_fail_authentication(
    heard: Peer | None, is_ordered: bool
) -> None:
    """S-19: a datagram with another key shows that a node lives at the peer's address."""
    own = standby(order=is_ordered, rejected_at=NOW - 15_000)
    found = decide(PACE, own, heard, Probe.SILENT, Witness.NONE, NOW)
    assert (found.verdict, found.steps[-1].step) == (FailoverVerdict.STAY, "key")
    assert judged(standby(order=is_ordered, rejected_at=NOW - 15_001), heard) == "take-over"


def test_takeover_of_a_node_without_a_peer_waits_for_the_timeout_after_its_start() -> None:
    assert judged(standby(started_at=NOW - 15_000), None) == "stay"
    assert judged(standby(started_at=NOW - 15_001), None, Probe.NONE) == "probe"
    assert judged(standby(started_at=NOW - 15_001), None) == "take-over"


def test_takeover_raises_the_term_above_all_known_terms() -> None:
    for own, theirs, granted in product((0, 3, 9), (0, 4, 11), (0, 5, 20)):
        heard = peer(20_000, term=theirs)
        found = decide(PACE, standby(term=own, granted=granted), heard, Probe.SILENT, Witness.NONE, NOW)
        assert found.term == max(own, theirs, granted) + 1


def every_decision(pace: FailoverTiming) -> Iterator[tuple[LocalNode, Peer | None, Probe, Witness, Decision]]:
    owns = [
        LocalNode(
            "a", role, status, term, NOW - run, switched, NOW - 1000, NOW - looked, assured, order, granted, rejected
        )
        for role, status, term, run, switched, looked, assured, order, granted, rejected in product(
            Role, Status, (4, 5), (1000, 10**6), (None, NOW - 1000), (0, 20_000), (None, NOW - 1000, NOW - 20_000),
            (False, True), (0, 6), (None, NOW - 1000, NOW - 20_000),
        )
    ]  # fmt: skip
    peers: list[Peer | None] = [None]
    peers += [
        Peer(node, role, status, term, running, 500, NOW - age, claim, grant, wish)
        for node, role, status, term, running, age, claim, grant, wish in product(
            ("Z", "b"), Role, Status, (4, 5), (10, 10**7), (0, 20_000), (0, 6), (0, 6), (False, True)
        )
    ]
    probes = list(Probe)
    witnesses = [Witness.NONE] if not pace.has_witness else [one for one in Witness if one is not Witness.NONE]
    for number, (own, heard) in enumerate(product(owns, peers)):
        if number % 307:  # of 1 770 000 in all; 307 divides no number of values, so that each meets each
            continue
        for probe, witness in product(probes, witnesses):
            yield own, heard, probe, witness, decide(pace, own, heard, probe, witness, NOW)


@pytest.mark.parametrize("pace", [PACE, WATCHED], ids=["alone", "witness"])
def test_failover_decision_keeps_its_invariants_in_every_combination(pace: FailoverTiming) -> None:
    for own, heard, probe, witness, found in every_decision(pace):
        about = (own, heard, probe, witness, found)
        verdict = found.verdict
        is_fresh = heard is not None and NOW - heard.at <= pace.timeout
        assert found.steps, about
        assert found.term >= own.term, about
        if own.status is not Status.RUNNING:
            assert verdict is FailoverVerdict.STAY, about
        elif own.role is Role.ACTIVE:
            assert verdict in (
                FailoverVerdict.STAY,
                FailoverVerdict.STAND_DOWN,
                FailoverVerdict.HAND_OVER,
                FailoverVerdict.TAKE_OVER,
            ), about
            if heard is not None and heard.term > own.term:
                assert verdict is FailoverVerdict.STAND_DOWN, about
        else:
            assert verdict not in (FailoverVerdict.STAND_DOWN, FailoverVerdict.HAND_OVER), about
            if verdict is FailoverVerdict.TAKE_OVER:
                assert found.term > own.term, about
                takes_over_rightly(pace, own, heard, probe, witness, is_fresh=is_fresh)
            if not is_fresh and own.rejected_at == NOW - 1000:
                assert verdict is FailoverVerdict.STAY, about


def takes_over_rightly(
    pace: FailoverTiming, own: LocalNode, heard: Peer | None, probe: Probe, witness: Witness, *, is_fresh: bool
) -> None:
    about = (own, heard, probe, witness)
    has_consent = is_fresh and heard is not None and heard.role is Role.STANDBY and heard.grant > own.term
    if has_consent:
        return
    is_stopped = heard is not None and heard.status is Status.STOPPED and heard.role is Role.STANDBY
    assert probe in (Probe.SILENT, Probe.FOREIGN) or (is_stopped and own.order), about
    assert not is_fresh or (is_stopped and own.order), about
    assert witness is (Witness.OURS if pace.has_witness else Witness.NONE), about
    if heard is not None and not own.order:
        assert heard.status in (Status.RUNNING, Status.STARTING), about
        assert own.switched_at is None or NOW - own.switched_at >= pace.cooldown, about
