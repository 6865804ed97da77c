"""Every verb on either face, over a unix socket and over TCP; what they give is what embedded queues give."""

import inspect
from typing import Any

import pytest

import yirangmq
from tests.client.parts import SOON, Connect
from tests.support.server import RunningServer
from yirangmq import NewMessage
from yirangmq.broker.queues import Queues
from yirangmq.broker.subscription import Subscription as EmbeddedSubscription
from yirangmq.client.async_client import AsyncClient
from yirangmq.client.producer import FRAME_MESSAGES
from yirangmq.client.sync_client import Client
from yirangmq.client.sync_client import ClientSubscription as ClientSubscription
from yirangmq.core.errors import BadInput, LeaseExpired, LeaseLost, LeaseMismatch, NotFound, QueueError, TooLarge
from yirangmq.core.message import Counts, Reason
from yirangmq.core.ports import AddResult
from yirangmq.core.states import State
from yirangmq.testing import CountingIds, ManualClock, open_for_test

ONLY_EMBEDDED = {"check", "add_listener", "now_ms", "wall_ms", "ahead_ms", "publish_envelopes", "read", "run"}
"""Of no use without the store itself."""
ONLY_CONNECTED = {"call", "ping"}


def public(kind: type) -> dict[str, Any]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_") and callable(member)}


def arguments(verb: Any) -> list[tuple[str, Any, Any]]:
    [_, *given] = inspect.signature(verb).parameters.values()
    return [(one.name, one.kind, one.default) for one in given]


def test_client_api_has_the_methods_and_arguments_of_embedded_queues() -> None:
    embedded, connected = public(Queues), public(Client)
    assert embedded.keys() - ONLY_EMBEDDED == connected.keys() - ONLY_CONNECTED
    for name in embedded.keys() & connected.keys():
        assert arguments(embedded[name]) == arguments(connected[name]), name


def test_subscription_api_has_the_methods_and_arguments_of_the_embedded_subscription() -> None:
    embedded, connected = public(EmbeddedSubscription), public(ClientSubscription)
    assert embedded.keys() == connected.keys()
    for name in embedded:
        assert arguments(embedded[name]) == arguments(connected[name]), name


def test_client_api_and_async_api_have_the_same_methods_arguments_and_docstrings() -> None:
    blocking, awaited = public(Client), public(AsyncClient)
    assert blocking.keys() == awaited.keys() - {"connect"}
    for name, verb in blocking.items():
        assert arguments(verb) == arguments(awaited[name]), name
        assert verb.__doc__ == awaited[name].__doc__


@pytest.mark.parametrize("door", ["unix", "tcp"])
def test_client_publish_lease_and_ack_work_over_a_unix_socket_and_tcp(
    server: RunningServer, connecting: Connect, door: str
) -> None:
    queues = connecting(getattr(server, door))
    assert queues.publish("mail", {"to": "ann"}) == AddResult(0, "m-1", False)
    [delivery] = queues.lease("mail")
    assert (delivery.id, delivery.queue, delivery.attempt, delivery.value()) == ("m-1", "mail", 1, {"to": "ann"})
    queues.ack(delivery.lease_id)
    assert queues.counts("mail") == Counts(done=1, published=1, acked=1)


def test_delivery_of_a_client_equals_that_of_embedded_queues_in_every_member(queues: Any) -> None:
    messages = [
        {"to": "ann"},
        bytes(range(256)),
        NewMessage(payload=[1], type="t", version=2, attributes={"ü": "é"}, trace_id="x", priority=7),
        NewMessage(payload=b"%PDF", content_type="application/pdf", timestamp="2026-01-13T09:21:00+09:00"),
    ]
    embedded = open_for_test(clock=ManualClock(), ids=CountingIds())
    for one in (queues, embedded):
        one.set_policy("mail", {"visibilityTimeoutSec": 60})
        one.publish_many("mail", messages)
    for got, expected in zip(queues.lease("mail", 9), embedded.lease("mail", 9), strict=True):
        for name in ("id", "queue", "payload", "lease_id", "attempt", "lease_until", "consumer", "header", "policy"):
            assert getattr(got, name) == getattr(expected, name), name
        assert got.value() == expected.value()
        assert got.as_json() == expected.as_json()


def test_publish_many_keeps_the_order_over_many_frames(queues: Any) -> None:
    stored = queues.publish_many("mail", [{"n": n} for n in range(1000)])
    assert [one.id for one in stored] == [f"m-{n}" for n in range(1, 1001)]
    got: list[int] = []
    while batch := queues.lease("mail", 300):
        got += [delivery.value()["n"] for delivery in batch]
    assert got == list(range(1000))


def test_publish_many_accepts_an_iterator_of_unknown_length(queues: Any) -> None:
    assert len(queues.publish_many("mail", (str(n) for n in range(500)))) == 500
    assert queues.publish_many("mail", []) == queues.publish_many("mail", iter(())) == []
    assert queues.counts("mail").ready == 500


