"""Through every door of a real server: bytes come out as they went in, and what is refused is refused alike."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.broker.admission.hooks import MODULE
from tests.broker.admission.live import DOORS, HttpDoor, Refusal, served
from tests.support.daemon_thread import DaemonThread
from tests.support.wait import until
from yirangmq.client.connect import connect
from yirangmq.client.sync_client import Client
from yirangmq.core.errors import HookFailed, Unfit
from yirangmq.core.states import State

PAYLOADS = {
    "every-byte": bytes(range(256)),
    "no-utf8": b"\xff\xfe\xc3\x28\xed\xa0\x80",
    "euc-kr": "이체 요청".encode("euc-kr"),
    "zeros": b"\0\0\r\n\0",
}
CHAIN: dict[str, Any] = {"integrity": "sha256", "checks": [{"check": "length", "max": 1000}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonThread]:
    folder = tmp_path_factory.mktemp("served")
    with served(folder / "d", processors=json.dumps({"*": CHAIN, "free": {}})) as server:
        yield server


@pytest.fixture
def client(server: DaemonThread) -> Iterator[Client]:
    with connect(server.unix, consumer="looker") as client:
        yield client


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest, server: DaemonThread) -> Iterator[Any]:
    door = DOORS[request.param](server)
    door.name = request.param
    try:
        yield door
    finally:
        door.close()


def test_integrity_keeps_payload_bytes_unchanged_over_every_protocol(
    server: DaemonThread, client: Client, door: Any
) -> None:
    queue = f"bytes-{door.name}"
    for payload in PAYLOADS.values():
        door.send(queue, payload)
        [look] = client.peek(queue)
        assert look.envelope is not None
        assert (look.envelope.payload, sha256(payload).hexdigest()) == (payload, _digest(look.envelope.header))
        assert door.take(queue) == payload


def _digest(header: str) -> str:
    return str(json.loads(header)["payloadSha256"])


def test_admission_check_refuses_the_same_payload_over_every_protocol(client: Client, door: Any) -> None:
    queue = f"checked-{door.name}"
    with pytest.raises(Refusal, match=r"payload: has 1001 bytes, not at most 1000.*check 'length' of queue"):
        door.send(queue, b"x" * 1001)
    assert client.counts(queue).published == 0
    door.send(queue, b"x" * 1000)
    assert client.counts(queue).ready == 1


def test_admission_processor_of_all_queues_can_be_switched_off_for_a_queue(client: Client) -> None:
    client.publish("free", b"x" * 1001)
    [look] = client.peek("free")
    assert look.envelope is not None
    assert look.envelope.header == ""


@pytest.mark.process
def test_hook_runs_for_messages_published_over_every_protocol(client: Client, door: Any) -> None:
    queue = f"hooked-{door.name}"
    hooks: list[dict[str, Any]] = [{"hook": f"{MODULE}:{name}", "timeoutSec": 60} for name in ("says", "shout")]
    hooks[1]["produces"] = f"loud-{door.name}"
    client.set_policy(queue, {"processor": {"hooks": hooks}})
    door.send(queue, b"fine \xff")
    with pytest.raises(Refusal, match=r"because.*hooks:says"):
        door.send(queue, b"reason")
    with pytest.raises(Refusal, match=r"hook .*:says failed: KeyError"):
        door.send(queue, b"raise")
    assert client.counts(queue).ready == 1
    [child] = client.lease(f"loud-{door.name}", 5)
    assert child.payload == b"FINE \xff"
    assert child.header["causation"]["queue"] == queue
    assert door.take(queue) == b"fine \xff"


def test_integrity_never_delivers_a_damaged_payload_over_any_protocol(
    server: DaemonThread, client: Client, door: Any
) -> None:
    queue = f"damaged-{door.name}"
    door.send(queue, b"first")
    [look] = client.peek(queue)
    _spoil(server, queue, look.message.id)
    door.send(queue, b"second")
    assert door.take(queue) == b"second"
    spoilt = client.show(queue, look.message.id)
    assert spoilt.message.state is State.DEAD
    assert spoilt.failure is not None
    assert spoilt.failure.reason_code == "CORRUPT"
    web = HttpDoor(server)
    try:
        for path in (
            f"/v1/queues/{queue}/messages/{look.message.id}/payload",
            f"/mq/{queue}/messages/{look.message.id}",
        ):
            status, said = web.ask("GET", path)
            assert (status, b"payload_damaged" in said) == (500, True)
    finally:
        web.close()


def _spoil(server: DaemonThread, queue: str, id: str) -> None:
    """As if the disk had: behind the back of everything that looks at payloads."""
    done: list[Any] = []

    def work(transaction: Any) -> None:
        [card] = transaction.by_id(queue, [id])
        [envelope] = transaction.envelopes([card])
        transaction.rewrite([card], [envelope._replace(payload=b"f" + envelope.payload[1:-1] + b"\0")])

    desk = server.daemon.context.committer
    server._loop.call_soon_threadsafe(desk.submit, work, lambda value, error: done.append(error))
    until(lambda: done)
    assert done == [None]


@pytest.mark.process
def test_stomp_transaction_with_a_hook_is_stored_completely_or_not_at_all(server: DaemonThread, client: Client) -> None:
    client.set_policy("tx", {"processor": {"hooks": [{"hook": f"{MODULE}:says", "timeoutSec": 60}]}})
    for bodies, stored in ([b"yes", b"reason"], 0), ([b"yes", b"fine"], 2):
        line = DOORS["stomp"](server)
        try:
            stomp = line._client()
            stomp.line.begin("t")
            stomp.line.send("/queue/plain", b"beside", transaction="t")
            for body in bodies:
                stomp.line.send("/queue/tx", body, transaction="t")
            stomp.line.commit("t", receipt="done")
            until(lambda: stomp.heard.receipts or stomp.heard.errors)  # noqa: B023
        finally:
            line.close()
        assert (client.counts("tx").published, client.counts("plain").published) == (stored, 1 if stored else 0)


@pytest.mark.process
def test_pipelining_with_hooks_answers_each_request_and_keeps_the_order_of_the_messages(
    server: DaemonThread, client: Client
) -> None:
    client.set_policy("crowd", {"processor": {"hooks": [{"hook": f"{MODULE}:says", "timeoutSec": 60}], "workers": 2}})
    payloads = [b"reason" if number % 3 == 0 else b"fine %d" % number for number in range(30)]
    web = HttpDoor(server)
    try:
        for payload in payloads:  # all are sent before the first answer is read
            path = "/v1/queues/crowd/messages"
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
            web._line.connect() if web._line.sock is None else None
            web._line.sock.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        answers = web._line.sock.makefile("rb")
        said = [_answer(answers) for _ in payloads]
        answers.close()
    finally:
        web.close()
    assert [status for status, _ in said] == [400 if payload == b"reason" else 200 for payload in payloads]
    fine = [payload for payload in payloads if payload != b"reason"]
    assert [one.payload for one in client.lease("crowd", 100)] == fine  # in the order in which they came


def _answer(stream: Any) -> tuple[int, bytes]:
    status = int(stream.readline().split()[1])
    size = 0
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.partition(b":")
        size = int(value) if name.lower() == b"content-length" else size
    return status, stream.read(size)


def test_processor_methods_of_the_server_set_list_try_and_remove_a_processor(
    server: DaemonThread, client: Client
) -> None:
    shown = client.call("processor_set", queue="named", document={"checks": [{"check": "json"}]})
    assert shown["checks"] == [{"check": "json", "root": None}]
    rows = client.call("processors")
    assert {"queue": "named", "from": "policy", "processor": shown} in rows
    assert rows[-1]["queue"] == "*"
    report = client.try_out("named", [b"{}", b"{", {"a": 1}])
    assert [row["ok"] for row in report["messages"]] == [True, False, True]
    with pytest.raises(Unfit, match="check 'json'"):
        client.publish("named", b"{")
    assert client.call("processor_set", queue="named", document=None) is None
    client.publish("named", b"{")


@pytest.mark.process
def test_hook_that_may_not_run_is_rejected_in_a_policy_and_a_missing_hook_fails_at_publish(
    client: Client, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="os:system may not run here"):
        client.set_policy("evil", {"processor": {"hooks": [{"hook": "os:system"}]}})
    client.set_policy("odd", {"processor": {"hooks": [{"hook": f"{MODULE}:missing"}]}})
    with pytest.raises(HookFailed, match="cannot be loaded"):
        client.publish("odd", b"x")
