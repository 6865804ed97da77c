"""A paused queue hands nothing out, for as long as it is paused, whoever asks; everything else goes on."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.queues import SECOND, state, take, taken
from tests.support.session import Server
from tests.support.stores import Place
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import BadPolicy, NotFound
from yirangmq.core.states import State
from yirangmq.stores.open import open_store
from yirangmq.testing import CountingIds, FailingStore, ManualClock, open_for_test
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind


def test_pause_stops_delivery_while_publishing_continues(queues: Queues) -> None:
    queues.publish("mail", 1)
    assert queues.pause("mail") is True
    assert queues.lease("mail") == []
    queues.publish("mail", 2)
    assert queues.counts("mail").ready == 2
    assert queues.resume("mail") is True
    assert taken(queues) == ["m-1", "m-2"]


def test_pause_affects_only_its_queue(queues: Queues) -> None:
    queues.publish("mail", 1)
    queues.publish("post", 2)
    queues.pause("mail")
    assert taken(queues, queue="post") == ["m-2"]


def test_pause_still_allows_leased_messages_to_be_extended_and_settled(queues: Queues) -> None:
    queues.publish_many("mail", [1, 2, 3])
    first, second, third = (take(queues) for _ in range(3))
    queues.pause("mail")
    queues.extend(first.lease_id, 60)
    queues.ack(first.lease_id)
    queues.nack(second.lease_id, delay=0)
    queues.release(third.lease_id)
    assert queues.lease("mail") == []
    assert [state(queues, f"m-{n}") for n in (1, 2, 3)] == [State.DONE, State.READY, State.READY]


def test_pause_does_not_stop_leases_from_expiring(queues: Queues, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    take(queues)
    queues.pause("mail")
    clock.advance(30 * SECOND)
    assert queues.lease("mail") == []
    assert state(queues) is State.READY


def test_pause_survives_a_restart(queues: Queues, place: Place, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    queues.pause("mail")
    again = open_for_test(store=place.reopen(), clock=clock, ids=CountingIds("n"))
    assert again.lease("mail") == []
    assert again.policy("mail")["paused"] is True
    again.resume("mail")
    assert taken(again) == ["m-1"]


def document(place: Place) -> Any:
    """The policy of mail as the store has it."""
    with place.open().transaction(write=False) as transaction:
        text = transaction.policy_text("mail")
    return None if text is None else json.loads(text)


def test_pause_and_resume_leave_the_rest_of_the_policy_unchanged(queues: Queues, place: Place) -> None:
    before = {"ttlSec": 3600, "retry": {"limit": 2}}
    queues.set_policy("mail", before)
    queues.pause("mail")
    assert document(place) == before | {"paused": True}
    queues.resume("mail")
    assert document(place) == before


def test_pause_and_resume_of_a_queue_without_a_policy_leave_it_without_a_policy(queues: Queues, place: Place) -> None:
    queues.publish("mail", 1)
    queues.pause("mail")
    queues.resume("mail")
    assert document(place) is None


def test_pause_and_resume_repeated_change_nothing(queues: Queues) -> None:
    queues.publish("mail", 1)
    assert [queues.pause("mail"), queues.pause("mail")] == [True, False]
    assert [queues.resume("mail"), queues.resume("mail")] == [True, False]


def test_pause_of_an_unknown_queue_is_rejected_and_creates_no_queue(queues: Queues) -> None:
    with pytest.raises(NotFound, match="nobody"):
        queues.pause("nobody")
    assert queues.queues() == []


def test_pause_can_be_set_by_the_policy(queues: Queues) -> None:
    queues.publish("mail", 1)
    queues.set_policy("mail", {"paused": True})
    assert queues.lease("mail") == []
    queues.set_policy("mail", None)
    assert taken(queues) == ["m-1"]


def test_resume_does_not_overwrite_a_policy_file_that_was_broken_by_hand(tmp_path: Path) -> None:
    with open_for_test(f"files:{tmp_path}") as queues:
        queues.publish("mail", 1)
        queues.pause("mail")
        file = tmp_path / "mail" / "config" / "policy.json"
        file.write_text('{"paused": tru')
        with pytest.raises(BadPolicy):
            queues.resume("mail")
        assert file.read_text() == '{"paused": tru'


# -- those who wait ---------------------------------------------------------------------------------------------------


def test_resume_serves_waiting_subscribers_and_lease_requests_at_once() -> None:
    server = Server()
    producer, subscriber, waiter = server.client(), server.client(), server.client()
    producer.publish("mail", b"1", b"2", b"3")
    producer.call("queue_pause", queue="mail")
    pushed = subscriber.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 2, None, "s"))
    waiting = waiter.send(FrameKind.LEASE, messages.Lease("mail", 1, 30_000, None, "w"))
    server.turn()
    assert subscriber.heard(pushed) == []
    assert waiter.heard(waiting) == []
    producer.publish("mail", b"4")
    assert subscriber.heard(pushed) == []
    producer.call("queue_resume", queue="mail")
    assert [len(answer.value.messages) for answer in subscriber.heard(pushed)] == [2]
    assert [len(answer.value.messages) for answer in waiter.heard(waiting)] == [1]


def test_pause_removed_from_the_policy_serves_waiting_subscribers() -> None:
    server = Server()
    client = server.client()
    client.publish("mail", b"1")
    client.call("set_policy", queue="mail", document={"paused": True})
    pushed = client.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 2, None, "s"))
    server.turn()
    assert client.heard(pushed) == []
    client.call("set_policy", queue="mail", document=None)
    assert [len(answer.value.messages) for answer in client.heard(pushed)] == [1]


def test_pause_with_a_policy_file_broken_by_hand_stops_no_other_queue(tmp_path: Path) -> None:
    store = FailingStore(open_store(f"files:{tmp_path}", durability="os"))
    server = Server(store)
    client = server.client()
    client.publish("mail", b"1")
    client.call("set_policy", queue="mail", document={"paused": True})
    pushed = client.send(FrameKind.SUBSCRIBE, messages.Subscribe("mail", 2, None, "s"))
    server.turn()
    file = tmp_path / "mail" / "config" / "policy.json"
    file.write_text("{")
    server.desk.notify_external_change()
    before = store.commits, store.transactions
    for queue in ("a", "b"):
        client.send(FrameKind.PUBLISH, messages.Publish(queue, [messages.OutgoingMessageBody(b"1", False)]))
    server.turn()
    assert (store.commits - before[0], store.transactions - before[1]) == (1, 1)
    file.unlink()
    server.desk.notify_external_change()
    server.turn()
    assert [len(answer.value.messages) for answer in client.heard(pushed)] == [1]
    store.close()