def test_payload_of_1_mib_or_of_any_bytes_is_unchanged(queues: Any) -> None:
    payloads = [bytes(range(256)) * 4096, b"", b"\x00", b"\xff" * 300_000, bytes(reversed(range(256)))]
    queues.publish_many("mail", payloads)
    got: list[bytes] = []
    while batch := queues.lease("mail", 10):
        got += [delivery.payload for delivery in batch]
    assert got == payloads


def test_publish_many_of_a_list_with_a_bad_message_sends_nothing(queues: Any) -> None:
    with pytest.raises(BadInput) as caught:
        queues.publish_many("mail", [*range(999), NewMessage(payload=1, delay=-1)])
    assert (caught.value.field, caught.value.receipts, queues.queues()) == ("delay", [], [])


def test_publish_many_of_an_iterator_with_a_bad_message_reports_the_receipts_before_it(queues: Any) -> None:
    with pytest.raises(BadInput) as caught:
        queues.publish_many("mail", iter([*range(3 * FRAME_MESSAGES + 8), object()]))
    stored = [one.id for one in caught.value.receipts]
    assert stored == [f"m-{n}" for n in range(1, len(stored) + 1)]
    assert queues.counts("mail").ready == len(stored) == 3 * FRAME_MESSAGES


def test_publish_many_with_a_refused_frame_reports_the_receipts_around_it(queues: Any) -> None:
    queues.set_policy("mail", {"maxBytes": 1000})
    with pytest.raises(TooLarge) as caught:
        queues.publish_many("mail", [b"x" * (1001 if n == FRAME_MESSAGES + 40 else 1) for n in range(5000)])
    receipts = caught.value.receipts
    frames = [receipts[begin : begin + FRAME_MESSAGES] for begin in range(0, 3 * FRAME_MESSAGES, FRAME_MESSAGES)]
    assert [{one is None for one in frame} for frame in frames] == [{False}, {True}, {False}]
    assert queues.counts("mail").ready == sum(one is not None for one in receipts) < 5000


def test_publish_text_accepts_envelopes_and_bare_payloads(queues: Any) -> None:
    texts = [b'{"messageId":"a","type":"t","payload": {"n": 1.0} }', b" [1] "]
    assert [one.id for one in queues.publish_text("mail", texts, delay=5)] == ["a", "m-2"]
    assert queues.counts("mail").delayed == 2
    assert queues.show("mail", "a").envelope.payload == b'{"n": 1.0}'


def test_publish_text_reads_an_envelope_by_the_rule_of_every_protocol(everyones: Any) -> None:
    """On an opened store and by both faces of the client."""
    user, whole = b'{"type":"order","payload":{"n":1}}', b'{"messageId":"m","payload":1}'
    everyones.publish_text("mail", [user, whole])
    everyones.publish_text("mail", [user], read_as="envelope")
    everyones.publish_text("mail", [whole], read_as="payload")
    sent = [view.envelope for view in everyones.peek("mail")]
    assert [one.payload for one in sent] == [user, b"1", b'{"n":1}', whole]
    assert ["order" in one.header for one in sent] == [False, False, True, False]


def test_dedup_by_message_id_or_key_is_reported(queues: Any) -> None:
    queues.publish("mail", NewMessage(payload=1, id="one", deduplication_key="k"))
    again, other = queues.publish_many(
        "mail", [NewMessage(payload=1, id="one"), NewMessage(payload=1, id="two", deduplication_key="k")]
    )
    assert (again.id, again.duplicate, other.id, other.duplicate) == ("one", True, "one", True)


def test_json_schema_refusal_of_a_message_is_reported_in_its_receipt(queues: Any) -> None:
    queues.set_policy("mail", {"schemas": {"t": {"*": {"type": "integer"}}}})
    fit, unfit = queues.publish_many("mail", [NewMessage(payload=1, type="t"), NewMessage(payload="1", type="t")])
    assert fit.refused == ""
    assert unfit.refused.startswith("payload: ")


def test_lease_request_with_a_wait_returns_empty_at_its_end(queues: Any) -> None:
    assert queues.lease("mail", wait=0.05) == []


def test_lease_has_the_requested_length_and_consumer(queues: Any, clock: ManualClock) -> None:
    queues.publish_many("mail", [1, 2])
    [one] = queues.lease("mail", lease_seconds=5, consumer="me")
    [two] = queues.lease("mail")
    assert (one.consumer, one.lease_until) == ("me", clock.now_ms() / 1000 + 5)
    assert (two.consumer, two.lease_until) == ("tester", clock.now_ms() / 1000 + 30)
    with pytest.raises(LeaseMismatch):
        queues.ack(two.lease_id, consumer="me")


def test_ack_many_nack_many_and_extend_many_report_each_lease(queues: Any, clock: ManualClock) -> None:
    queues.publish_many("mail", range(3))
    leases = [delivery.lease_id for delivery in queues.lease("mail", 3)]
    assert queues.ack_many([leases[0], "999-1"])[0] is None
    assert isinstance(queues.ack_many([leases[0], "999-1"])[1], NotFound)
    assert queues.extend_many(leases[1:], 100) == [None, None]
    clock.advance(99_000)
    assert queues.nack_many([leases[1]], Reason.TIMEOUT, "slow", delay=7) == [None]
    clock.advance(1_000)
    with pytest.raises(LeaseExpired):
        queues.release(leases[2])
    assert queues.ack_many([]) == queues.nack_many([]) == queues.extend_many([]) == queues.release_many([]) == []


