"""JSON Schema: which one is for a message, compiled, and what does not fit. The library is loaded when it is needed."""

from collections.abc import Mapping
from typing import Any

from yirangmq.core.errors import BadInput, MissingExtra


def chosen_schema(schemas: Mapping[str, Mapping[str, Any]], header: Mapping[str, Any]) -> Any:
    """By the type and version a message says it has, from ``{type: {version: schema}}``; None if there is none."""
    kind = header.get("type")
    versions = schemas.get(str(kind)) if kind is not None else None
    if versions is None:
        return None
    version = str(header.get("version", "*"))
    return versions.get(version if version in versions else "*")


def compiled(schema: Any, field: str, error: type[BadInput]) -> Any:
    """A validator, or ``error`` naming the field if this is no JSON Schema."""
    try:
        import jsonschema_rs
    except ImportError:
        raise MissingExtra("schemas need the extra: pip install 'yirangmq[schema]'") from None
    try:
        return jsonschema_rs.validator_for(schema)
    except (ValueError, TypeError) as problem:
        raise error(f"is not a JSON Schema: {str(problem).splitlines()[0]}", field=field) from None


def first_complaint(validator: Any, value: Any) -> str:
    """What does not fit, naming the place; "" if all does."""
    for error in validator.iter_errors(value):
        path = ".".join(["payload", *(str(step) for step in error.instance_path)])
        return f"{path}: {error.message}"
    return ""
