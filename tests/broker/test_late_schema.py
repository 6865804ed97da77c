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


def test_what_waited_and_does_not_fit_a_new_schema_goes_to_the_dead_letters(queues: Queues) -> None:
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


def test_what_was_handed_out_before_is_not_checked_again(queues: Queues) -> None:
    queues.publish("mail", _reading({"n": 1}))
    queues.nack(queues.lease("mail")[0].lease_id, delay=0)
    queues.set_policy("mail", WARM)
    assert [delivery.attempt for delivery in queues.lease("mail")] == [2]


def test_an_unreadable_header_does_not_stop_a_queue_with_schemas() -> None:
    with open_for_test() as queues:
        now = queues.now_ms()
        queues.publish_envelopes("mail", [Envelope("mail", "x", RANK_LAST, now, now, 0, None, "{broken", b"1", True)])
        queues.publish("mail", _reading({"temp": 1}))
        queues.set_policy("mail", WARM)
        assert [delivery.value() for delivery in queues.lease("mail", 9)] == [{"temp": 1}]
        assert queues.counts("mail").dead == 1


def test_a_file_dropped_into_a_folder_is_held_to_the_schema(tmp_path: Path) -> None:
    with open_for_test(f"files:{tmp_path}") as queues:
        queues.set_policy("mail", WARM)
        for name, payload in (("bad", {"n": 1}), ("good", {"temp": 1})):
            text = json.dumps({"type": "reading", "payload": payload})
            (tmp_path / "mail" / "inbox" / f"{name}.json").write_text(text)
        assert [delivery.value() for delivery in queues.lease("mail", 9)] == [{"temp": 1}]
        assert queues.counts("mail").dead == 1
