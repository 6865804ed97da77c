"""A schema newer than its messages, and messages that came past the door: checked before they are handed out."""

import json
from pathlib import Path

from yirangmq.broker.queues import Queues
from yirangmq.core.message import RANK_LAST, Envelope
from yirangmq.core.states import State
from yirangmq.format.envelope import NewMessage
from yirangmq.testing import open_for_test

WARM = {"schemas": {"reading": {"*": {"type": "object", "required": ["temp"]}}}}


def _reading(payload: object) -> NewMessage:
    return NewMessage(payload=payload, type="reading")


def test_json_schema_set_later_makes_waiting_messages_that_violate_it_dead_letters(queues: Queues) -> None:
    bad = [queues.publish("mail", _reading({"n": n})).id for n in range(3)]
    queues.publish("mail", _reading({"temp": 1}))
    queues.set_policy("mail", WARM)
    taken = queues.lease("mail", 2)
    assert [delivery.value() for delivery in taken] == [{"temp": 1}]
    for id in bad:
        look = queues.show("mail", id)
        assert (look.message.state, look.message.reason) == (State.DEAD, "VALIDATION_ERROR")
        assert look.failure is not None
        assert "temp" in look.failure.reason_message
    assert queues.counts("mail").dead == 3


def test_json_schema_set_later_is_not_checked_for_messages_delivered_before(queues: Queues) -> None:
    queues.publish("mail", _reading({"n": 1}))
    queues.nack(queues.lease("mail")[0].lease_id, delay=0)
    queues.set_policy("mail", WARM)
    assert [delivery.attempt for delivery in queues.lease("mail")] == [2]


def test_json_schema_check_of_an_unreadable_header_does_not_stop_the_queue() -> None:
    with open_for_test() as queues:
        now = queues.now_ms()
        queues.publish_envelopes("mail", [Envelope("mail", "x", RANK_LAST, now, now, 0, None, "{broken", b"1", True)])
        queues.publish("mail", _reading({"temp": 1}))
        queues.set_policy("mail", WARM)
        assert [delivery.value() for delivery in queues.lease("mail", 9)] == [{"temp": 1}]
        assert queues.counts("mail").dead == 1


def test_json_schema_applies_to_a_file_dropped_into_the_inbox_folder(tmp_path: Path) -> None:
    with open_for_test(f"files:{tmp_path}") as queues:
        queues.set_policy("mail", WARM)
        for name, payload in (("bad", {"n": 1}), ("good", {"temp": 1})):
            text = json.dumps({"messageId": name, "type": "reading", "payload": payload})
            (tmp_path / "mail" / "inbox" / f"{name}.json").write_text(text)
        assert [delivery.value() for delivery in queues.lease("mail", 9)] == [{"temp": 1}]
        assert queues.counts("mail").dead == 1
