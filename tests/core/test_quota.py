"""How full a queue may be: the rule alone."""

import pytest

from yirangmq.core.message import Counts
from yirangmq.core.policy import MessageLoad, Quota, refusal, store_refusal, surplus, unfinished

TEN = Quota(max_messages=10)
KILO = Quota(max_bytes=1_000)


def test_quota_counts_unfinished_messages() -> None:
    counts = Counts(draft=1, delayed=2, ready=4, claimed=8, leased=16, dead=32, parked=64, done=128)
    assert unfinished(counts) == 2 + 4 + 8 + 16


def test_quota_without_limits_refuses_nothing() -> None:
    assert not Quota().is_set
    assert refusal(Quota(), "mail", MessageLoad(10**9, 10**15), MessageLoad(10**6, 10**12)) is None


@pytest.mark.parametrize(("held", "coming", "fits"), [(0, 10, True), (9, 1, True), (10, 1, False), (9, 2, False)])
def test_quota_accepts_messages_up_to_its_limit(held: int, coming: int, fits: bool) -> None:
    assert (refusal(TEN, "mail", MessageLoad(held, 0), MessageLoad(coming, 0)) is None) is fits


@pytest.mark.parametrize(("held", "coming", "fits"), [(0, 1_000, True), (900, 100, True), (900, 101, False)])
def test_quota_accepts_bytes_up_to_its_limit(held: int, coming: int, fits: bool) -> None:
    assert (refusal(KILO, "mail", MessageLoad(1, held), MessageLoad(1, coming)) is None) is fits


def test_quota_error_states_the_fill_level_and_when_to_retry() -> None:
    error = refusal(TEN, "mail", MessageLoad(10, 0), MessageLoad(1, 0))
    assert error is not None
    assert (error.code, error.retry_after) == ("quota_exceeded", 5.0)
    assert str(error) == "queue 'mail' takes 10 messages and has 10 unfinished; try again in 5 s"


def test_quota_error_for_a_batch_larger_than_the_queue_says_that_it_never_fits() -> None:
    for error in (
        refusal(TEN, "mail", MessageLoad(0, 0), MessageLoad(11, 0)),
        refusal(KILO, "mail", MessageLoad(0, 0), MessageLoad(1, 1_001)),
    ):
        assert error is not None
        assert error.retry_after is None
        assert "never fits" in str(error)


@pytest.mark.parametrize(
    ("quota", "held", "coming", "must_go"),
    [
        (TEN, MessageLoad(5, 0), MessageLoad(5, 0), MessageLoad(0, 0)),
        (TEN, MessageLoad(10, 0), MessageLoad(1, 0), MessageLoad(1, 0)),
        (TEN, MessageLoad(10, 0), MessageLoad(10, 0), MessageLoad(10, 0)),
        (TEN, MessageLoad(30, 0), MessageLoad(1, 0), MessageLoad(21, 0)),  # the limit was lowered
        (KILO, MessageLoad(10, 1_000), MessageLoad(1, 100), MessageLoad(0, 100)),
        (KILO, MessageLoad(10, 1_000), MessageLoad(1, 101), MessageLoad(0, 101)),
        (KILO, MessageLoad(10, 1_000), MessageLoad(3, 1_000), MessageLoad(0, 1_000)),
        (Quota(max_messages=10, max_bytes=1_000), MessageLoad(10, 1_000), MessageLoad(1, 250), MessageLoad(1, 250)),
    ],
)
def test_quota_surplus_is_the_load_to_drop_for_a_new_batch(
    quota: Quota, held: MessageLoad, coming: MessageLoad, must_go: MessageLoad
) -> None:
    assert surplus(quota, held, coming) == must_go


@pytest.mark.parametrize(
    ("most", "used", "refused"), [(0, 10**15, False), (1 << 20, None, False), (1 << 20, 5, False), (10, 10, True)]
)
def test_quota_of_the_store_refuses_at_its_maximum_size(most: int, used: int | None, refused: bool) -> None:
    assert (store_refusal(most, used) is not None) is refused
