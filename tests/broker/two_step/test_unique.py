"""A queue in which no two messages have the same payload, however they came in and whenever it became so."""

from typing import Any

import pytest

from tests.broker.two_step.counter import Counter
from yirangmq.broker import unique_payloads
from yirangmq.broker.unique_payloads import FOREVER, MARK, key_of
from yirangmq.core.errors import WrongState
from yirangmq.core.policy import Defaults
from yirangmq.core.ports import Transaction


def make_unique(counter: Counter, *, unique: bool | None = True, queue: str = "mail") -> None:
    counter.queues.set_policy(queue, {"unique": unique, "retry": {"limit": None}})


def refuses(counter: Counter, body: bytes) -> bool:
    """Whether a draft may have this content; it is left a draft."""
    id = counter.draft()
    try:
        counter.set(id, body)
    except WrongState:
        assert "draft" in counter.stats()
        counter.abandon(id)
        return True
    counter.abandon(id)
    return False


def keys(counter: Counter, *payloads: bytes) -> list[Any]:
    def work(transaction: Transaction) -> list[Any]:
        return transaction.key_holders("mail", [key_of(one) for one in payloads], counter.clock.now_ms())

    return counter.run(work)


def test_unique_payload_is_not_required_by_default(counter: Counter) -> None:
    counter.put(b"same")
    assert not refuses(counter, b"same")


@pytest.mark.parametrize("state", ["waiting", "ordered", "active", "failed", "delayed"])
def test_unique_payload_refuses_the_same_payload_in_every_state(counter: Counter, state: str) -> None:
    make_unique(counter)
    counter.put(b"same")
    if state == "delayed":
        [delivery] = counter.queues.lease("mail")
        counter.queues.nack(delivery.lease_id, delay=600)
    if state in ("ordered", "active", "failed"):
        id = counter.order()
        assert id is not None
        if state != "ordered":
            counter.get(id)
        if state == "failed":
            counter.fail(id)
    assert refuses(counter, b"same")
    assert not refuses(counter, b"other")


@pytest.mark.parametrize("end", ["complete", "abandon", "ack", "drop", "rewrite", "clear", "expire"])
def test_unique_payload_is_free_again_when_its_message_is_finished_or_changed(counter: Counter, end: str) -> None:
    counter.queues.set_policy("mail", {"unique": True, "ttlSec": 5})
    id = counter.put(b"same")
    match end:
        case "complete":
            counter.take()
            counter.complete(id)
        case "abandon":
            counter.abandon(id)
        case "ack":
            counter.queues.ack(counter.queues.lease("mail")[0].lease_id)
        case "drop":
            counter.queues.drop("mail", [id])
        case "rewrite":
            counter.set(id, b"different")
        case "clear":
            counter.queues.bulk.clear("mail")
        case "expire":
            counter.pass_time(5_000)
            counter.queues.sweep()
    assert keys(counter, b"same") == [None]
    assert not refuses(counter, b"same")


def test_unique_payload_may_be_set_again_on_the_same_message(counter: Counter) -> None:
    make_unique(counter)
    id = counter.put(b"same")
    counter.set(id, b"same", "text/plain")
    assert refuses(counter, b"same")


def test_unique_payload_refusal_of_a_set_changes_nothing(counter: Counter) -> None:
    make_unique(counter)
    first, second = counter.put(b"1"), counter.put(b"2")
    with pytest.raises(WrongState, match=first):
        counter.set(second, b"1")
    assert counter.get(second) == b"2"
    assert refuses(counter, b"2")


def test_unique_payload_published_again_is_a_duplicate_that_names_the_existing_message(counter: Counter) -> None:
    make_unique(counter)
    known = counter.put(b"known")
    stored = counter.queues.publish_many("mail", [b"known", b"new", b"new", b"more"])
    assert [one.duplicate for one in stored] == [True, False, True, False]
    assert stored[0].id == known
    assert stored[2].id == stored[1].id
    assert counter.stats() == {"ready": 3}
    assert refuses(counter, b"more")


def test_unique_payload_is_compared_only_within_its_queue(counter: Counter) -> None:
    for queue in ("mail", "other"):
        make_unique(counter, queue=queue)
        counter.put(b"same", queue=queue)
    assert counter.stats("other") == {"ready": 1}


def test_unique_payload_index_includes_messages_that_were_there_before(counter: Counter) -> None:
    for number in range(220):
        counter.queues.publish("mail", b"%d" % number)
    counter.queues.lease("mail", 20)
    make_unique(counter)
    assert all(refuses(counter, b"%d" % number) for number in (0, 19, 20, 210, 219))
    assert not refuses(counter, b"220")


