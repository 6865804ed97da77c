"""The API's own description, OpenAPI 3.1, printed from the table of endpoints: it cannot disagree with it."""

from collections.abc import Iterable, Sequence
from typing import Any

from yirangmq.core.access import ALLOWED, SCOPES
from yirangmq.doors.http.v1 import errors
from yirangmq.doors.http.v1.endpoint import Endpoint
from yirangmq.doors.http.v1.fields import Field, Schema
from yirangmq.doors.http.v1.schemas import COMPONENTS, ref

JSON = "application/json"
EVERYWHERE = ("bad_input", "too_large", "packed_body", "not_allowed", "timed_out", "unavailable", "internal_error")
"""Any endpoint may answer with these: the request is malformed, the client may not, the server cannot."""
BEFORE = {"414": "the path and the query are too long", "431": "the headers are too large"}
"""What the protocol says of a request before it is known what it asks for."""
TAGS = {
    "messages": "publish, look, give up",
    "consuming": "take messages and say what became of them",
    "dead letters": "what was given up, and why",
    "queues": "what there is",
    "policies": "the numbers that govern a queue",
    "consumers": "who is at work",
    "topics": "records that every subscriber gets, in order",
    "batches": "of a pipeline, each in once",
    "pipelines": "queries on Spark, and how they do",
    "alerts": "what is wrong, and who is told",
    "events": "what happens, as it happens",
    "server": "the server itself",
}


def document(endpoints: Iterable[Endpoint], version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Yi-Rang MQ",
            "version": version,
            "summary": "A durable message queue: lease, retry, dead letters.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": about} for name, about in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "operationId": operation_id(endpoint),
        "summary": endpoint.about,
        "tags": [endpoint.tag],
        "x-verb": endpoint.verb,
        "x-scopes": [scope for scope in SCOPES if scope in ALLOWED[endpoint.verb]],
        "parameters": [
            *(_parameter(field, "path") for field in endpoint.path_fields()),
            *(_parameter(field, "query") for field in endpoint.query),
            *(_parameter(field, "header") for field in endpoint.headers),
        ],
        "responses": _responses(endpoint),
    }
    body = _body(endpoint)
    return shown if body is None else {**shown, "requestBody": body}


def operation_id(endpoint: Endpoint) -> str:
    """``POST /v1/queues/{queue}/messages`` is ``postQueuesMessages``; with an id at its end it is about ``One``."""
    if endpoint.name:
        return endpoint.name
    parts = [part for part in endpoint.path.split("/")[2:] if not part.startswith("{")]
    words = "".join(word.capitalize() for part in parts for word in part.replace(".", "-").split("-"))
    return endpoint.method.lower() + words + ("One" if endpoint.path.endswith("}") else "")


def _parameter(field: Field, place: str) -> dict[str, Any]:
    needed = field.needed or place == "path"
    schema = field.schema()
    return {
        "name": field.name,
        "in": place,
        "description": schema.pop("description"),
        "schema": schema,
        **({"required": True} if needed else {}),
    }


def _body(endpoint: Endpoint) -> dict[str, Any] | None:
    if endpoint.content is not None:
        return {
            "description": endpoint.content.about,
            "required": endpoint.content.needed,
            "content": {name: {"schema": schema} for name, schema in endpoint.content.types.items()},
        }
    if not endpoint.body:
        return None
    is_needed = any(field.needed for field in endpoint.body)
    return {"required": is_needed, "content": {JSON: {"schema": object_of(endpoint.body)}}}


def object_of(fields: Sequence[Field]) -> Schema:
    """The schema of a body of declared fields: these, and no others."""
    needed = [field.name for field in fields if field.needed]
    schema: Schema = {
        "type": "object",
        "properties": {field.name: field.schema() for field in fields},
        "additionalProperties": False,
    }
    return {**schema, "required": needed} if needed else schema


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    first: dict[str, Any] = {endpoint.media: {"schema": endpoint.answer}}
    first |= {name: {"schema": schema} for name, schema in endpoint.more.items() if "/" in name}
    answers: dict[str, Any] = {"200": {"description": "done", "content": first}}
    codes: dict[str, list[str]] = {}
    for code in (*EVERYWHERE, *endpoint.refusals):
        codes.setdefault(str(errors.STATUS_OF[code]), []).append(code)
    for status, about in BEFORE.items():
        answers[status] = {"description": about, "content": {"text/plain": {"schema": {"type": "string"}}}}
    codes["401"] = ["not_allowed"]
    for status, names in sorted(codes.items()):
        own = endpoint.more.get(status)
        schema = {"anyOf": [own, ref("Error")]} if own is not None else ref("Error")
        answers[status] = {"description": ", ".join(names), "content": {JSON: {"schema": schema}}}
    if "Results" in endpoint.answer.get("$ref", ""):
        for status in ("404", "409"):
            answers[status] = {
                "description": "some could not be done; the first error, and a result for each",
                "content": {JSON: {"schema": {"anyOf": [ref("Results"), ref("Error")]}}},
            }
    return answers
