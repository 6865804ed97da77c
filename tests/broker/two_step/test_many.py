"""Many at a time: each has its own answer, in the order in which they were asked for."""

from tests.broker.two_step.counter import Counter
from yirangmq.broker.two_step import Fetched
from yirangmq.core.errors import NotFound, QueueError, WrongState


def kinds(answers: list[QueueError | None]) -> list[type[QueueError] | None]:
    return [None if answer is None else type(answer) for answer in answers]


def test_two_step_drafts_are_ordered_by_priority_and_by_when_their_content_was_set(counter: Counter) -> None:
    counter.run(lambda work: counter.drafts.draft(work, "mail", [("a", 5), ("b", 5), ("c", 1)]))
    assert counter.stats() == {"draft": 3}
    assert counter.set_many([("b", b"2"), ("a", b"1"), ("c", b"3")]) == [None] * 3
    assert counter.ordered() == ["c", "b", "a"]
    assert [counter.get(id) for id in "abc"] == [b"1", b"2", b"3"]


def test_two_step_set_batch_with_refused_messages_harms_no_other(counter: Counter) -> None:
    taken = counter.put(b"taken")
    assert counter.order() == taken
    draft, waiting = counter.draft(), counter.put(b"waiting")
    answers = counter.set_many([(taken, b"x"), (draft, b"new"), ("nobody", b"x"), (waiting, b"changed"), ("..", b"x")])
    assert kinds(answers) == [WrongState, None, NotFound, None, NotFound]
    assert [counter.get(id) for id in (taken, draft, waiting)] == [b"taken", b"new", b"changed"]


def test_two_step_set_batch_with_the_same_id_twice_sets_it_twice(counter: Counter) -> None:
    one, other = counter.draft(), counter.draft()
    assert counter.set_many([(one, b"1"), (other, b"2"), (one, b"3")]) == [None] * 3
    assert counter.ordered() == [one, other]
    assert counter.get(one) == b"3"


def test_unique_payload_given_twice_in_a_batch_is_refused_the_second_time(counter: Counter) -> None:
    counter.queues.set_policy("mail", {"unique": True})
    one, other = counter.draft(), counter.draft()
    assert kinds(counter.set_many([(one, b"same"), (other, b"same")])) == [None, WrongState]


def test_two_step_fetch_of_the_same_id_twice_starts_one_lease(counter: Counter) -> None:
    id = counter.put(b"content")
    draft = counter.draft()
    assert counter.order() == id
    found = counter.run(lambda work: counter.orders.fetch(work, "mail", [id, "nobody", id, draft]))
    first, unknown, again, early = found
    assert isinstance(first, Fetched)
    assert first == again
    assert (type(unknown), type(early)) == (NotFound, WrongState)
    assert counter.queues.show("mail", id).message.leases == 1


def test_two_step_settling_of_the_same_id_twice_counts_once(counter: Counter) -> None:
    ids = [counter.put(b"%d" % number) for number in range(4)]
    for _ in ids:
        counter.take()
    done = counter.run(lambda work: counter.orders.complete(work, "mail", [ids[0], ids[1], ids[0], "nobody"]))
    assert kinds(done) == [None, None, None, NotFound]
    failed = counter.run(lambda work: counter.orders.fail(work, "mail", [ids[2], ids[2], ids[0]]))
    assert kinds(failed) == [None, None, NotFound]
    renewed = counter.run(lambda work: counter.orders.renew(work, "mail", [ids[2], ids[3], ids[2]]))
    assert kinds(renewed) == [None, WrongState, None]
    gone = counter.run(lambda work: counter.orders.abandon(work, "mail", [ids[3], ids[2], ids[3], ids[1]]))
    assert kinds(gone) == [None, None, None, NotFound]
    assert counter.stats() == {"acked": 2}


def test_two_step_claim_of_several_returns_as_many_as_there_are(counter: Counter) -> None:
    ids = [counter.put(b"%d" % number) for number in range(3)]
    claimed = counter.run(lambda work: counter.orders.claim(work, "mail", 2))
    assert [card.id for card in claimed] == ids[:2]
    assert len(counter.run(lambda work: counter.orders.claim(work, "mail", 5))) == 1
    assert counter.run(lambda work: counter.orders.claim(work, "mail", 5)) == []
