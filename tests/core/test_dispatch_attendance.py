"""Who counts as a consumer of a queue, as they come and go."""

from yirangmq.core import dispatch as rules
from yirangmq.core.dispatch import MOST_SEEN, Attendance

GRACE = 1_000


def test_who_is_there_counts_and_who_went_counts_for_a_while() -> None:
    there = rules.looked(Attendance(), {"sub": False, "poll": True}, 0, keeps_all=False)
    assert there.everyone(0, GRACE) == ["poll", "sub"]
    gone = rules.looked(there, {}, 10, keeps_all=False)
    assert gone.everyone(10, GRACE) == ["poll"], "a connection that ended is gone, a poller comes again"
    assert rules.looked(there, {}, 10, keeps_all=True).everyone(10, GRACE) == ["poll", "sub"]
    assert gone.everyone(10 + GRACE, GRACE) == ["poll"]
    assert gone.everyone(11 + GRACE, GRACE) == []
    assert rules.next_change(gone, GRACE) == 11 + GRACE
    assert rules.forgotten(gone, 11 + GRACE, GRACE).seen == {}
    assert rules.forgotten(gone, 10, GRACE) is gone


def test_registered_ones_count_also_while_they_are_away() -> None:
    known = rules.registered(Attendance(), "ledger", 5)
    assert rules.registered(known, "ledger", 9) is known
    assert known.everyone(10**9, 0) == ["ledger"]
    assert rules.deregistered(known, "ledger").everyone(0, GRACE) == []
    here = rules.looked(known, {"ledger": False}, 6, keeps_all=False)
    assert rules.deregistered(here, "ledger").everyone(6, GRACE) == ["ledger"], "it is there"


def test_who_asks_without_waiting_is_seen_and_only_so_many_are_remembered() -> None:
    seen = rules.asked(Attendance(), "a", 3)
    assert seen.seen == {"a": 3}
    here = rules.looked(seen, {"a": True}, 4, keeps_all=True)
    assert here.seen == {}
    assert rules.asked(here, "a", 5) is here
    for n in range(MOST_SEEN + 5):
        seen = rules.asked(seen, f"n{n}", 10 + n)
    assert len(seen.seen) == MOST_SEEN
    assert "a" not in seen.seen
