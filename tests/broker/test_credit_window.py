"""A subscription's credit: what was pushed at one go is settled at one go or in parts, and counts the same."""

import pytest

from yirangmq.broker.credit_window import CreditWindow, UnsettledLeases
from yirangmq.core.message import RANK_LAST, Message, MessageRun, lease_id, new_envelope
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.states import State
from yirangmq.format.delivery import RunDeliveries, rules_of
from yirangmq.protocols.native import codec
from yirangmq.testing import ManualClock

RULES = QueuePolicy()
LEASE_MS = 1_000


def pushed(clock: ManualClock, *spans: tuple[int, int], fence: int = 1) -> RunDeliveries:
    """``spans``: the number of the first, and how many."""
    until, now = clock.now_ms() + LEASE_MS, clock.now_ms()
    runs = []
    for first, length in spans:
        sent = [
            new_envelope(("q", f"m-{n}", RANK_LAST, now, now, 0, None, "", b"%d" % n, True, 0, 0))
            for n in range(first, first + length)
        ]
        leased = (State.LEASED, RANK_LAST, first, 1, fence, until, 0, now, "c", "", 0, True)
        runs.append((MessageRun(Message(first, "q", f"m-{first}", *leased), length), sent))
    return RunDeliveries(runs, RULES)


@pytest.fixture
def ledger(clock: ManualClock) -> UnsettledLeases:
    return UnsettledLeases(clock)


@pytest.fixture
def subscription(ledger: UnsettledLeases) -> CreditWindow[UnsettledLeases]:
    return CreditWindow("q", "c", None, 10, ledger, lambda deliveries: True)


def test_credit_window_deliveries_in_runs_equal_individual_deliveries(clock: ManualClock) -> None:
    in_runs = pushed(clock, (7, 3), (20, 2), fence=4)
    one_by_one = list(in_runs)
    assert len(in_runs) == len(one_by_one) == 5
    assert in_runs.leases == [lease_id(card) for card, _, _ in one_by_one] == ["7-4", "8-4", "9-4", "20-4", "21-4"]
    assert codec.encode_deliveries(in_runs, 0) == codec.encode_deliveries(one_by_one, 0)
    assert (in_runs[-1], in_runs[1:3]) == (one_by_one[-1], one_by_one[1:3])
    assert rules_of(in_runs) is rules_of(one_by_one) is RULES


def test_credit_window_settles_a_whole_push_at_once_and_only_once(
    clock: ManualClock, ledger: UnsettledLeases, subscription: CreditWindow[UnsettledLeases]
) -> None:
    first, second = pushed(clock, (1, 4)), pushed(clock, (5, 6))
    ledger.add(first)
    ledger.add(second)
    assert (ledger.unsettled, subscription.wants()) == (10, 0)
    assert ledger.span_of(first.leases) == (1, 4, 1)
    assert ledger.settled(first.leases)
    assert (ledger.unsettled, subscription.wants()) == (6, 4)
    assert ledger.span_of(first.leases) is None
    assert not ledger.settled(first.leases)


@pytest.mark.parametrize(
    "leases",
    [
        [],
        ["2-1"],
        ["1-1", "2-1"],
        ["1-1", "2-1", "3-1", "5-1"],
        ["1-1", "2-1", "3-1", "4-2"],
        ["1-1", "3-1", "2-1", "4-1"],
    ],
)
def test_credit_window_recognises_a_span_only_for_exactly_the_pushed_leases(
    clock: ManualClock, ledger: UnsettledLeases, leases: list[str]
) -> None:
    ledger.add(pushed(clock, (1, 4)))
    assert ledger.span_of(leases) is None
    ours = {"1-1", "2-1", "3-1", "4-1"} & set(leases)
    assert ledger.settled(leases) is bool(ours)
    assert ledger.unsettled == 4 - len(ours)


def test_credit_window_settles_parts_of_several_pushes_together(
    clock: ManualClock, ledger: UnsettledLeases, subscription: CreditWindow[UnsettledLeases]
) -> None:
    ledger.add(pushed(clock, (1, 4)))
    ledger.add(pushed(clock, (5, 4)))
    assert ledger.settled(["4-1", "5-1"])
    assert ledger.unsettled == 6
    assert ledger.settled(["1-1", "2-1", "3-1"])
    assert ledger.settled(["6-1", "7-1", "8-1"])
    assert (ledger.unsettled, subscription.wants()) == (0, 10)


def test_credit_window_push_of_several_runs_has_no_span(clock: ManualClock, ledger: UnsettledLeases) -> None:
    both = pushed(clock, (1, 2), (7, 2))
    ledger.add(both)
    assert ledger.span_of(both.leases) is None
    assert ledger.settled(both.leases)
    assert ledger.unsettled == 0


def test_credit_window_does_not_count_expired_leases(
    clock: ManualClock, ledger: UnsettledLeases, subscription: CreditWindow[UnsettledLeases]
) -> None:
    ledger.add(pushed(clock, (1, 4)))
    clock.advance(LEASE_MS // 2)
    late = pushed(clock, (5, 6))
    ledger.add(late)
    clock.advance(LEASE_MS // 2)
    assert subscription.wants() == 4
    assert ledger.unsettled == 6
    assert ledger.span_of(late.leases) == (5, 10, 1)


def test_credit_window_counts_extended_leases_until_their_new_end(
    clock: ManualClock, ledger: UnsettledLeases, subscription: CreditWindow[UnsettledLeases]
) -> None:
    ledger.add(pushed(clock, (1, 10)))
    ledger.extended(["3-1", "99-1"], 10 * LEASE_MS)
    clock.advance(LEASE_MS)
    assert subscription.wants() == 9
    assert ledger.unsettled == 1


def test_credit_window_wants_no_messages_while_its_client_does_not_read(ledger: UnsettledLeases) -> None:
    assert CreditWindow("q", "c", None, 10, ledger, lambda deliveries: True, lambda: False).wants() == 0


def test_credit_window_counts_leases_of_an_earlier_connection_until_they_expire(clock: ManualClock) -> None:
    held = UnsettledLeases(clock, {"1-1": clock.now_ms() + LEASE_MS, "2-1": clock.now_ms() + 2 * LEASE_MS})
    subscription = CreditWindow("q", "c", None, 2, held, lambda deliveries: True)
    assert subscription.wants() == 0
    clock.advance(LEASE_MS)
    assert subscription.wants() == 1
    assert subscription.describe() == {"queue": "q", "consumerId": "c", "credit": 2, "unsettled": 1}