def test_release_makes_a_message_ready_at_once_without_counting_an_attempt(queues: Any) -> None:
    queues.publish("mail", 1)
    [delivery] = queues.lease("mail")
    queues.release(delivery.lease_id)
    assert [again.attempt for again in queues.lease("mail")] == [1]


def test_nack_keeps_reason_and_text(queues: Any) -> None:
    queues.publish("mail", 1)
    queues.nack(queues.lease("mail")[0].lease_id, Reason.REJECTED, "never")
    look = queues.show("mail", "m-1")
    assert (look.message.state, look.failure.reason_code, look.failure.reason_message) == (
        State.DEAD,
        Reason.REJECTED,
        "never",
    )
    assert look.record()["routing"] == {"sourceQueue": "mail", "dlqQueue": "mail-dlq"}


def test_peek_and_walk_lease_nothing_and_walk_joins_pages(queues: Any) -> None:
    queues.publish_many("mail", [b"x" * 300_000 for _ in range(12)])
    assert [look.message.id for look in queues.peek("mail", 10)] == [f"m-{n}" for n in range(1, 11)]
    assert [look.message.id for look in queues.walk("mail", "ready", 5)] == [f"m-{n}" for n in range(1, 13)]
    assert queues.peek("mail", state="dead") == []
    assert queues.counts("mail").ready == 12


def test_admin_calls_for_policy_pause_schedules_drop_and_delete_work(queues: Any) -> None:
    assert queues.check_policy("mail", {"ttlSec": 5})["ttlSec"] == 5
    assert queues.set_policy("mail", {"ttlSec": 6}) == queues.policy("mail")
    assert queues.set_policy("mail", None)["ttlSec"] == 0
    assert (queues.pause("mail"), queues.pause("mail"), queues.resume("mail"), queues.resume("mail")) == (
        True,
        False,
        True,
        False,
    )
    assert queues.schedules() == queues.schedules("mail") == []
    queues.publish_many("mail", [1, 2])
    gone, missing = queues.drop("mail", ["m-1", "m-9"])
    assert gone is None
    assert isinstance(missing, NotFound)
    assert queues.drop("mail", []) == []
    queues.delete_queue("mail")
    assert (queues.queues(), queues.durability()) == ([], "none")


def test_sweep_makes_due_delayed_messages_ready(queues: Any, clock: ManualClock) -> None:
    queues.publish_many("mail", [NewMessage(payload=n, delay=5) for n in range(3)])
    assert queues.sweep() == 0
    clock.advance(5_000)
    assert queues.sweep() == 3
    assert queues.counts("mail").ready == 3


def test_consumer_registry_lists_consumers_and_hands_them_operator_requests(queues: Any) -> None:
    assert queues.consumer_beat({"consumerId": "c", "queues": ["mail"]}) == ""
    assert queues.consumer_wish("c", "pause")["consumerId"] == "c"
    assert [card["consumerId"] for card in queues.consumer_list()] == ["c"]
    assert queues.consumer_beat({"consumerId": "c"}) == "pause"


def test_client_call_runs_a_method_by_name_and_suggests_a_misspelt_name(queues: Any) -> None:
    assert queues.call("health")["status"] == "ok"
    with pytest.raises(BadInput, match="did you mean 'counts'"):
        queues.call("count", queue="mail")
    with pytest.raises(BadInput) as caught:
        queues.call("counts", queue=object())
    assert caught.value.field == "values"
    assert 0 < queues.ping() < SOON


def test_payload_larger_than_the_server_accepts_is_refused_by_the_client(queues: Any, server: RunningServer) -> None:
    with pytest.raises(TooLarge, match="the server takes"):
        queues.publish("mail", b"x" * (17 << 20))
    assert queues.publish("mail", b"x").id == "m-2"


@pytest.mark.parametrize("leases", [[7], [None], ["1-1", b"1-1"]])
def test_ack_many_of_invalid_lease_ids_is_refused_by_field(queues: Any, leases: list[Any]) -> None:
    with pytest.raises(BadInput) as caught:
        queues.ack_many(leases)
    assert caught.value.field == "leaseId"


def test_lease_that_is_stale_raises_lease_lost_on_ack(queues: Any, clock: ManualClock) -> None:
    queues.publish("mail", 1)
    [first] = queues.lease("mail")
    clock.advance(31_000)
    queues.sweep()
    clock.advance(1_000)
    [second] = queues.lease("mail")
    assert second.attempt == 2
    with pytest.raises(LeaseLost) as caught:
        queues.ack(first.lease_id)
    assert isinstance(caught.value, QueueError)
    queues.ack(second.lease_id)


def test_connect_with_a_store_url_opens_embedded_queues(tmp_path: Any) -> None:
    with yirangmq.connect(f"sqlite:{tmp_path / 'a.db'}", consumer="me") as queues:
        assert isinstance(queues, Queues)
        assert (queues.publish("mail", 1).duplicate, queues.consumer) == (False, "me")
