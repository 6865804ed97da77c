"""The rules by which a subscriber sees that something is missing or comes twice, without a connection."""

from collections.abc import Iterable

import pytest

from yirangmq.client.topic_tracker import Tracker
from yirangmq.client.values import Event, LostRecords, Missing, NewEpoch, TopicRecord
from yirangmq.wire import messages

ONE, TWO = "1" * 32, "2" * 32


class Desk:
    """A tracker, and what it told."""

    def __init__(self, *, is_all: bool, next: int = 1, gaps: Iterable[tuple[int, int]] = ()) -> None:
        self.told: list[Event] = []
        self.tracker = Tracker(is_all=is_all, report=self.told.append)
        self.subscribed(next, gaps)

    def subscribed(self, next: int, gaps: Iterable[tuple[int, int]] = (), epoch: str = ONE) -> bool:
        return self.tracker.subscribed(messages.TopicSubscribed(epoch, next, 1, 1000, [*gaps]))

    def response(self, start: int, end: int = 1000, gaps: Iterable[tuple[int, int]] = ()) -> None:
        self.tracker.response(messages.TopicRecoveryResponse(start, end, None, [*gaps]))

    def is_whole(self) -> bool:
        return self.tracker.needed is None

    def take(self, *given: tuple[int, str, int] | int) -> list[int]:
        """(sequence, topic, topic sequence), or a sequence of topic a with the same number."""
        records = [TopicRecord(*_members(one)) for one in given]
        return [one.sequence for one in self.tracker.take(records)]


def _members(one: tuple[int, str, int] | int) -> tuple[int, int, int, str, None, dict[str, str], bytes]:
    sequence, topic, number = one if isinstance(one, tuple) else (one, "a", one)
    return sequence, number, 0, topic, None, {}, b""


def test_gap_detection_without_a_filter_passes_records_in_order() -> None:
    desk = Desk(is_all=True)
    assert desk.take(1, 2, 3) == [1, 2, 3]
    assert desk.take(4) == [4]
    desk.tracker.progress(messages.TopicProgress(4, 4, 4, 0))
    assert (desk.tracker.last, desk.tracker.reached, desk.tracker.needed, desk.told) == (4, 4, None, [])


def test_duplicate_records_are_dropped_and_counted() -> None:
    desk = Desk(is_all=True)
    assert desk.take(1, 2) == [1, 2]
    assert desk.take(2, 3) == [3]
    assert desk.take(1) == []
    assert (desk.tracker.duplicates, desk.tracker.needed) == (2, None)


def test_gap_detection_withholds_later_records_until_the_missing_record_is_resent() -> None:
    desk = Desk(is_all=True)
    assert desk.take(1, 2, 4, 5) == [1, 2]
    assert desk.tracker.needed == 2
    assert desk.take(6) == []
    [told] = desk.told
    assert isinstance(told, Missing)
    assert told.after == 2
    desk.response(3)
    assert desk.take(3, 4, 5, 6) == [3, 4, 5, 6]
    desk.tracker.complete(messages.TopicRecoveryComplete(6, 4, 0))
    assert desk.is_whole()
    assert desk.tracker.reached == 6


def test_gap_recovery_that_starts_after_the_gap_is_not_taken_for_the_requested_recovery() -> None:
    desk = Desk(is_all=True)
    assert desk.take(1, 3) == [1]
    desk.response(4)
    assert desk.take(4) == []
    desk.response(2)
    assert desk.take(2, 3, 4) == [2, 3, 4]


def test_gap_announced_by_the_server_needs_no_recovery_and_is_reported_once_as_lost() -> None:
    desk = Desk(is_all=True, gaps=[(3, 5), (6, 7)])
    assert desk.take(1, 2, 8) == [1, 2, 8]
    assert desk.take(10) == []
    desk.response(9, gaps=[(3, 5), (6, 7), (9, 9)])
    assert desk.take(10) == [10]
    assert [one for one in desk.told if isinstance(one, LostRecords)] == [
        LostRecords(3, 5),
        LostRecords(6, 7),
        LostRecords(9, 9),
    ]


def test_gap_detection_with_a_filter_uses_the_sequence_of_each_topic() -> None:
    desk = Desk(is_all=False)
    assert desk.take((5, "a", 3), (9, "b", 1), (11, "a", 4)) == [5, 9, 11]
    assert desk.take((20, "a", 6)) == []
    assert desk.tracker.needed == 0  # it may lie before what came of other topics
    desk.response(1)
    assert desk.take((5, "a", 3), (9, "b", 1), (11, "a", 4), (15, "a", 5), (20, "a", 6)) == [15, 20]


