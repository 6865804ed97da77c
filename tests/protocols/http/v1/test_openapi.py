"""The API's own description: current, complete, and true of the endpoints it describes."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs

from tests.support.http_api import Web
from tools import http_api_docs, openapi_docs
from yirangmq.protocols.http.v1.rendering import STATUS_OF

PAGES = [
    (Path(__file__).parents[4] / "docs" / f"{name}.md").read_text() for name in ("http", "http-topics", "webhooks")
]


def resolved(schema: Any, document: Any) -> Any:
    """With the components where references to them look for them."""
    return {**schema, "components": document["components"]}


def test_openapi_document_in_docs_is_current() -> None:
    assert openapi_docs.PAGE.read_text() == openapi_docs.render()


def test_openapi_pages_of_endpoints_are_current() -> None:
    folder = http_api_docs.DOCS / "reference"
    pages = http_api_docs.render()
    assert {name: (folder / name).read_text() for name in pages} == pages, "run: python tools/http_api_docs.py"


def test_openapi_document_is_served_by_the_server(web: Web) -> None:
    served = web.good("GET", "/v1/openapi.json")
    kept = json.loads(openapi_docs.PAGE.read_text())
    assert served["paths"] == kept["paths"]
    assert served["openapi"] == "3.1.0"


def test_openapi_operation_ids_are_unique_and_cover_every_endpoint(web: Web) -> None:
    paths = web.good("GET", "/v1/openapi.json")["paths"]
    names = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(names) == len(set(names)) == len(web.api.table.endpoints)


def test_openapi_response_schemas_are_valid_json_schemas(web: Web) -> None:
    document = web.good("GET", "/v1/openapi.json")
    found = 0
    for methods in document["paths"].values():
        for operation in methods.values():
            for answer in operation["responses"].values():
                for content in answer["content"].values():
                    jsonschema_rs.validator_for(resolved(content["schema"], document))
                    found += 1
    assert found > 100


def test_error_statuses_in_the_docs_are_those_in_force() -> None:
    rows = re.findall(r"^\| (\d{3}) \| (.*) \|$", PAGES[0].partition("## Errors")[2], re.MULTILINE)
    shown = {code: int(status) for status, codes in rows for code in re.findall(r"`([a-z_]+)`", codes)}
    assert shown | {"bad_input": 400} == STATUS_OF  # which stands at 405 too


def test_openapi_endpoints_are_all_on_the_docs_pages(web: Web) -> None:
    """Each by its last fixed word, as in a command or in a sentence."""
    text = "".join(PAGES)
    missing = [
        one.path for one in web.api.table.endpoints if one.path.replace("{queue}", "").split("/")[-1] not in text
    ]
    assert [path for path in missing if not path.endswith("}")] == []
