"""Reads the named values of a call: each known one once, then nothing may be left. ``BadInput`` names the value."""

from collections.abc import Callable, Mapping
from typing import Any

from yirangmq.broker.pages import Answer
from yirangmq.broker.settle import MOST_PER_CALL
from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.validation import Fields, kind


class Values(Fields):
    """The values of one call, as ``core.validation.Fields`` reads a document."""

    def queue(self) -> str:
        return validation.check_queue(self.take("queue", None))

    def some_queue(self) -> str | None:
        """A queue, or null where all are meant."""
        name = self.take("queue", None)
        return None if name is None else validation.check_queue(name)

    def id(self) -> str:
        return validation.check_id(self.take("id", None), "id")

    def ids(self) -> list[str]:
        given = self.take("ids", None)
        if not isinstance(given, list):
            raise BadInput(f"must be an array of message ids, not {kind(given)}", field="ids")
        validation.check_count(len(given), "ids", most=MOST_PER_CALL)
        return [validation.check_id(id, "ids") for id in given]

    def some_ids(self) -> list[str] | None:
        """Ids, or null where a filter says which."""
        if self._left.get("ids") is not None:
            return self.ids()
        self.take("ids", None)
        return None

    def text(self, key: str, default: str = "", most: int = 10_000) -> str:
        value = self.take(key, default)
        if not isinstance(value, str) or len(value) > most:
            raise BadInput(f"must be a text of at most {most} characters", field=key)
        return value

    def limit(self, default: int) -> int:
        return self.whole("limit", default, least=1, most=MOST_PER_CALL)


def reading(given: Mapping[str, Any], read: Callable[[Values], Answer]) -> Answer:
    """What ``read`` makes of the values, once it is sure that there are no others."""
    values = Values(given)
    answer = read(values)
    values.done()
    return answer
