"""Inbox of plain etcd clients: a key that a client puts becomes a message in the commit that deletes the key.

The message id contains a hash of sender, name and content. A producer that lost its answer puts the same key again, and
the queue recognises the duplicate while the first message is in its dedup window. Different content under the same key
is a different message.

Up to ``MOST_AT_ONCE`` messages of one queue share a commit. If the queue refuses such a batch, its messages are
tried one by one; a message that is refused alone is logged and stays in etcd. After errors of the store, a quota or
a hook the batch is retried after ``AGAIN_SECONDS``. Loop thread only."""

import re
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from yirangmq.broker.group_commit import Desk
from yirangmq.cluster.keys import Put, text_of
from yirangmq.core.errors import HookFailed, QueueError, QuotaExceeded, StoreError, Unavailable
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Clock, Transaction
from yirangmq.format.envelope import JSON_TYPE, NewMessage, build, is_plain_json
from yirangmq.observe.logs import log, values

MOST_AT_ONCE = 16
"""Maximum number of messages of a batch, which is one commit."""
MOST_BYTES = 400_000
"""Maximum sum of the values of a batch, in bytes; a single larger value is a batch alone."""
AGAIN_SECONDS = 2.0
"""Delay before a failed batch is retried, in seconds."""
_ODD = re.compile(r"[^A-Za-z0-9_-]")


class KeysDoor:
    """Inbox of etcd clients: publishes the keys that they put, one batch at a time. Loop thread only."""

    def __init__(self, desk: Desk, clock: Clock, full: Callable[[], QueueError | None]) -> None:
        """``full``: return the error while nothing may be published, otherwise None."""
        self._desk = desk
        self._clock = clock
        self._full = full
        self._waiting: deque[Put] = deque()
        self._is_busy = False
        self._alone = 0
        """Number of messages at the front of the queue to publish one by one, because the queue refused a batch."""

    def arrived(self, puts: list[Put]) -> None:
        self._waiting.extend(puts)
        self._next()

    def end(self) -> None:
        """Drop the waiting keys: another node leads now, and finds them in etcd."""
        self._waiting.clear()

    def _next(self) -> None:
        if self._is_busy or not self._waiting or not self._desk.duty.is_on:
            return
        if self._full() is not None:
            self._later()
            return
        batch = self._batch()
        self._is_busy = True
        self._desk.submit(
            lambda transaction: self._take_in(transaction, batch), lambda _, error: self._done(batch, error)
        )

    def _batch(self) -> list[Put]:
        """Remove and return the next batch: keys of one queue within the limits, each key once."""
        first = self._waiting.popleft()
        batch, size = [first], len(first.value)
        most = 1 if self._alone else MOST_AT_ONCE
        while self._waiting and len(batch) < most:
            one = self._waiting[0]
            size += len(one.value)
            if one.queue != first.queue or size > MOST_BYTES or any(one.key == other.key for other in batch):
                break
            batch.append(self._waiting.popleft())
        self._alone = max(0, self._alone - 1)
        return batch

    def _take_in(self, transaction: Transaction, batch: list[Put]) -> None:
        now = self._clock.now_ms()
        self._desk.verbs.publish(transaction, batch[0].queue, [envelope_of(put, now) for put in batch])
        store: Any = transaction
        store.also([put.removal for put in batch])

    def _done(self, batch: list[Put], error: QueueError | None) -> None:
        self._is_busy = False
        if error is None:
            self._next()
        elif isinstance(error, Unavailable | StoreError | QuotaExceeded | HookFailed):
            self._waiting.extendleft(reversed(batch))
            self._later()
        elif len(batch) > 1:
            self._waiting.extendleft(reversed(batch))
            self._alone = len(batch)
            self._next()
        else:
            key = batch[0].key.decode("utf-8", "backslashreplace")
            log.error("inbox_message_rejected", extra=values(queue=batch[0].queue, key=key, error=str(error)))
            self._next()

    def _later(self) -> None:
        self._is_busy = True
        self._desk.later(AGAIN_SECONDS, self._again)

    def _again(self) -> None:
        self._is_busy = False
        self._next()


def envelope_of(put: Put, now: int) -> Envelope:
    digest = blake2b(b"\0".join((put.sender, put.name, put.value)), digest_size=12).hexdigest()
    shown = _ODD.sub("_", text_of(put.name))[:60]
    attributes = {"client": text_of(put.sender)} if put.sender else {}
    content_type = JSON_TYPE if is_plain_json(put.value) else None
    new = NewMessage(payload=put.value, id=f"{shown}-{digest}", attributes=attributes, content_type=content_type)
    return build(put.queue, new, "", now)
