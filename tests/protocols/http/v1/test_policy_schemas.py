"""Schemas in policies, through a server: no reference leaves the document, and the event loop does not compile."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_api import Web
from tests.support.http_server import HttpServer
from tests.support.schemas import SECRET, Outside, SlowLibrary
from yirangmq.broker.queues import Queues
from yirangmq.clock import SystemClock
from yirangmq.core.access import CONSUME, PUBLISH, AccessGrant
from yirangmq.core.errors import BadInput
from yirangmq.format.envelope import NewMessage
from yirangmq.protocols.http.auth import HttpAccess
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import CountingIds, ManualClock


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    made = Outside(tmp_path)
    yield made
    made.close()


def policies_with(schema: object) -> list[dict[str, Any]]:
    """Every member of a policy that holds a schema."""
    return [{"schemas": {"t": {"1": schema}}}, {"processor": {"checks": [{"check": "schema", "schema": schema}]}}]


@pytest.mark.parametrize(("method", "path"), [("POST", "/policy/check"), ("PUT", "/policy")])
def test_policy_schema_with_an_outside_reference_is_rejected_over_http(
    web: Web, outside: Outside, method: str, path: str
) -> None:
    for target in outside.targets:
        for policy in policies_with({"properties": {"a": {"$ref": target}}}):
            line = web.ask(method, f"/v1/queues/orders{path}", policy)
            assert line.status == 400
            assert line.document["error"]["code"] == "bad_input"
            assert "#/properties/a/$ref" in line.document["error"]["message"]
            assert SECRET.encode() not in line.body
    assert not outside.was_called


def test_policy_schema_with_an_outside_reference_is_rejected_by_every_call(web: Web, outside: Outside) -> None:
    client = web.server.client()
    for policy in policies_with({"$ref": outside.targets[0]}):
        for method in ("check_policy", "set_policy"):
            with pytest.raises(BadInput, match=r"#/\$ref leaves the document") as caught:
                client.call(method, queue="orders", document=policy)
            assert caught.value.code == "bad_input"
        if "processor" in policy:
            with pytest.raises(BadInput, match=r"#/\$ref leaves the document"):
                client.call("processor_set", queue="orders", document=policy["processor"])
        queues = Queues(MemoryStore(), ManualClock(), CountingIds())
        with pytest.raises(BadInput, match=r"#/\$ref leaves the document"):
            queues.set_policy("orders", policy)


def test_policy_schema_stored_with_an_outside_reference_rejects_messages_and_reads_nothing(outside: Outside) -> None:
    """As a version before, or an editor, may have left it in the store."""
    store = MemoryStore()
    queues = Queues(store, ManualClock(), CountingIds())
    [by_type, _] = policies_with({"$ref": outside.targets[0]})
    with store.transaction() as transaction:
        transaction.set_policy("orders", json.dumps(by_type))
    with pytest.raises(BadInput, match=r"#/\$ref leaves the document") as caught:
        queues.publish("orders", NewMessage(payload={"a": 1}, type="t", version=1))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("method", "path"), [("POST", "/policy/check"), ("PUT", "/policy"), ("DELETE", "/policy")])
def test_policy_is_checked_and_set_with_the_admin_scope_only(method: str, path: str) -> None:
    grants = [
        AccessGrant("producer-token", frozenset({PUBLISH})),
        AccessGrant("worker-token", frozenset({CONSUME})),
        AccessGrant("chief"),
    ]
    web = Web(guard=HttpAccess(grants).check)
    for token, status in (("producer-token", 403), ("worker-token", 403), ("chief", 200)):
        line = web.ask(method, f"/v1/queues/orders{path}", {"ttlSec": 5}, authorization=f"Bearer {token}")
        assert line.status == status, (token, line.body)


def test_policy_schema_is_compiled_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the compiler is held up, the server answers; what was compiled then is there for the first message."""
    slow = SlowLibrary(monkeypatch)
    server = HttpServer(MemoryStore(), SystemClock()).start()
    policy = {"schemas": {"t": {"1": {"title": "held up", "type": "object"}}}}
    found: list[tuple[int, Any]] = []
    putting = threading.Thread(target=lambda: found.append(server.request("PUT", "/v1/queues/orders/policy", policy)))
    try:
        putting.start()
        slow.begun.acquire()
        assert server.request("GET", "/v1/health")[0] == 200
        assert not found
        slow.go_on.set()
        putting.join()
        assert found[0][0] == 200, found
        message = {
            "payload": {"a": 1},
            "type": "t",
            "version": 1,
            "messageId": "m",
            "timestamp": "2026-01-01T00:00:00Z",
        }
        assert server.request("POST", "/v1/queues/orders/messages", message)[0] == 200
        assert len(slow.threads) == 1
    finally:
        slow.end()
        putting.join()
        server.stop()
