"""Named methods about processors: ``processors``, ``processor_set``, ``processor_check``.

Knows: the desk, who looks at messages. Does not know: how they are looked at."""

from functools import partial
from typing import Any

from yirangmq.broker import trial
from yirangmq.broker.desk import Desk
from yirangmq.broker.verbs import MOST_PER_CALL, Verbs
from yirangmq.core.errors import BadInput
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Clock, Ids, Transaction
from yirangmq.doors.calls import Calls
from yirangmq.doors.paged import Done, Given
from yirangmq.doors.values import reading
from yirangmq.format.envelope import NewMessage, build


class Processing:
    def __init__(self, verbs: Verbs, clock: Clock, ids: Ids) -> None:
        self._verbs = verbs
        self._clock = clock
        self._ids = ids

    def begin(self, calls: Calls) -> None:
        calls.add("processors", self._listed)
        calls.add("processor_set", self._put)
        calls.add_entry("processor_check", self._check)

    def _listed(self, transaction: Transaction, given: Given) -> list[dict[str, Any]]:
        queue = reading(given, lambda values: values.some_queue())
        return trial.listed(transaction, self._verbs, queue)

    def _put(self, transaction: Transaction, given: Given) -> dict[str, Any] | None:
        queue, document = reading(given, lambda values: (values.queue(), values.take("document", None)))
        return trial.put(transaction, self._verbs, queue, document)

    def _check(self, desk: Desk, given: Given, done: Done) -> None:
        queue, messages = reading(given, lambda values: (values.queue(), values.take("messages", None)))
        if not isinstance(messages, list) or not 0 < len(messages) <= MOST_PER_CALL:
            raise BadInput(f"must be an array of 1 to {MOST_PER_CALL}", field="messages")
        self.check(desk, queue, [self._envelope(queue, one) for one in messages], done)

    def check(self, desk: Desk, queue: str, envelopes: list[Envelope], done: Done) -> None:
        """Nothing is stored, and the desk is free meanwhile."""
        tried = desk.read(partial(trial.tried, gate=self._verbs.gate, queue=queue, envelopes=envelopes))
        if tried.needed is None:
            done(tried.report({}), None)
            return
        desk.look_at(
            tried.needed,
            lambda verdicts, error: done(None, error) if error is not None else done(tried.report(verdicts), None),
        )

    def _envelope(self, queue: str, given: object) -> Envelope:
        """Bytes, or an object of what ``NewMessage`` has."""
        [id] = self._ids.new(1)
        if isinstance(given, bytes):
            new = NewMessage(payload=given)
        elif isinstance(given, dict) and isinstance(given.get("payload"), bytes):
            known = {"payload", "id", "type", "version", "attributes", "content_type"}
            if not given.keys() <= known:
                raise BadInput(f"known members: {', '.join(sorted(known))}", field="messages")
            new = NewMessage(**given)
        else:
            raise BadInput("must be bytes, or objects with a payload of bytes", field="messages")
        return build(queue, new, id, self._clock.now_ms())
