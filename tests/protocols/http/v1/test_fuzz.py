"""Requests made from the API's own description, right ones and nearly right ones: each is answered as described, and
none breaks the server."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.support.http_server import HttpServer
from tools import openapi_docs
from yirangmq.clock import SystemClock
from yirangmq.core.validation import MAX_SECONDS
from yirangmq.stores.memory import MemoryStore

LANGUAGES = ("bad_filter", "bad_policy", "missing_extra")
TEXTS = ("cursor", "X-MQ-Attributes", "leaseId", "leases", "all", "filter", "messages", "data_base64", "timestamp",
         "X-MQ-Headers", "X-MQ-Key", "records", "headers", "key", "payloadBase64", "body", "fromTime", "fromSeq",
         "after", "last", "sequence", "stages", "topics", "at", "document")  # fmt: skip
"""What must be right in ways that no schema can say."""


def accepts_what_is_right(context: Any, response: Any, case: Any) -> None:
    """Whatever the description allows is taken."""
    if case.meta is not None and case.meta.generation.mode.is_positive and response.status_code == 400:
        error = response.json()["error"]
        assert error["code"] in LANGUAGES or error["field"].partition("[")[0] in TEXTS, error


def refuses_what_is_wrong(context: Any, response: Any, case: Any) -> bool | None:
    """But for headers that we do not know: those are everybody's."""
    about: Any = case.meta.phase.data if case.meta else None
    if about and "unexpected properties" in about.description and about.parameter_location == "header":
        return None
    return negative_data_rejection(context, response, case)


schema = schemathesis.openapi.from_dict(json.loads(openapi_docs.PAGE.read_text())).exclude(path_regex="/events$")
"""All but the streams, which have no end."""
schema.config.phases.coverage.unexpected_methods = {"get", "put", "post", "delete", "patch"}
"""Of those that the protocol knows at all."""
schema.config.checks.negative_data_rejection.expected_statuses += ["414", "431"]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
    accepts_what_is_right,
    refuses_what_is_wrong,
]


@schemathesis.serializer("application/x-ndjson")
def lines(context: Any, value: Any) -> Any:
    """What is no text is one line of JSON."""
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


@schemathesis.serializer("application/vnd.yirangmq.records")
def frames(context: Any, value: Any) -> Any:
    return value if isinstance(value, bytes) else json.dumps(value, default=repr).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    made = HttpServer(MemoryStore(), SystemClock(), folder=tmp_path_factory.mktemp("data")).start()
    yield made
    made.stop()


def hurry(case: Any) -> None:
    """Nobody waits for ten years here."""
    body = case.body
    if isinstance(body, dict) and isinstance(body.get("waitSec"), int | float) and 0 < body["waitSec"] <= MAX_SECONDS:
        case.body = {**body, "waitSec": 0.001}


@schema.parametrize()
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_openapi_fuzz_every_response_is_as_described(case: Any, server: HttpServer) -> None:
    hurry(case)
    case.call_and_validate(base_url=server.url, checks=CHECKS)
