"""Whether to stay awake: for what usually comes soon, for a bounded time, and not before that is known."""

from yirangmq.core.adaptive_spin import MAX_UNSPUN_WAITS, MIN_UNSPUN_WAITS, AdaptiveSpin

LONGEST = 0.0005


def vigil(*add_wait: float) -> AdaptiveSpin:
    known = AdaptiveSpin(LONGEST)
    for seconds in add_wait:
        known.add_wait(seconds)
    return known


def test_adaptive_spin_is_zero_until_enough_waits_were_measured() -> None:
    assert vigil().seconds == 0
    assert vigil(0.0001).seconds == 0


def test_adaptive_spin_after_twenty_short_waits_lasts_two_to_three_times_the_wait() -> None:
    known = vigil(*[0.0001] * 20)
    assert 0.0002 <= known.seconds <= 0.0003


def test_adaptive_spin_never_exceeds_its_maximum() -> None:
    assert vigil(*[0.9 * LONGEST] * 50).seconds == LONGEST


def test_adaptive_spin_is_zero_when_waits_exceed_the_maximum() -> None:
    assert vigil(*[2.5 * LONGEST] * 3, *[1.1 * LONGEST] * 50).seconds == 0


def test_adaptive_spin_resumes_after_four_short_waits_that_follow_three_long_ones() -> None:
    known = vigil(*[0.0001] * 50, 60.0, 60.0, 60.0)
    assert known.seconds == 0
    for _ in range(4):
        known.add_wait(0.0001)
    assert known.seconds > 0


def waits_slept_through(known: AdaptiveSpin) -> int:
    slept = 0
    while not known.seconds:
        known.add_wait(0.0001)
        slept += 1
    return slept


def test_adaptive_spin_pauses_after_preemption_and_each_pause_doubles_up_to_a_limit() -> None:
    known = vigil(*[0.0001] * 20)
    rests = []
    for _ in range(9):
        known.note_preemption()
        rests.append(waits_slept_through(known))
    assert rests == [16, 32, 64, 128, 256, 512, 1024, 1024, 1024]


def test_adaptive_spin_forgets_preemptions_after_a_long_time_without_any() -> None:
    known = vigil(*[0.0001] * 20)
    for _ in range(9):
        known.note_preemption()
        waits_slept_through(known)
    for _ in range(MAX_UNSPUN_WAITS):
        known.add_wait(0.0001)
    known.note_preemption()
    assert waits_slept_through(known) == MIN_UNSPUN_WAITS
