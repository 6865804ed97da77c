"""Errors and notices of the data source, and the JSON Schema check of values on executors.

The check serves ``pipeline.steps`` (``validate``). It is in this package because the package can be sent to executors
without yirangmq; they need jsonschema-rs."""

import json
import re
import sys
from typing import Any, Never


class SourceError(ValueError):
    """An option, a row or the data is wrong; the text names the fault and the remedy."""


class RecordsRetired(SourceError):
    """Requested records are no longer kept: the request starts at ``requested``, the log begins at ``first``."""

    def __init__(self, requested: int, first: int) -> None:
        super().__init__(f"sequence {requested} is no longer kept; the log begins at {first}")
        self.requested = requested
        self.first = first

    def __reduce__(self) -> tuple[type["RecordsRetired"], tuple[int, int]]:
        return RecordsRetired, (self.requested, self.first)


class RequestRejected(SourceError):
    """The server refused the request; ``code`` is the error code of its reply."""

    def __init__(self, text: str, code: str = "", status: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.status = status

    def __reduce__(self) -> tuple[type["RequestRejected"], tuple[str, str, int]]:
        return RequestRejected, (str(self), self.code, self.status)


def parse_retired(text: str) -> RecordsRetired | None:
    """Parse a server's error text that holds both sequence numbers. Return None for any other text."""
    found = re.search(r"sequence (\d+) .* begins at (\d+)", text)
    return RecordsRetired(int(found[1]), int(found[2])) if found else None


def print_notice(text: str) -> None:
    """Print a one-line notice to stderr of the driver."""
    print(f"yirangmq: {text}", file=sys.stderr, flush=True)


# -- JSON Schema check -------------------------------------------------------------------------------------------------

NULL, NOT_JSON = "the value is null", "the value is not JSON"
MAX_ERRORS = 5
MAX_REASON = 1000
BACKTRACK_STEPS = 100_000
"""Upper bound of backtracking steps per pattern; the same as in ``format.json_schema``, which executors may not
have."""


class SchemaValidator:
    """JSON Schema validator of values; callable with the bytes of a value.

    It is pickled as the text of its schema. Each process builds its own validator from it."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._validator: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema, "_validator": None}

    def ready(self) -> Any:
        """Return the validator, and build it at the first call.

        Raises ``ImportError`` without jsonschema-rs, and ``ValueError`` if the text is no JSON Schema."""
        if self._validator is None:
            import jsonschema_rs

            patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_STEPS)
            self._validator = jsonschema_rs.validator_for(
                json.loads(self._schema), retriever=_reject_reference, pattern_options=patterns
            )
        return self._validator

    def __call__(self, text: bytes | None) -> list[str]:
        if text is None:
            return [NULL]
        try:
            value = json.loads(text.decode())
        except ValueError:
            return [NOT_JSON]
        found = []
        for error in self.ready().iter_errors(value):
            where = "/".join(str(step) for step in error.instance_path)
            found.append(f"{where or 'value'}: {error.message}"[:MAX_REASON])
            if len(found) == MAX_ERRORS:
                break
        return found


def _reject_reference(uri: str) -> Never:
    """Refuse every reference. Replaces the library's own retriever, which reads files and calls URLs."""
    raise ValueError("only references inside the schema are resolved")
