"""Who counts as a consumer of a queue, as they come and go."""

from yirangmq.core import dispatch as rules
from yirangmq.core.dispatch import MAX_ABSENT, GroupMembership

GRACE = 1_000


def test_dispatch_membership_counts_present_consumers_and_absent_pollers_for_the_grace_time() -> None:
    there = rules.with_waiting(GroupMembership(), {"sub": False, "poll": True}, 0, keeps_all=False)
    assert there.members(0, GRACE) == ["poll", "sub"]
    gone = rules.with_waiting(there, {}, 10, keeps_all=False)
    assert gone.members(10, GRACE) == ["poll"], "a connection that ended is gone, a poller comes again"
    assert rules.with_waiting(there, {}, 10, keeps_all=True).members(10, GRACE) == ["poll", "sub"]
    assert gone.members(10 + GRACE, GRACE) == ["poll"]
    assert gone.members(11 + GRACE, GRACE) == []
    assert rules.next_change(gone, GRACE) == 11 + GRACE
    assert rules.without_expired(gone, 11 + GRACE, GRACE).absent == {}
    assert rules.without_expired(gone, 10, GRACE) is gone


def test_dispatch_membership_counts_registered_consumers_while_they_are_away() -> None:
    known = rules.registered(GroupMembership(), "ledger", 5)
    assert rules.registered(known, "ledger", 9) is known
    assert known.members(10**9, 0) == ["ledger"]
    assert rules.deregistered(known, "ledger").members(0, GRACE) == []
    here = rules.with_waiting(known, {"ledger": False}, 6, keeps_all=False)
    assert rules.deregistered(here, "ledger").members(6, GRACE) == ["ledger"], "it is there"


def test_dispatch_membership_remembers_a_bounded_number_of_consumers_that_poll_without_waiting() -> None:
    absent = rules.with_lease_request(GroupMembership(), "a", 3)
    assert absent.absent == {"a": 3}
    here = rules.with_waiting(absent, {"a": True}, 4, keeps_all=True)
    assert here.absent == {}
    assert rules.with_lease_request(here, "a", 5) is here
    for n in range(MAX_ABSENT + 5):
        absent = rules.with_lease_request(absent, f"n{n}", 10 + n)
    assert len(absent.absent) == MAX_ABSENT
    assert "a" not in absent.absent
