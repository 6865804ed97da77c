"""``config/policy.json``: what a person writes there holds from the next call on."""

from pathlib import Path

import pytest

from tests.stores.files.parts import document, open_queues
from yirangmq import NewMessage
from yirangmq.core.errors import BadPolicy
from yirangmq.testing import ManualClock


def test_policy_is_kept_as_a_json_file(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        queues.set_policy("mail", {"retry": {"limit": 2}})
        path = tmp_path / "mail" / "config" / "policy.json"
        assert document(path) == {"retry": {"limit": 2}}
        queues.set_policy("mail", None)
        assert not path.exists()


def test_policy_file_edited_by_hand_takes_effect_at_the_next_call(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_queues(tmp_path, clock) as queues:
        queues.publish("mail", 1)
        path = tmp_path / "mail" / "config" / "policy.json"
        for seconds in (10, 20):
            path.write_text(f'{{"visibilityTimeoutSec": {seconds}}}')
            [delivery] = queues.lease("mail")
            assert delivery.message.due_at == clock.now_ms() + seconds * 1000
            queues.nack(delivery.lease_id, delay=0)
        path.unlink()
        assert queues.policy("mail")["visibilityTimeoutSec"] == 30


@pytest.mark.parametrize("text", ["{", "", '{"ttlSec":-1}', '{"retrys":{}}', "[]"])
def test_policy_file_that_is_broken_raises_an_error_naming_the_file(tmp_path: Path, text: str) -> None:
    with open_queues(tmp_path) as queues:
        queues.publish("mail", 1)
        path = tmp_path / "mail" / "config" / "policy.json"
        path.write_text(text)
        for call in (lambda: queues.lease("mail"), lambda: queues.publish("mail", 2), lambda: queues.policy("mail")):
            with pytest.raises(BadPolicy, match=r"policy\.json"):
                call()
        path.write_text("{}")
        assert len(queues.lease("mail", 9)) == 1


def test_policy_file_that_is_broken_does_not_stop_other_queues(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_queues(tmp_path, clock) as queues:
        for queue in ("mail", "post"):
            queues.publish_many(queue, [NewMessage(payload=n, delay=n) for n in range(2)])
            queues.ack(queues.lease(queue)[0].lease_id)
        path = tmp_path / "mail" / "config" / "policy.json"
        path.write_text("{")
        clock.advance(1_000)
        assert queues.sweep() == 1
        assert [delivery.value() for delivery in queues.lease("post", 9)] == [1]
        path.unlink()
        assert [delivery.value() for delivery in queues.lease("mail", 9)] == [1]
