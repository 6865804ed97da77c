"""JSON Schema, per message type and version, as the policy says. The library is loaded when a policy first needs it."""

from collections.abc import Mapping
from typing import Any

from yirangmq.core.errors import BadInput, BadPolicy
from yirangmq.core.message import Envelope
from yirangmq.core.policy import QueuePolicy
from yirangmq.format.envelope import header_of
from yirangmq.format.json_codec import loads
from yirangmq.format.json_schema import compiled, first_complaint

MOST_COMPILED = 100
"""Policies whose schemas are kept ready."""


class Schemas:
    """Compiled schemas of the policies in use."""

    def __init__(self) -> None:
        self._compiled: dict[int, tuple[Mapping[str, Mapping[str, Any]], dict[tuple[str, str], Any]]] = {}

    def check_policy(self, policy: QueuePolicy) -> None:
        """Compile every schema now, so that a broken one is refused before it is stored."""
        for kind, versions in policy.schemas.items():
            for version in versions:
                self._validator(policy, kind, version)

    def complaint(self, envelope: Envelope, policy: QueuePolicy) -> str:
        """Why this message does not fit its schema, naming the field; "" if it does or has none."""
        try:
            header = header_of(envelope)
        except BadInput as trouble:  # damaged where it lay
            return f"header: {trouble}"
        kind = header.get("type")
        versions = policy.schemas.get(str(kind)) if kind is not None else None
        if versions is None:
            return ""
        version = str(header.get("version", "*"))
        validator = self._validator(policy, str(kind), version if version in versions else "*")
        if validator is None:
            return ""
        if not envelope.is_json:
            return "payload: is not JSON, and this type has a schema"
        try:
            value = loads(envelope.payload)
        except BadInput as trouble:  # a number that no float can hold
            return f"payload: {trouble}"
        return first_complaint(validator, value)

    def _validator(self, policy: QueuePolicy, kind: str, version: str) -> Any:
        schema = policy.schemas[kind].get(version)
        if schema is None:
            return None
        if len(self._compiled) > MOST_COMPILED:
            self._compiled.clear()  # policies come and go; those in use are compiled again
        known = self._compiled.get(id(policy.schemas))
        if known is None or known[0] is not policy.schemas:
            known = self._compiled[id(policy.schemas)] = (policy.schemas, {})
        if (kind, version) not in known[1]:
            known[1][kind, version] = compiled(schema, f"schemas.{kind}.{version}", BadPolicy)
        return known[1][kind, version]
