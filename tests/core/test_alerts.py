"""One alert for each fault, and a notice when it is over; never a storm of them."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yirangmq.alerts.monitor import read, state_document
from yirangmq.core.alerts import (
    CRITICAL_SHARE_DIVISOR,
    HOUR_MS,
    MAX_OPEN_ALERTS,
    STORM,
    AlertState,
    Fault,
    Level,
    Notice,
    NoticeKind,
    NoticePacing,
    acknowledge,
    after_restart,
    evaluate,
    find,
    needs_save,
    shift_times,
)
from yirangmq.core.errors import NotFound, WrongState
from yirangmq.format.json_codec import dumps, loads

PACE = NoticePacing(settle=1000, remind=10_000, most=30)


class Player:
    """Looks, one after another."""

    def __init__(self, pace: NoticePacing = PACE) -> None:
        self.pace = pace
        self.standing = AlertState()
        self.now = 1_000_000
        self.notices: list[Notice] = []

    def sees(self, *faults: Fault, after: int = 100) -> list[str]:
        self.now += after
        self.standing, notified = evaluate(self.standing, faults, self.pace, self.now)
        self.notices += notified
        return [notice.notified.value for notice in notified]

    def restarts(self) -> None:
        kept = dumps(state_document(self.standing))
        self.standing = after_restart(read(loads(kept)), self.now)

    def acks(self, id: str = "1") -> None:
        self.standing = acknowledge(self.standing, id, "ann", "on it", self.now)


def fault(rule: str = "disk_low", level: Level = Level.WARNING, subject: str = "") -> Fault:
    return Fault(rule, subject, level, f"{rule} {subject}")


def test_alert_is_opened_once_and_recovers_after_the_fault_is_gone_for_the_settle_time() -> None:
    player = Player()
    assert player.sees(fault()) == ["opened"]
    assert player.sees(fault()) == []
    assert player.sees() == []
    assert player.sees(after=800) == []
    assert player.sees(after=300) == ["recovered"]
    assert player.sees(after=5000) == []
    assert player.standing.open == {}
    assert [alert.id for alert in player.standing.closed] == ["1"]


def test_alert_of_a_fault_that_returns_before_recovery_stays_open_and_settles_longer() -> None:
    player = Player()
    player.sees(fault())
    for _ in range(5):
        assert player.sees(after=900) == []
        assert player.sees(fault(), after=50) == []
    assert player.standing.counts["returned"] == 5
    assert player.sees(after=7000) == []
    assert player.sees(after=1100) == ["recovered"]


def test_alert_of_a_fault_that_returns_soon_after_recovery_settles_for_twice_the_time() -> None:
    player = Player()
    player.sees(fault())
    assert player.sees(after=1001) == ["recovered"]
    assert player.sees(fault()) == ["opened"]
    assert player.sees(after=1001) == []
    assert player.sees(after=1000) == ["recovered"]
    assert player.sees(fault(), after=20_000) == ["opened"]
    assert player.sees(after=1001) == ["recovered"]


def test_alert_escalation_is_notified_once_and_improvement_is_not() -> None:
    player = Player()
    player.sees(fault())
    assert player.sees(fault(level=Level.CRITICAL)) == ["worse"]
    assert player.sees(fault()) == []
    assert player.sees(fault(level=Level.CRITICAL)) == []


def test_alert_reminders_repeat_until_the_ack_and_again_after_an_escalation() -> None:
    player = Player()
    player.sees(fault())
    assert player.sees(fault(), after=10_000) == ["reminder"]
    assert player.sees(fault(), after=9_000) == []
    player.acks()
    assert player.sees(fault(), after=50_000) == []
    assert player.sees(fault(level=Level.CRITICAL)) == ["worse"]
    assert find(player.standing, "1").acked_at is None
    assert player.sees(fault(level=Level.CRITICAL), after=10_000) == ["reminder"]


def test_alert_reminders_are_off_with_interval_zero() -> None:
    player = Player(NoticePacing(settle=1000, remind=0))
    player.sees(fault())
    assert player.sees(fault(), after=10**9) == []


def test_alert_ack_repeated_changes_nothing_and_after_recovery_is_refused() -> None:
    player = Player()
    player.sees(fault())
    player.acks()
    before = player.standing
    player.now += 5
    player.acks()
    assert player.standing is before
    assert (find(before, "1").acked_by, find(before, "1").note) == ("ann", "on it")
    player.sees(after=5000)
    with pytest.raises(WrongState, match="is over"):
        player.acks()
    with pytest.raises(NotFound, match="no alert '7'"):
        player.acks("7")


def test_alert_rate_limit_withholds_and_counts_alerts_and_opens_them_when_there_is_room() -> None:
    player = Player(NoticePacing(settle=1000, remind=0, most=10))
    many = [fault("queue_depth", subject=f"q{number:02}") for number in range(20)]
    notified = Counter(player.sees(*many))
    assert notified == {"opened": 10 - 10 // CRITICAL_SHARE_DIVISOR + 1}  # and the storm
    assert STORM in player.standing.open
    assert player.standing.counts["withheld"] == 12
    assert Counter(player.sees(*many)) == {}
    assert player.sees(*many, fault(level=Level.CRITICAL)) == ["opened"], "room is kept for what is critical"
    assert Counter(player.sees(*many, fault(level=Level.CRITICAL), after=HOUR_MS)) == {"opened": 8}
    assert sum(one.is_withheld for one in player.standing.open.values()) == 4
    assert Counter(player.sees(*many, fault(level=Level.CRITICAL), after=HOUR_MS)) == {"opened": 4, "recovered": 1}
    assert player.standing.closed[-1].rule == STORM


def test_alert_withheld_until_its_fault_is_gone_is_never_notified() -> None:
    player = Player(NoticePacing(settle=1000, remind=0, most=1))
    player.sees(fault("a"))
    assert player.sees(fault("a"), fault("b")) == ["opened"], "only the storm"
    assert player.sees(fault("a"), after=5000) == ["recovered"], "the storm"
    assert [alert.rule for alert in player.standing.closed] == ["b", STORM]


def test_alert_list_is_bounded_and_counts_the_unlisted() -> None:
    player = Player()
    player.sees(*(fault("queue_age", subject=f"q{number}") for number in range(MAX_OPEN_ALERTS + 50)))
    assert len(player.standing.open) == MAX_OPEN_ALERTS + 1
    assert player.standing.counts["unlisted"] == 50


def test_alert_state_is_written_after_a_real_change_and_not_after_a_new_text() -> None:
    player = Player()
    player.sees(fault())
    before = player.standing
    player.sees(Fault("disk_low", "", Level.WARNING, "other words"))
    assert before != player.standing
    assert not needs_save(before, player.standing)
    settling = player.standing
    player.sees()
    assert needs_save(settling, player.standing)


def test_alert_state_resumes_after_a_restart_whatever_the_clock_did() -> None:
    player = Player()
    player.sees(fault())
    for now in (player.now - HOUR_MS, player.now + HOUR_MS):
        after = after_restart(player.standing, now)
        assert find(after, "1").seen_at == now
        again, notices = evaluate(after, [fault()], PACE, now + 1)
        assert [notice for notice in notices if notice.notified is NoticeKind.OPENED] == []
        assert evaluate(again, [], PACE, now + 500)[1] == []


def test_alert_times_can_be_shifted_to_another_clock() -> None:
    player = Player()
    player.sees(fault())
    moved = shift_times(player.standing, 5000)
    assert find(moved, "1").opened_at == player.now + 5000
    assert shift_times(moved, -5000) == player.standing


# -- whatever happens -----------------------------------------------------------------------------------------------

RULES = ("a", "b", "c")
RESTART = "restart"
STEPS = st.lists(
    st.tuples(
        st.sampled_from([1, 300, 999, 1000, 1001, 4000, 9000, 600_000]),
        st.lists(st.tuples(st.sampled_from(RULES), st.sampled_from(list(Level))), max_size=4),
        st.sampled_from([None, None, "1", "2", "3", RESTART]),
    ),
    max_size=60,
)


def play(steps: Sequence[tuple[int, list[tuple[str, Level]], str | None]], pace: NoticePacing) -> Player:
    player = Player(pace)
    for passed, there, acked in steps:
        player.sees(*(fault(rule, level) for rule, level in there), after=passed)
        known = {alert.id: alert for alert in player.standing.open.values()}
        if acked in known:
            player.acks(acked)
        elif acked == RESTART:
            player.restarts()
        open_ones = [alert.key for alert in player.standing.open.values()]
        assert len(open_ones) == len(set(open_ones)), "two alerts open for one fault"
    return player


@given(STEPS)
def test_alert_in_any_sequence_is_opened_once_and_ends_in_one_recovery(steps: list[object]) -> None:
    player = play(steps, NoticePacing(settle=1000, remind=10_000, most=10_000))  # type: ignore[arg-type]
    open_now = {alert.id for alert in player.standing.open.values()}
    while player.standing.open:
        player.sees(after=1_000)
    by_alert: dict[str, list[NoticeKind]] = {}
    for notice in player.notices:
        by_alert.setdefault(notice.alert.id, []).append(notice.notified)
    for id, notified in by_alert.items():
        assert notified[0] is NoticeKind.OPENED, id
        assert notified.count(NoticeKind.OPENED) == 1
        assert notified.count(NoticeKind.RECOVERED) == 1
        assert notified[-1] is NoticeKind.RECOVERED
        assert notified.count(NoticeKind.WORSE) <= 2
    assert open_now <= by_alert.keys()
    assert player.standing.counts["opened"] == player.standing.counts["recovered"] == len(by_alert)


@given(STEPS, st.integers(1, 6))
def test_alert_rate_limit_per_hour_holds_in_any_sequence(steps: list[object], most: int) -> None:
    player = play(steps, NoticePacing(settle=1000, remind=10_000, most=most))  # type: ignore[arg-type]
    counted = [one.at for one in player.notices if one.notified is not NoticeKind.RECOVERED and one.alert.rule != STORM]
    for at in counted:
        assert sum(at - HOUR_MS < other <= at for other in counted) <= most
    recovered = [one.alert.id for one in player.notices if one.notified is NoticeKind.RECOVERED]
    assert len(recovered) == len(set(recovered))
    assert set(recovered) <= {one.alert.id for one in player.notices if one.notified is NoticeKind.OPENED}


@given(st.lists(st.tuples(st.integers(1, 3000), st.booleans()), min_size=1, max_size=200))
def test_alert_of_a_flapping_fault_gives_no_more_notices_than_its_settle_time_allows(
    flips: list[tuple[int, bool]],
) -> None:
    player = Player(NoticePacing(settle=1000, remind=0, most=10_000))
    begun = player.now
    for passed, is_there in flips:
        player.sees(*([fault()] if is_there else []), after=passed)
    assert len(player.notices) <= 2 * (1 + (player.now - begun) // 1000)
    if player.now - begun > 100_000:
        assert len(player.notices) <= 2 * (8 + (player.now - begun) // 8000), "after a while it is waited for longer"
