"""Prints ``docs/reference/http-api.md`` and ``http-api-server.md``, the lists of endpoints, from ``docs/openapi.json``;
``python tools/http_api_docs.py`` writes them, a test compares them with the document."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {
    "http-api.md": ("of queues", ("messages", "consuming", "dead letters", "queues", "policies", "consumers")),
    "http-api-server.md": (
        "of topics and the server",
        ("topics", "batches", "pipelines", "alerts", "events", "server"),
    ),
}
"""Pages in ``docs/reference``, each with the end of its title and its tags of the OpenAPI document."""
INTRO = """# HTTP endpoints {subject}

Endpoints {subject} under `/v1`, with their scopes, parameters and the members of the JSON body. The other endpoints are
on the page [{other}]({other}.md). [HTTP](../http.md) explains the API with examples. A server serves the same list as
an OpenAPI 3.1 document at `GET /v1/openapi.json`.

*This page is printed from the program by `python tools/http_api_docs.py`.* Names in **bold** are required. A token
needs one of the scopes. [Errors](../errors.md) lists the codes of errors with their HTTP status.
"""


def render() -> dict[str, str]:
    """Return the pages by file name."""
    document = json.loads((DOCS / "openapi.json").read_text())
    assert {tag["name"] for tag in document["tags"]} == {tag for _, tags in PAGES.values() for tag in tags}
    return {name: "".join(_page(document, name)) for name in PAGES}


def _page(document: dict[str, Any], name: str) -> Iterator[str]:
    subject, tags = PAGES[name]
    [other] = (Path(page).stem for page in PAGES if page != name)
    yield INTRO.format(subject=subject, other=other)
    for tag in tags:
        yield f"\n## {tag[0].upper()}{tag[1:]}\n"
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if operation["tags"] == [tag]:
                    yield from _endpoint(document, f"{method.upper()} {path}", operation)


def _endpoint(document: dict[str, Any], title: str, operation: dict[str, Any]) -> Iterator[str]:
    scopes = ", ".join(f"`{scope}`" for scope in operation.get("x-scopes", ()))
    yield f"\n### `{title}`\n\n{operation['summary']}." + (f" Scopes: {scopes}.\n" if scopes else "\n")
    rows = [
        (field["name"], field["in"], field["schema"], field.get("required", False), field.get("description", ""))
        for field in operation.get("parameters", ())
        if field["in"] != "path"
    ]
    rows += _body_fields(document, operation)
    if rows:
        yield "\n| name | in | type | meaning |\n|---|---|---|---|\n"
        for name, place, schema, required, meaning in rows:
            mark = "**" if required else ""
            yield f"| {mark}`{name}`{mark} | {place} | {_type(schema)} | {_cell(meaning)} |\n"


def _body_fields(document: dict[str, Any], operation: dict[str, Any]) -> list[tuple[str, str, Any, bool, str]]:
    body = operation.get("requestBody")
    if body is None:
        return []
    content = body["content"]
    schema = _resolved(document, content.get("application/json", {}).get("schema", {}))
    required = schema.get("required", ())
    members = [
        (name, "body", member, name in required, _resolved(document, member).get("description", ""))
        for name, member in schema.get("properties", {}).items()
    ]
    if members:
        return members
    types = ", ".join(f"`{kind}`" for kind in content)
    meaning = schema.get("description") or body.get("description", "")
    return [("(body)", "body", schema, body.get("required", False), f"{meaning}; {types}" if meaning else types)]


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"][name] if name else schema


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any")
    text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if "default" in schema:
        text += f", default `{json.dumps(schema['default'])}`"
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    for name, text in render().items():
        (DOCS / "reference" / name).write_text(text)
