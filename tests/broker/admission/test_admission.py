"""What a processor does on every store: refuses with the field, changes no byte, makes messages that name a cause."""

import json
from hashlib import sha256
from typing import Any

import pytest

from tests.broker.admission.hooks import MODULE
from yirangmq.broker.admission.admission import INLINE_BYTES
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import BadPolicy, HookFailed, QuotaExceeded, TooLarge, Unfit
from yirangmq.core.events import Event, MessagesDied, MessagesRefused
from yirangmq.core.states import State
from yirangmq.format.envelope import NewMessage, digest_of

on_one_store = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
EVERY_BYTE = bytes(range(256))
PAYLOADS = [b"", EVERY_BYTE, b"\xff\xfe\xc3\x28", b'{"a": 1 }', "이체".encode("euc-kr"), b"\r\n\0"]


def process(queues: Queues, queue: str = "mail", **processor: Any) -> None:
    queues.set_policy(queue, {"processor": processor})


def hook(name: str, **more: Any) -> dict[str, Any]:
    return {"hook": f"{MODULE}:{name}", "timeoutSec": 60, **more}


# -- checks -----------------------------------------------------------------------------------------------------------


def test_admission_stores_no_refused_message_and_names_the_field(queues: Queues) -> None:
    process(queues, checks=[{"check": "length", "max": 4}, {"check": "encoding", "encoding": "ascii"}])
    with pytest.raises(Unfit, match=r"^payload: has 5 bytes, not at most 4 \(message m-1, check 'length' of queue"):
        queues.publish("mail", b"12345")
    with pytest.raises(Unfit, match="check 'encoding'") as caught:
        queues.publish("mail", b"\xff")
    assert (caught.value.code, caught.value.field) == ("unfit", "payload")
    assert queues.counts("mail").published == 0
    assert queues.publish("mail", b"1234").refused == ""


def test_admission_of_a_batch_refuses_all_of_it_for_a_single_bad_message(queues: Queues) -> None:
    process(queues, checks=[{"check": "length", "max": 4}])
    with pytest.raises(Unfit, match="message m-2"):
        queues.publish_many("mail", [b"1", b"12345", b"3"])
    assert queues.counts("mail").published == 0


