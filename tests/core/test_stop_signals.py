"""Which stop signals count as one."""

from yirangmq.core.stop_signals import SIGNAL_REPEAT_SECONDS, StopSignals, StopStep


def test_stop_signal_begins_a_stop_its_copies_are_ignored_and_a_later_one_forces_the_end() -> None:
    signals, first = StopSignals(), 500.0
    assert signals.receive(first) is StopStep.BEGIN
    assert signals.receive(first) is StopStep.IGNORE
    assert signals.receive(first + SIGNAL_REPEAT_SECONDS) is StopStep.IGNORE
    assert signals.receive(first + SIGNAL_REPEAT_SECONDS + 0.001) is StopStep.FORCE
    assert signals.receive(first + 60) is StopStep.FORCE


def test_stop_signal_at_time_zero_is_a_first_one_and_clear_begins_anew() -> None:
    signals = StopSignals()
    assert signals.receive(0.0) is StopStep.BEGIN
    assert signals.receive(5.0) is StopStep.FORCE
    states = [signals.is_stopping]
    signals.clear()
    assert [*states, signals.is_stopping] == [True, False]
    assert signals.receive(5.1) is StopStep.BEGIN
