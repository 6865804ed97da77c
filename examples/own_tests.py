"""Tests of your own program: a store in memory and a clock that the test moves, so that no test waits.

    python examples/own_tests.py

With pytest: pytest examples/own_tests.py"""

from yirangmq import NewMessage
from yirangmq.testing import ManualClock, open_for_test


def remind(queues, name, minutes):
    """The program under test."""
    queues.publish("reminders", NewMessage({"to": name}, delay=minutes * 60))


def test_reminder_is_delivered_after_its_time():
    clock = ManualClock()
    with open_for_test(clock=clock) as queues:
        remind(queues, "ann", minutes=10)
        clock.advance(599_000)
        assert queues.lease("reminders") == []
        clock.advance(1_000)
        [delivery] = queues.lease("reminders")
        assert delivery.value() == {"to": "ann"}
        assert delivery.id == "m-1"  # ids are numbered


def test_reminder_is_delivered_again_if_its_worker_dies():
    clock = ManualClock()
    with open_for_test(clock=clock) as queues:
        remind(queues, "bob", minutes=0)
        queues.lease("reminders", lease_seconds=60)
        clock.advance(60_000)  # the lease ends without an ack
        [again] = queues.lease("reminders")
        assert again.attempt == 2


if __name__ == "__main__":
    for test in (test_reminder_is_delivered_after_its_time, test_reminder_is_delivered_again_if_its_worker_dies):
        test()
        print(f"passed: {test.__name__}")
