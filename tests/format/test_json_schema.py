"""A JSON Schema is input of a client: no reference leaves the document, and size, depth and time are bounded."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.schemas import SECRET, Outside, SlowLibrary
from yirangmq.consumer.routes import Validation
from yirangmq.core.errors import BadInput, BadPolicy, QuotaExceeded
from yirangmq.format import json_schema
from yirangmq.format.json_schema import compiled, first_problem
from yirangmq.pipeline.source.errors import SchemaValidator

KEYWORDS = ("$ref", "$dynamicRef", "$recursiveRef")
POSITIONS: dict[str, Callable[[Any], Any]] = {
    "#": lambda inner: inner,
    "#/properties/a~1b": lambda inner: {"properties": {"a/b": inner}},
    "#/properties/const": lambda inner: {"properties": {"const": inner}},
    "#/properties/$ref": lambda inner: {"properties": {"$ref": inner}},
    "#/$defs/enum": lambda inner: {"$defs": {"enum": inner}},
    "#/definitions/d": lambda inner: {"definitions": {"d": inner}},
    "#/patternProperties/x": lambda inner: {"patternProperties": {"x": inner}},
    "#/allOf/1": lambda inner: {"allOf": [{}, inner]},
    "#/items": lambda inner: {"items": inner},
    "#/prefixItems/0": lambda inner: {"prefixItems": [inner]},
    "#/not": lambda inner: {"not": inner},
    "#/dependentSchemas/a/if": lambda inner: {"dependentSchemas": {"a": {"if": inner}}},
    "#/unknownKeyword/x": lambda inner: {"unknownKeyword": {"x": inner}},
    "#/additionalProperties": lambda inner: {"$id": "http://127.0.0.1/base", "additionalProperties": inner},
}


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    made = Outside(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("keyword", KEYWORDS)
@pytest.mark.parametrize("pointer", POSITIONS)
def test_schema_reference_that_leaves_the_document_is_bad_input_naming_its_pointer(
    outside: Outside, pointer: str, keyword: str
) -> None:
    for target in outside.targets:
        with pytest.raises(BadInput) as caught:
            compiled(POSITIONS[pointer]({keyword: target}), "schemas.t.1", BadPolicy)
        assert caught.value.code == "bad_input"
        assert f"{pointer}/{keyword} " in str(caught.value)
        assert caught.value.field == "schemas.t.1"
        assert SECRET not in str(caught.value)
    assert not outside.was_called


def test_schema_compiler_loads_no_file_and_no_url(outside: Outside) -> None:
    for target in outside.targets[:-1]:  # the last one is built into the library
        with pytest.raises(ValueError, match="is not present") as caught:
            json_schema._compile({"properties": {"a": {"$ref": target}}})
        assert SECRET not in str(caught.value)
        judge = SchemaValidator(json.dumps({"$ref": target}))
        with pytest.raises(ValueError, match="is not present") as caught:
            judge.ready()
        assert SECRET not in str(caught.value)
    assert not outside.was_called


def test_schema_of_a_consumer_that_refers_to_a_file_is_bad_input(outside: Outside) -> None:
    with pytest.raises(BadInput, match=r"#/\$ref"):
        Validation({"$ref": outside.targets[0]})


@pytest.mark.parametrize("named", ["http://127.0.0.1/x", "file:///etc/hostname", "draft-07", ""])
def test_schema_draft_must_be_a_published_one(named: str) -> None:
    with pytest.raises(BadInput, match=r"#/\$schema is not a published draft"):
        compiled({"$schema": named}, "schema", BadPolicy)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, "x", 1),
        ({"$ref": "#q", "$defs": {"a": {"$anchor": "q", "type": "string"}}}, "x", 1),
        ({"items": {"$ref": "#"}, "type": "array"}, [[]], [1]),
        ({"$ref": "", "type": "string"}, "x", 1),
        ({"$id": "http://h/y", "$ref": "z#q", "$defs": {"a": {"$id": "z", "$anchor": "q", "type": "string"}}}, "x", 1),
        ({"$id": "urn:a:b", "$ref": "urn:a:b#/$defs/a", "$defs": {"a": {"type": "string"}}}, "x", 1),
        ({"$dynamicRef": "#d", "$defs": {"a": {"$dynamicAnchor": "d", "type": "string"}}}, "x", 1),
        ({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "string"}}}, "x", 1),
        ({"enum": [{"$ref": "file:///x"}]}, {"$ref": "file:///x"}, 1),
        ({"const": {"$schema": "file:///x"}}, {"$schema": "file:///x"}, 1),
        ({"default": {"$ref": "http://h/"}, "type": "string"}, "x", 1),
        ({"properties": {"$ref": {"type": "string"}}}, {"$ref": "file:///x"}, {"$ref": 1}),
        ({"properties": {"$schema": {"type": "string"}}}, {"$schema": "x"}, {"$schema": 1}),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "id": "http://h/b",
                "properties": {"x": {"$ref": "c"}, "y": {"id": "c", "type": "string"}},
            },
            {"x": "x"},
            {"x": 1},
        ),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "type": "string"}, "x", 1),
        ({"pattern": "^(?=.*[0-9])[a-z0-9]+$"}, "a1", "a"),
        ({"properties": {"x": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": False}}, {}, {"x": 1}),
        (True, 1, None),
    ],
)
def test_schema_references_inside_the_document_are_followed(schema: Any, good: Any, bad: Any) -> None:
    validator = compiled(schema, "schema", BadPolicy)
    assert first_problem(validator, good) == ""
    if bad is not None:
        assert first_problem(validator, bad)


def doubled(depth: int, reference: str) -> dict[str, Any]:
    """``2 ** depth`` subschemas for one value, in a few lines."""
    made: dict[str, Any] = {
        f"d{n}": {"$anchor": f"d{n}", "anyOf": [{"$ref": reference.format(n + 1)}] * 2} for n in range(depth)
    }
    made[f"d{depth}"] = {"$anchor": f"d{depth}", "type": "string"}
    return {"$defs": made, "$ref": reference.format(0)}


def hidden(depth: int, keyword: str) -> dict[str, Any]:
    """The same, below a keyword whose value is no schema."""
    made = doubled(depth, f"#/{keyword}/0/{{}}".replace("{}", "d{}"))
    return {"$ref": made["$ref"], keyword: [made["$defs"]]}


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(depth):
        made = {"not": made}
    return made


@pytest.mark.parametrize(
    ("schema", "about"),
    [
        ({"const": "x" * json_schema.MAX_BYTES}, "bytes; a schema may have"),
        (nested(json_schema.MAX_DEPTH + 1), "nested deeper than 100 levels"),
        (nested(5000), "levels|cannot be written as JSON"),
        ({"allOf": [{"pattern": "a"}] * (json_schema.MAX_PATTERNS + 1)}, "more than 200 patterns"),
        ({"patternProperties": {str(n): {} for n in range(201)}}, "more than 200 patterns"),
        (doubled(22, "#/$defs/d{}"), "more than 10000 subschemas"),
        (doubled(22, "#d{}"), "more than 10000 subschemas"),
        ({"pattern": "(a{1000}){1000}"}, "is not a"),
        ({"patternProperties": {"(a{1000}){1000}": {}}}, "is not a"),
        ({"type": 7}, "is not a JSON Schema"),
        ({"$ref": "#/nowhere"}, "does not exist"),
        *[(hidden(22, keyword), "is data of") for keyword in ("const", "default", "enum", "examples")],
        ({"$ref": "#/properties", "properties": {"allOf": [{"type": "string"}]}}, "names does not exist"),
        ({"$ref": "#/allOf/00", "allOf": [{"type": "string"}]}, "names does not exist"),
    ],
)
def test_schema_past_a_limit_is_refused(schema: Any, about: str) -> None:
    with pytest.raises(BadPolicy, match=about):
        compiled(schema, "schemas.t.1", BadPolicy)


def mesh(count: int, *, with_ids: bool) -> dict[str, Any]:
    """Definitions that all refer to each other; with ids, the library compiles each again for every path."""
    names = [f"d{n}" for n in range(count)]
    prefix = "" if with_ids else "#/$defs/"
    defs: dict[str, Any] = {
        name: {"properties": {other: {"$ref": prefix + other} for other in names}} for name in names
    }
    if with_ids:
        defs = {name: {"$id": name, **about} for name, about in defs.items()}
    return {"$id": "http://h/", "$ref": f"{prefix}d0", "$defs": defs}


def test_schema_whose_compilation_would_not_end_is_refused_before_it_begins() -> None:
    for count in (8, 20, 44):
        with pytest.raises(BadPolicy, match=r"resources with an \$id that refer to each other"):
            compiled(mesh(count, with_ids=True), "schema", BadPolicy)
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(2001)}
    with pytest.raises(BadPolicy, match="more than 2000 references"):
        compiled({"$ref": "#/$defs/d0", "$defs": {**chain, "d2001": {}}}, "schema", BadPolicy)


def test_schema_of_many_definitions_that_refer_to_each_other_compiles() -> None:
    compiled(mesh(40, with_ids=False), "schema", BadPolicy)
    compiled(mesh(5, with_ids=True), "schema", BadPolicy)
    chain = {f"d{n}": {"$id": f"d{n}", "$ref": f"d{n + 1}"} for n in range(100)}
    compiled({"$id": "http://h/", "$ref": "d0", "$defs": {**chain, "d100": {"$id": "d100"}}}, "schema", BadPolicy)
    compiled(doubled(10, "#/$defs/d{}"), "schema", BadPolicy)


def test_schema_pattern_that_backtracks_ends_after_its_steps() -> None:
    validator = compiled({"pattern": r"^((a|aa)+)\2$"}, "schema", BadPolicy)
    assert "backtracking" in first_problem(validator, "a" * 100_000 + "c")


def test_schema_that_compiles_too_long_is_refused_and_few_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowLibrary(monkeypatch)
    monkeypatch.setattr(json_schema, "COMPILE_SECONDS", 0.01)
    try:
        for number in range(json_schema.MAX_COMPILING):
            with pytest.raises(BadPolicy, match=r"schema: was not compiled within 0.01 s"):
                compiled({"title": f"slow {number}"}, "schema", BadPolicy)
        with pytest.raises(QuotaExceeded, match="try again later"):
            compiled({"title": "slow one more"}, "schema", BadPolicy)
    finally:
        slow.end()
    monkeypatch.undo()
    compiled({"title": "slow one more"}, "schema", BadPolicy)
