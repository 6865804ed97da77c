"""Whether to stay awake: for what usually comes soon, for a bounded time, and not before that is known."""

from yirangmq.core.adaptive_spin import MAX_UNSPUN_WAITS, MIN_UNSPUN_WAITS, AdaptiveSpin

LONGEST = 0.0005


def vigil(*add_wait: float) -> AdaptiveSpin:
    known = AdaptiveSpin(LONGEST)
    for seconds in add_wait:
        known.add_wait(seconds)
    return known


def test_nobody_stays_awake_before_it_is_known_to_be_worth_it() -> None:
    assert vigil().seconds == 0
    assert vigil(0.0001).seconds == 0


def test_after_some_quick_ones_it_is() -> None:
    known = vigil(*[0.0001] * 20)
    assert 0.0002 <= known.seconds <= 0.0003


def test_never_longer_than_the_longest() -> None:
    assert vigil(*[0.9 * LONGEST] * 50).seconds == LONGEST


def test_what_takes_longer_is_slept_for() -> None:
    assert vigil(*[2.5 * LONGEST] * 3, *[1.1 * LONGEST] * 50).seconds == 0


def test_a_single_late_one_is_soon_forgotten() -> None:
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


def test_who_had_to_give_way_for_long_sleeps_for_a_while_and_longer_each_time() -> None:
    known = vigil(*[0.0001] * 20)
    rests = []
    for _ in range(9):
        known.note_preemption()
        rests.append(waits_slept_through(known))
    assert rests == [16, 32, 64, 128, 256, 512, 1024, 1024, 1024]


def test_what_was_long_ago_is_forgotten() -> None:
    known = vigil(*[0.0001] * 20)
    for _ in range(9):
        known.note_preemption()
        waits_slept_through(known)
    for _ in range(MAX_UNSPUN_WAITS):
        known.add_wait(0.0001)
    known.note_preemption()
    assert waits_slept_through(known) == MIN_UNSPUN_WAITS
