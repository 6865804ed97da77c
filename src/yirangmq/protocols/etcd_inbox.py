"""Inbox of plain etcd clients: a key that a client puts becomes a message in the commit that deletes the key.

The message id contains a hash of sender, name and content. A producer that lost its answer puts the same key again, and
the queue recognises the duplicate while the first message is in its dedup window. Different content under the same key
is a different message.

Up to ``MAX_BATCH_MESSAGES`` messages of one queue share a commit. If the queue refuses such a batch, its messages are
tried one by one; a message that is refused alone is logged and stays in etcd. After errors of the store, a quota or
a hook the batch is retried after ``RETRY_SECONDS``. Loop thread only."""

import re
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.operations import publish
from yirangmq.cluster.keys import InboxMessage, decode_segment
from yirangmq.core.errors import HookFailed, QueueError, QuotaExceeded, StoreError, Unavailable
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Clock, Transaction
from yirangmq.format.envelope import JSON_TYPE, NewMessage, build, is_plain_json
from yirangmq.observe.logs import log, values

MAX_BATCH_MESSAGES = 16
"""Maximum number of messages of a batch, which is one commit."""
MAX_BATCH_BYTES = 400_000
"""Maximum sum of the values of a batch, in bytes; a single larger value is a batch alone."""
RETRY_SECONDS = 2.0
"""Delay before a failed batch is retried, in seconds."""
_ODD = re.compile(r"[^A-Za-z0-9_-]")


class EtcdInbox:
    """Inbox of etcd clients: publishes the keys that they put, one batch at a time. Loop thread only."""

    def __init__(self, committer: GroupCommitter, clock: Clock, full: Callable[[], QueueError | None]) -> None:
        """``full``: return the error while nothing may be published, otherwise None."""
        self._committer = committer
        self._clock = clock
        self._full = full
        self._waiting: deque[InboxMessage] = deque()
        self._is_busy = False
        self._single_count = 0
        """Number of messages at the front of the queue to publish one by one, because the queue refused a batch."""

    def on_inbox_messages(self, puts: list[InboxMessage]) -> None:
        self._waiting.extend(puts)
        self._publish_next()

    def clear(self) -> None:
        """Drop the waiting keys: another node leads now, and finds them in etcd."""
        self._waiting.clear()

    def _publish_next(self) -> None:
        if self._is_busy or not self._waiting or not self._committer.guard.is_on:
            return
        if self._full() is not None:
            self._schedule_retry()
            return
        batch = self._batch()
        self._is_busy = True
        self._committer.submit(
            lambda transaction: self._publish_batch(transaction, batch), lambda _, error: self._done(batch, error)
        )

    def _batch(self) -> list[InboxMessage]:
        """Remove and return the next batch: keys of one queue within the limits, each key once."""
        first = self._waiting.popleft()
        batch, size = [first], len(first.value)
        most = 1 if self._single_count else MAX_BATCH_MESSAGES
        while self._waiting and len(batch) < most:
            one = self._waiting[0]
            size += len(one.value)
            if one.queue != first.queue or size > MAX_BATCH_BYTES or any(one.key == other.key for other in batch):
                break
            batch.append(self._waiting.popleft())
        self._single_count = max(0, self._single_count - 1)
        return batch

    def _publish_batch(self, transaction: Transaction, batch: list[InboxMessage]) -> None:
        now = self._clock.now_ms()
        publish(self._committer.context, transaction, batch[0].queue, [envelope_of(put, now) for put in batch])
        store: Any = transaction
        store.external_operations([put.removal for put in batch])

    def _done(self, batch: list[InboxMessage], error: QueueError | None) -> None:
        self._is_busy = False
        if error is None:
            self._publish_next()
        elif isinstance(error, Unavailable | StoreError | QuotaExceeded | HookFailed):
            self._waiting.extendleft(reversed(batch))
            self._schedule_retry()
        elif len(batch) > 1:
            self._waiting.extendleft(reversed(batch))
            self._single_count = len(batch)
            self._publish_next()
        else:
            key = batch[0].key.decode("utf-8", "backslashreplace")
            log.error("inbox_message_rejected", extra=values(queue=batch[0].queue, key=key, error=str(error)))
            self._publish_next()

    def _schedule_retry(self) -> None:
        self._is_busy = True
        self._committer.later(RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        self._is_busy = False
        self._publish_next()


def envelope_of(put: InboxMessage, now: int) -> Envelope:
    digest = blake2b(b"\0".join((put.sender, put.name, put.value)), digest_size=12).hexdigest()
    shown = _ODD.sub("_", decode_segment(put.name))[:60]
    attributes = {"client": decode_segment(put.sender)} if put.sender else {}
    content_type = JSON_TYPE if is_plain_json(put.value) else None
    new = NewMessage(payload=put.value, id=f"{shown}-{digest}", attributes=attributes, content_type=content_type)
    return build(put.queue, new, "", now)
