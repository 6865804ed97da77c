"""Routes (queue, handler, concurrency, timeout), and validation of messages before their handler.

A message is valid if its envelope is readable and its payload fits two schemas. These are the consumer's, if given,
and that of its type in the queue's policy, if any. The broker validates by the policy at publishing; messages that
are older than the schema are caught here. Without the package for JSON Schema, schemas of policies are skipped with
a warning."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from yirangmq.consumer.delivery import HandlerDelivery
from yirangmq.consumer.settler import log
from yirangmq.core import validation as names
from yirangmq.core.errors import BadInput, MissingExtra, QueueError
from yirangmq.format.json_codec import dumps
from yirangmq.format.json_schema import chosen_schema, compiled, first_problem

# -- validation --------------------------------------------------------------------------------------------------------

Validator = Callable[[Any], Any]
"""Function that receives the payload's value and raises an error if it is invalid."""
MAX_COMPILED = 100


class Validation:
    """Validation of one queue's messages. Thread-safe: compiling a schema twice does no harm."""

    def __init__(self, own: Mapping[str, Any] | bool | Validator | None = None, *, decode: bool = True) -> None:
        """``decode=False``: the handler needs bytes only, so a payload without a schema is not decoded."""
        self._function = own if callable(own) else None
        self._schema = None if own is None or callable(own) else compiled(own, "schema", BadInput)
        self._decode = decode or own is not None
        self._by_text: dict[bytes, Any] = {}

    def complaint(self, delivery: HandlerDelivery, schemas: Mapping[str, Mapping[str, Any]]) -> str:
        """Return the problem, naming the field, or "" if the message is valid. ``schemas`` are those of the policy."""
        try:
            header = delivery.header
            schema = chosen_schema(schemas, header) if schemas else None
            value = delivery.value() if self._decode or schema is not None else None
        except Exception as error:
            return f"the envelope cannot be read: {error}"
        if self._schema is not None and (text := self._schema_complaint(self._schema, value)):
            return text
        if self._function is not None and (text := _function_complaint(self._function, value)):
            return text
        return self._policy_complaint(schema, value) if schema is not None else ""

    def _schema_complaint(self, schema: Any, value: Any) -> str:
        if isinstance(value, bytes):
            return "payload: is not JSON, and there is a schema for it"
        return first_problem(schema, value)

    def _policy_complaint(self, schema: Any, value: Any) -> str:
        key = dumps(schema)
        if key not in self._by_text:
            if len(self._by_text) >= MAX_COMPILED:
                self._by_text.clear()
            self._by_text[key] = _if_possible(schema)
        known = self._by_text[key]
        return "" if known is None else self._schema_complaint(known, value)


def _function_complaint(function: Validator, value: Any) -> str:
    try:
        function(value)
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def _if_possible(schema: Any) -> Any:
    """Return the compiled schema. Return None if the JSON Schema package is not installed: the broker has checked
    the message once."""
    try:
        return compiled(schema, "schema", BadInput)
    except MissingExtra as error:
        log.warning("policy_schema_check_skipped", extra={"values": {"error": str(error)}})
    except QueueError as error:
        log.warning("policy_schema_rejected", extra={"values": {"error": str(error)}})
    return None


# -- routes ------------------------------------------------------------------------------------------------------------

Handle = Callable[[HandlerDelivery], Any]
MAX_CONCURRENT = 1_000
"""Upper bound of the handler threads of one queue. More threads would only wait for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRoute:
    """Binding of a queue to its handler.

    ``timeout`` is in seconds. ``prefetch`` messages are leased beyond those in progress, for handlers so fast that
    fetching would limit them."""

    queue: str
    handle: Handle
    concurrency: int = 1
    timeout: float | None = None
    prefetch: int = 0
    validation: Validation = field(default_factory=Validation)
    cancel: Callable[[bool], None] | None = None
    """Stops the running handlers: requests it, or forces it if the argument is True. None if they cannot be stopped."""

    def __post_init__(self) -> None:
        names.check_queue(self.queue)
        names.check_count(self.concurrency, "concurrency", most=MAX_CONCURRENT)
        names.check_count(self.prefetch, "prefetch", least=0, most=10_000)
        if self.timeout is not None:
            names.check_milliseconds(self.timeout, "timeout", least=0.001)
        if not callable(self.handle):
            raise BadInput(f"must be a function, not {type(self.handle).__name__}", field="handler")
        if inspect.iscoroutinefunction(self.handle):
            raise BadInput("is a coroutine function; a handler runs in a thread: use asyncio.run", field="handler")