def test_unique_payload_keeps_old_duplicates_and_each_of_them_counts(counter: Counter) -> None:
    first, second, third = (counter.put(b"same") for _ in range(3))
    make_unique(counter)
    for id in (second, first):
        counter.abandon(id)
        assert refuses(counter, b"same")
    with pytest.raises(WrongState):
        counter.set(counter.put(b"other"), b"same")
    counter.abandon(third)
    assert not refuses(counter, b"same")


def test_unique_payload_refuses_to_set_either_of_two_old_duplicates_to_their_common_payload(counter: Counter) -> None:
    first, second = counter.put(b"same"), counter.put(b"same")
    make_unique(counter)
    for id in (first, second):
        with pytest.raises(WrongState):
            counter.set(id, b"same")
    counter.set(first, b"different")
    assert refuses(counter, b"same")
    counter.set(second, b"same")


def test_unique_payload_switched_off_removes_keys_and_switched_on_includes_new_messages(counter: Counter) -> None:
    make_unique(counter)
    id = counter.put(b"before")
    make_unique(counter, unique=False)
    assert keys(counter, b"before") == [None]
    counter.put(b"meanwhile")
    assert not refuses(counter, b"meanwhile")
    counter.set(id, b"changed")
    make_unique(counter)
    assert refuses(counter, b"meanwhile")
    assert refuses(counter, b"changed")
    assert not refuses(counter, b"before")


def test_unique_payload_is_refused_also_for_messages_that_bypassed_the_index(counter: Counter) -> None:
    """A policy that was changed by hand, an import, another server's defaults: nobody told us."""
    make_unique(counter)
    counter.put(b"first")
    counter.run(lambda work: work.set_policy("mail", '{"unique":false}'))
    id = counter.put(b"past")
    counter.put(b"to be changed")
    counter.set(id, b"changed")
    counter.run(lambda work: work.set_policy("mail", '{"unique":true}'))
    assert refuses(counter, b"changed")
    assert refuses(counter, b"first")
    assert not refuses(counter, b"past")


def test_unique_payload_key_of_a_missing_or_changed_message_refuses_nothing(counter: Counter) -> None:
    make_unique(counter)
    id = counter.put(b"real")
    seq = counter.queues.show("mail", id).message.seq
    stale = {key_of(b"nobody's"): (10**6, "gone"), key_of(b"not his"): (seq, id)}
    counter.run(lambda work: work.hold_keys("mail", stale, FOREVER))
    assert not refuses(counter, b"nobody's")
    assert not refuses(counter, b"not his")
    assert refuses(counter, b"real")


@pytest.mark.parametrize("defaults", [Defaults(unique=True)])
def test_unique_payload_default_of_the_server_applies_where_the_queue_sets_none(counter: Counter) -> None:
    counter.put(b"same")
    assert refuses(counter, b"same")
    make_unique(counter, unique=False)
    assert not refuses(counter, b"same")
    make_unique(counter, unique=None)
    assert refuses(counter, b"same")


def test_unique_payload_includes_the_empty_payload_and_no_draft(counter: Counter) -> None:
    make_unique(counter)
    counter.draft()
    counter.put(b"")
    assert refuses(counter, b"")


def test_unique_payload_index_is_built_page_by_page_while_the_queue_is_in_use(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that come and go between two pages, in every direction."""
    monkeypatch.setattr(unique_payloads, "PER_PAGE", 25)
    counter.queues.publish_many("mail", [b"%d" % number for number in range(150)])
    taken = counter.queues.lease("mail", 50)
    pages = 0
    run = counter.queues.run

    def busy(work: Any) -> Any:
        nonlocal pages
        answer = run(work)
        pages += 1
        if pages == 6:  # between the pages of those in line
            counter.queues.release([one.lease_id for one in taken[:25]])
            counter.queues.lease("mail", 30)
            counter.queues.ack([one.lease_id for one in taken[25:30]])
        return answer

    counter.queues.run = busy  # type: ignore[method-assign]
    make_unique(counter)
    counter.queues.run = run  # type: ignore[method-assign]
    assert pages > 12
    marked = counter.run(lambda work: work.key_holders("mail", [MARK], counter.clock.now_ms()))
    assert marked == [(150, "all")]
    known = [b"%d" % number for number in range(150) if not 25 <= number < 30]
    assert None not in keys(counter, *known)
    assert keys(counter, *(b"%d" % number for number in range(25, 30))) == [None] * 5