@pytest.mark.parametrize(("gap", "found"), [((12, 14), [20]), ((21, 22), []), ((3, 4), [])])
def test_gap_announced_by_the_server_explains_a_missing_topic_sequence_with_a_filter(
    gap: tuple[int, int], found: list[int]
) -> None:
    desk = Desk(is_all=False, gaps=[gap])
    assert desk.take((11, "a", 4)) == [11]
    assert desk.take((20, "a", 6)) == found


def test_gap_detection_by_count_finds_the_missing_only_record_of_a_topic() -> None:
    """The only record of a topic is missing; later ones are here already."""
    desk = Desk(is_all=False)
    assert desk.take((1, "a", 1), (3, "a", 2), (4, "c", 1)) == [1, 3, 4]
    desk.tracker.progress(messages.TopicProgress(5, 4, 5, 0))
    assert desk.tracker.needed == 0
    desk.response(1)
    assert desk.take((1, "a", 1), (2, "b", 1), (3, "a", 2), (4, "c", 1), (6, "a", 3)) == [2, 6]
    desk.tracker.progress(messages.TopicProgress(6, 5, 6, 0))
    assert desk.is_whole()
    assert (desk.tracker.reached, desk.tracker.duplicates) == (6, 3)
    assert desk.take((7, "b", 2)) == [7]


def test_gap_detection_by_count_requests_records_from_the_last_position_that_agreed() -> None:
    desk = Desk(is_all=False)
    assert desk.take((1, "a", 1)) == [1]
    desk.tracker.progress(messages.TopicProgress(10, 1, 10, 0))
    assert desk.take((12, "a", 2)) == [12]
    desk.tracker.progress(messages.TopicProgress(12, 3, 12, 0))
    assert desk.tracker.needed == 10


def test_gap_detection_by_progress_finds_the_missing_last_record() -> None:
    desk = Desk(is_all=True)
    assert desk.take(1, 2) == [1, 2]
    desk.tracker.progress(messages.TopicProgress(3, 3, 3, 0))
    assert desk.tracker.needed == 2
    desk.response(3)
    assert desk.take(3) == [3]


def test_gap_detection_restarts_its_count_at_a_filtered_recovery_started_by_the_server() -> None:
    desk = Desk(is_all=False)
    assert desk.take((1, "a", 1)) == [1]
    desk.response(50)
    assert desk.take((60, "a", 2)) == [60]
    desk.tracker.complete(messages.TopicRecoveryComplete(99, 1, 0))
    assert (desk.tracker.needed, desk.tracker.reached) == (None, 99)


def test_resubscription_by_name_drops_resent_unconfirmed_records_as_duplicates() -> None:
    desk = Desk(is_all=True)
    assert desk.take(1, 2, 3) == [1, 2, 3]
    assert not desk.subscribed(2)
    assert desk.take(2, 3, 4) == [4]
    desk.tracker.progress(messages.TopicProgress(4, 3, 4, 0))
    assert (desk.tracker.needed, desk.tracker.duplicates) == (None, 2)


def test_gap_detection_after_a_resubscription_does_not_count_resent_records_as_the_missing_record() -> None:
    desk = Desk(is_all=False)
    assert desk.take((1, "a", 1), (2, "b", 1), (4, "a", 2)) == [1, 2, 4]
    desk.subscribed(2)
    assert desk.take((2, "b", 1), (4, "a", 2)) == []
    desk.tracker.progress(messages.TopicProgress(4, 3, 4, 0))
    assert desk.tracker.needed == 0
    desk.response(1)
    assert desk.take((1, "a", 1), (2, "b", 1), (3, "c", 1), (4, "a", 2)) == [3]


def test_gap_detection_with_a_filter_remembers_topic_sequences_after_a_resubscription() -> None:
    desk = Desk(is_all=False)
    assert desk.take((1, "a", 1)) == [1]
    desk.tracker.progress(messages.TopicProgress(10, 1, 10, 0))
    desk.subscribed(11)
    assert desk.take((12, "a", 3)) == []
    assert desk.tracker.needed == 10


def test_resubscription_by_name_after_another_subscriber_confirmed_more_shows_no_gap() -> None:
    desk = Desk(is_all=True)
    assert desk.take(1) == [1]
    desk.subscribed(10)
    assert desk.take(10) == [10]


def test_epoch_change_starts_another_feed_and_is_reported() -> None:
    desk = Desk(is_all=True, next=500, gaps=[(7, 8)])
    assert desk.take(500, 501) == [500, 501]
    assert desk.subscribed(1, epoch=TWO)
    assert desk.told[-1] == NewEpoch(ONE, TWO)
    assert desk.take(1, 2) == [1, 2]
    assert desk.tracker.lost == []
