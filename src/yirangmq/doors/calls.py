"""Every verb that is not in the hot path, by name: what the operator's commands and the client library ask for.

One table for all doors. Each takes a transaction and named values, and returns plain values."""

from collections.abc import Callable, Mapping
from typing import Any

from yirangmq.broker.verbs import Verbs
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Transaction

Method = Callable[[Transaction, Mapping[str, Any]], Any]


class Calls:
    """Named methods. Parts of the broker add theirs when the server is put together."""

    def __init__(self, verbs: Verbs) -> None:
        self._methods: dict[str, Method] = {
            "queues": lambda transaction, values: transaction.queues(),
            "counts": lambda transaction, values: transaction.counts(values["queue"])._asdict(),
        }

    def add(self, name: str, method: Method) -> None:
        self._methods[name] = method

    def find(self, name: str) -> Method:
        method = self._methods.get(name)
        if method is None:
            raise BadInput(f"{name!r} is not a known method", field="method")
        return method