def test_admission_of_a_large_batch_outside_the_committer_gives_the_same_answer(queues: Queues) -> None:
    queues.set_policy("mail", {"processor": {"checks": [{"check": "encoding", "encoding": "utf-8"}]}})
    fine = [b"a" * (INLINE_BYTES // 2)] * 3
    assert [one.duplicate for one in queues.publish_many("mail", fine)] == [False] * 3
    with pytest.raises(Unfit, match="message m-6"):
        queues.publish_many("mail", [*fine[:2], fine[0] + b"\xff"])
    assert queues.counts("mail").published == 3


def test_json_schema_and_header_checks_name_the_field_and_a_bad_schema_is_rejected_in_the_policy(
    queues: Queues,
) -> None:
    pytest.importorskip("jsonschema_rs")
    schema = {"type": "object", "properties": {"amount": {"type": "number"}}}
    process(
        queues,
        checks=[
            {"check": "headers", "fields": {"attributes.bank": {"is": "digits"}}},
            {"check": "schema", "schema": schema},
        ],
    )
    with pytest.raises(Unfit, match=r"^attributes\.bank: is missing"):
        queues.publish("mail", {"amount": 1})
    with pytest.raises(Unfit, match=r"^payload\.amount: "):
        queues.publish("mail", NewMessage(payload={"amount": "x"}, attributes={"bank": "012"}))
    queues.publish("mail", NewMessage(payload={"amount": 2}, attributes={"bank": "012"}))
    with pytest.raises(BadPolicy, match=r"processor\.checks\[0\]\.schema: is not a JSON Schema"):
        process(queues, checks=[{"check": "schema", "schema": {"type": "nonsense"}}])


def test_admission_refusals_are_counted_in_an_event(queues: Queues) -> None:
    told: list[Event] = []
    queues.add_listener(told.extend)
    process(queues, checks=[{"check": "length", "max": 1}])
    with pytest.raises(Unfit):
        queues.publish("mail", b"22")
    queues.publish("mail", b"1")
    assert MessagesRefused("mail", "unfit", 1) in told


def test_admission_accepts_any_payload_in_a_queue_without_a_processor(queues: Queues) -> None:
    process(queues, "other", checks=[{"check": "length", "max": 1}])
    assert queues.publish("mail", EVERY_BYTE).duplicate is False


# -- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("integrity", ["none", "sha256"])
def test_integrity_leaves_payload_bytes_unchanged_and_stores_a_digest_only_for_sha256(
    queues: Queues, integrity: str
) -> None:
    process(queues, integrity=integrity, checks=[{"check": "length", "max": 300}], hooks=[])
    queues.publish_many("mail", PAYLOADS)
    deliveries = queues.lease("mail", 100)
    assert [delivery.payload for delivery in deliveries] == PAYLOADS
    kept = [digest_of(delivery.envelope) for delivery in deliveries]
    wanted = [sha256(payload).hexdigest() for payload in PAYLOADS] if integrity == "sha256" else [""] * len(PAYLOADS)
    assert kept == wanted
    queues.ack([delivery.lease_id for delivery in deliveries])


def test_integrity_digest_given_by_the_sender_must_match_the_payload(queues: Queues) -> None:
    process(queues, integrity="sha256")
    right = sha256(b'{"a":1}').hexdigest()
    document = b'{"messageId": null, "payloadSha256": "%s", "type": "t", "payload": {"a":1}}'
    queues.publish_text("mail", [document % right.encode()])
    assert queues.lease("mail")[0].header["payloadSha256"] == right
    with pytest.raises(Unfit, match="payloadSha256: is 00"):
        queues.publish_text("mail", [document % b"00"])


def test_integrity_delivers_older_messages_that_have_no_digest(queues: Queues) -> None:
    queues.publish("mail", b"before")
    process(queues, integrity="sha256")
    queues.publish("mail", b"after")
    assert [one.payload for one in queues.lease("mail", 10)] == [b"before", b"after"]


@pytest.mark.parametrize("enabled", [True, False], ids=["dead", "parked"])
def test_integrity_never_delivers_a_damaged_payload_and_makes_it_dead_or_parked_as_corrupt(
    queues: Queues, enabled: bool
) -> None:
    told: list[Event] = []
    queues.add_listener(told.extend)
    queues.set_policy("mail", {"processor": {"integrity": "sha256"}, "dlq": {"enabled": enabled}})
    queues.publish_many("mail", [b"one", b"two", b"three"])

    def damage(transaction: Any) -> None:
        [card] = transaction.by_id("mail", ["m-2"])
        [envelope] = transaction.envelopes([card])
        transaction.rewrite([card], [envelope._replace(payload=b"twO")])

    queues.run(damage)
    assert [one.payload for one in queues.lease("mail", 10)] == [b"one", b"three"]
    look = queues.show("mail", "m-2")
    assert look.message.state is (State.DEAD if enabled else State.PARKED)
    assert look.failure is not None
    assert look.failure.reason_code == "CORRUPT"
    assert sha256(b"two").hexdigest() in look.failure.reason_message
    assert MessagesDied("mail", "CORRUPT", 1) in told
    assert queues.lease("mail", 10) == []


# -- hooks ------------------------------------------------------------------------------------------------------------


@pytest.mark.process
@on_one_store
def test_hook_accepts_or_refuses_a_message_and_a_failing_hook_is_reported(queues: Queues) -> None:
    process(queues, hooks=[hook("amount")])
    queues.publish("mail", {"amount": 5})
    with pytest.raises(Unfit, match=r"^payload\.amount: must not be negative \(message .*, check '.*hooks:amount'"):
        queues.publish("mail", {"amount": -5})
    with pytest.raises(Unfit, match=r"^payload: too much"):
        queues.publish("mail", {"amount": 500})
    with pytest.raises(HookFailed, match=r"hook .*:amount failed: KeyError: 'amount' \(message m-4, queue 'mail'\)"):
        queues.publish("mail", {"sum": 5})
    assert queues.counts("mail").published == 1


@pytest.mark.process
@on_one_store
def test_hook_results_and_exceptions_mean_accepted_refused_or_failed(queues: Queues) -> None:
    process(queues, hooks=[hook("says")])
    queues.publish_many("mail", [b"yes", b"nothing"])
    refused = {
        b"no": "payload: the hook refused the message",
        b"reason": "payload: because",
        b"value error": "payload: not one of ours",
        b"thing": "returned int",
        b"raise": "failed: KeyError",
        b"exit": "failed: SystemExit",
    }
    for payload, error in refused.items():
        with pytest.raises((Unfit, HookFailed), match=error):
            queues.publish("mail", payload)
    assert queues.counts("mail").published == 2


@pytest.mark.process
@on_one_store
def test_hook_that_cannot_be_loaded_is_named_in_the_error(queues: Queues) -> None:
    for name in ("missing", "not_a_function"):
        process(queues, hooks=[hook(name)])
        with pytest.raises(HookFailed, match=f"hook .*:{name} cannot be loaded"):
            queues.publish("mail", b"x")


@on_one_store
def test_hook_outside_the_allowed_modules_cannot_be_set_in_a_policy(queues: Queues) -> None:
    with pytest.raises(BadPolicy, match=r"hooks\[0\]\.hook: os:system may not run here: only those of tests"):
        process(queues, hooks=[{"hook": "os:system"}])


@on_one_store
def test_hook_outside_the_allowed_modules_is_not_run_when_set_directly_in_the_store(queues: Queues) -> None:
    queues.run(lambda transaction: transaction.set_policy("mail", '{"processor": {"hooks": [{"hook": "os:abort"}]}}'))
    with pytest.raises(HookFailed, match="os:abort may not run here"):
        queues.publish("mail", b"x")


# -- new messages -----------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_hook_produces_a_new_message_that_names_its_cause(queues: Queues) -> None:
    process(queues, hooks=[hook("shout", produces="loud")], integrity="sha256")
    queues.publish("mail", NewMessage(payload=b"hi \xff", trace_id="t-1", priority=3))
    [original] = queues.lease("mail", 10)
    [child] = queues.lease("loud", 10)
    assert (original.payload, original.id) == (b"hi \xff", "m-1")
    assert child.payload == b"HI \xff"
    assert child.id != original.id
    assert child.header["causation"] == {"queue": "mail", "messageId": "m-1", "hook": f"{MODULE}:shout"}
    assert (child.header["traceId"], child.header["attributes"]) == ("t-1", {"priority": 3})
    queues.publish("mail", b"quiet")
    assert queues.counts("loud").published == 1


@pytest.mark.process
def test_hook_produces_nothing_again_for_a_duplicate_message(queues: Queues) -> None:
    process(queues, hooks=[hook("split", produces="parts")])
    for _ in range(2):
        queues.publish("mail", NewMessage(payload=b"a,b", id="same"))
    values = [one.value() for one in queues.lease("parts", 10)]
    assert (values, queues.counts("parts").published) == ([{"part": "a"}, {"part": "b"}], 2)


@pytest.mark.process
def test_hook_with_original_record_keeps_the_original_as_history_and_needs_an_archive(queues: Queues) -> None:
    process(queues, hooks=[hook("shout", produces="loud", original="record")])
    queues.publish_many("mail", [NewMessage(payload=b"hi", delay=60, group="g"), b"quiet"])
    assert [one.payload for one in queues.lease("mail", 10)] == [b"quiet"]
    look = queues.show("mail", "m-1")
    assert look.envelope is not None
    assert (look.message.state, look.message.consumer, look.envelope.payload) == (State.DONE, "processor", b"hi")
    assert queues.counts("loud").delayed == 1  # it is as late as the one it was made from
    with pytest.raises(BadPolicy, match=r"hooks\[0\]\.original: needs archive"):
        queues.set_policy(
            "mail",
            {
                "processor": {"hooks": [hook("shout", produces="loud", original="record")]},
                "archive": {"enabled": False},
            },
        )


@pytest.mark.process
@on_one_store
def test_hook_produced_messages_pass_the_processor_of_their_own_queue(queues: Queues) -> None:
    process(queues, hooks=[hook("shout", produces="loud")])
    process(queues, "loud", checks=[{"check": "length", "max": 3}], hooks=[hook("shout", produces="louder")])
    queues.publish("mail", b"abc")
    assert [queues.counts(queue).ready for queue in ("mail", "loud", "louder")] == [1, 1, 1]
    with pytest.raises(Unfit, match="check 'length' of queue 'loud'"):
        queues.publish("mail", b"abcd")
    assert [queues.counts(queue).ready for queue in ("mail", "loud", "louder")] == [1, 1, 1]


@pytest.mark.process
@on_one_store
def test_hook_produced_message_that_cannot_be_stored_keeps_its_whole_batch_out(queues: Queues) -> None:
    process(queues, hooks=[hook("shout", produces="loud")])
    queues.set_policy("loud", {"quota": {"maxMessages": 1}})
    with pytest.raises(QuotaExceeded):
        queues.publish_many("mail", [b"a", b"b"])
    queues.set_policy("loud", {"maxBytes": 1})
    with pytest.raises(TooLarge, match="a hook made 2 bytes, queue 'loud' takes 1"):
        queues.publish_many("mail", [b"a", b"bb"])
    process(queues, hooks=[hook("broken", produces="loud")])
    with pytest.raises(HookFailed, match="returned an invalid message"):
        queues.publish("mail", b"a")
    assert (queues.counts("mail").published, queues.counts("loud").published) == (0, 0)


@pytest.mark.process
@on_one_store
def test_admission_refuses_processors_whose_hooks_form_a_cycle(queues: Queues) -> None:
    process(queues, hooks=[hook("shout", produces="loud")])
    process(queues, "loud", hooks=[hook("shout", produces="mail")])
    with pytest.raises(Unfit, match="form a cycle: mail → loud → mail"):
        queues.publish("mail", b"a")
    assert (queues.counts("mail").published, queues.counts("loud").published) == (0, 0)


# -- trying -----------------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_admission_dry_run_reports_verdicts_and_stores_nothing(queues: Queues) -> None:
    process(queues, checks=[{"check": "length", "max": 4}], hooks=[hook("shout", produces="loud")])
    report = queues.try_out("mail", [b"abc", b"12345"])
    assert (report["processor"], report["refused"]) == (True, 1)
    fine, wrong = report["messages"]
    assert (fine["ok"], fine["sha256"]) == (True, sha256(b"abc").hexdigest())
    assert fine["produces"] == [{"queue": "loud", "hook": f"{MODULE}:shout"}]
    assert (wrong["ok"], wrong["code"], wrong["field"]) == (False, "unfit", "payload")
    assert queues.counts("mail").published == queues.counts("loud").published == 0
    json.dumps(report)
