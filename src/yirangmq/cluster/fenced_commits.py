"""Fenced commits of one leader term in a store on etcd, with a journal for transactions too large for a request.

Every commit compares two keys: the leader's key must be the one this leader made, and the key ``commit`` must be as its
last commit left it. So a commit can be sent again after a lost answer, and is applied once.

A commit that does not fit into one request sends new bodies ahead, which have no effect until a message names them. If
the rest is still too large, it is first written to journal keys ``j/NUMBER``. The commit then makes the journal valid
by writing the number of its parts, and the leader, or the next one, applies and deletes it. A journal part is a
sequence of entries: key length (u32), value length (i32, -1 deletes), key, value, big-endian.

A term begins by reading all keys of the store at one revision. It ends when the lease is lost, a comparison fails,
or a commit stays unconfirmed. Runs in the event loop of the etcd thread."""

import asyncio
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from yirangmq.cluster.dispatch.recovery import LeadershipLost
from yirangmq.cluster.etcd.client import (
    Etcd,
    create_revision_equals,
    delete,
    get,
    mod_revision_equals,
    nested,
    prefix_end,
    put,
)
from yirangmq.cluster.etcd.lease import EtcdLease
from yirangmq.core.errors import StoreFull, Unavailable
from yirangmq.format.json_codec import dumps, loads

Writes = Mapping[bytes, bytes | None]
"""Values by key, without the store's prefix; None deletes the key."""
MAX_WRITES = 2_000
MAX_PLAIN = 100
MAX_NESTED = 24
"""Operations in one nested transaction. etcd accepts 128 operations per level, and adds nested operations to those of
the outer level."""
MAX_BYTES = 1_200_000
"""Bytes of keys and values in one request. etcd accepts 1.5 MiB, including the encoding around them."""
OVERHEAD = 40
PAUSE_SECONDS = 0.05
COMMIT, JOURNAL = b"commit", b"j/"
_HEAD = struct.Struct(">Ii")


class LeaderTerm:
    """Fenced commits of one leader term. ``fence`` is the term's fencing token.

    ``is_on`` compares the monotonic clock, so a process that was suspended sees immediately that its lease has
    expired. Not thread-safe: runs in the event loop of the etcd thread."""

    def __init__(self, etcd: Etcd, prefix: bytes, fence: int, lease: EtcdLease) -> None:
        self._etcd = etcd
        self._prefix = prefix
        self._lease = lease
        self.fence = fence
        self._number = 0
        self._revision = 0
        self.finished = asyncio.Event()

    @property
    def is_on(self) -> bool:
        return not self.finished.is_set() and self._lease.is_alive

    @property
    def leader_key(self) -> bytes:
        return self._prefix + b"leader"

    # -- reading at the start of the term ------------------------------------------------------------------------------

    async def start(self) -> dict[bytes, bytes]:
        """Return all keys of the store as the last leader left them, after applying a journal that it left unfinished.

        Raise ``LeadershipLost`` if the leader's key is no longer the one of this term."""
        head = await self._etcd.txn(
            [create_revision_equals(self.leader_key, self.fence)], [get(self._prefix + COMMIT)], repeat=True
        )
        if not head.succeeded:
            raise LeadershipLost("before it began")
        kvs = head.responses[0].response_range.kvs
        parts = 0
        if kvs:
            kept = loads(kvs[0].value)
            self._number, parts, self._revision = int(kept["n"]), int(kept["parts"]), int(kvs[0].mod_revision)
        found = await self._read(int(head.header.revision))
        journal = [found.pop(key) for key in sorted(found) if key.startswith(JOURNAL)]
        if parts:
            writes = dict(_read_journal(journal[:parts]))
            await self._finish(writes)
            found.update({key: value for key, value in writes.items() if value is not None})
            for key in [key for key, value in writes.items() if value is None]:
                found.pop(key, None)
        elif journal:
            await self._forget_journal()
        return found

    async def _read(self, revision: int) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        skip = len(self._prefix)
        async for page in self._etcd.pages(self._prefix, prefix_end(self._prefix), revision=revision):
            found.update((kv.key[skip:], kv.value) for kv in page)
        for key in (COMMIT, b"leader"):
            found.pop(key, None)
        return found

    # -- commits ------------------------------------------------------------------------------------------------------

    async def commit(self, writes: Writes, early: Writes, also: Sequence[Any] = ()) -> None:
        """Apply the writes atomically: all of them, or none and an error.

        ``early`` holds new keys that have no effect until ``writes`` are applied. ``also`` holds a few extra operations
        that join the same transaction. After ``Unavailable`` it is unknown whether the commit was applied, so the error
        ends the term."""
        try:
            await self._commit(writes, early, also)
        except (LeadershipLost, Unavailable):
            self.finished.set()
            raise

    async def _commit(self, writes: Writes, early: Writes, also: Sequence[Any]) -> None:
        together = {**early, **writes}
        if _fits(together):
            await self._commit_marker(together, 0, also)
            return
        for part in _split(early):
            await self._fenced(self._operations(part))
        if _fits(writes):
            await self._commit_marker(writes, 0, also)
            return
        parts = list(_journal(writes))
        try:
            for number, text in enumerate(parts):
                await self._fenced([put(self._prefix + JOURNAL + b"%06d" % number, text)])
        except StoreFull:
            await self._forget_journal()
            raise
        await self._commit_marker({}, len(parts), also)
        await self._finish(writes)

    async def _finish(self, writes: Writes) -> None:
        for part in _split(writes):
            await self._fenced(self._operations(part))
        await self._commit_marker({}, 0, [delete(self._prefix + JOURNAL, prefix_end(self._prefix + JOURNAL))])

    async def _forget_journal(self) -> None:
        await self._fenced([delete(self._prefix + JOURNAL, prefix_end(self._prefix + JOURNAL))])

    async def _commit_marker(self, writes: Writes, parts: int, more: Sequence[Any] = ()) -> None:
        """Run the transaction that makes a commit valid: the writes, and the next number of the ``commit`` key.

        If a previous attempt was lost and the key already has that number, the attempt was applied."""
        number = self._number + 1
        mark = put(self._prefix + COMMIT, dumps({"n": number, "parts": parts}))
        compare = [
            create_revision_equals(self.leader_key, self.fence),
            mod_revision_equals(self._prefix + COMMIT, self._revision),
        ]
        reads = [get(self.leader_key, keys_only=True), get(self._prefix + COMMIT)]
        answer, was_lost = await self._retry_transaction(compare, [*self._operations(writes), *more, mark], reads)
        if answer.succeeded:
            self._number, self._revision = number, int(answer.header.revision)
            return
        leader, last = (one.response_range.kvs for one in answer.responses)
        if not leader or leader[0].create_revision != self.fence:
            raise LeadershipLost("at a commit")
        if not was_lost or not last or int(loads(last[0].value)["n"]) != number:
            raise LeadershipLost("another process wrote to this store")
        self._number, self._revision = number, int(last[0].mod_revision)

    async def _fenced(self, operations: Sequence[Any]) -> None:
        """Run idempotent operations under the fence; raise ``LeadershipLost`` if it fails."""
        answer, _ = await self._retry_transaction([create_revision_equals(self.leader_key, self.fence)], operations, [])
        if not answer.succeeded:
            raise LeadershipLost("at a part of a commit")

    async def _retry_transaction(
        self, compare: Sequence[Any], success: Sequence[Any], failure: Sequence[Any]
    ) -> tuple[Any, bool]:
        """Retry a transaction while this node leads. Return the answer, and whether an earlier answer was lost.

        Raise ``LeadershipLost`` if the term ended before the transaction was sent, ``Unavailable`` if it may have been
        applied."""
        was_lost = False
        while self.is_on:
            try:
                async with asyncio.timeout(self._lease.left):
                    return await self._etcd.txn(compare, success, failure), was_lost
            except (Unavailable, TimeoutError):
                was_lost = True
                await asyncio.sleep(PAUSE_SECONDS)
            except StoreFull:
                if was_lost:  # the lost attempt may have been applied before etcd was full
                    break
                raise
        if not was_lost:
            raise LeadershipLost("before it was sent")
        raise Unavailable("etcd did not confirm this while this node led; it may have been done")

    def _operations(self, writes: Writes) -> list[Any]:
        """Build the operations: up to ``MAX_PLAIN`` on the outer level, where etcd's quota counts them, else in nested
        transactions."""
        plain = [
            delete(self._prefix + key) if value is None else put(self._prefix + key, value)
            for key, value in writes.items()
        ]
        if len(plain) <= MAX_PLAIN:
            return plain
        return [nested([], plain[at : at + MAX_NESTED]) for at in range(0, len(plain), MAX_NESTED)]


def _size(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + OVERHEAD


def _fits(writes: Writes) -> bool:
    return len(writes) <= MAX_WRITES and sum(_size(key, value) for key, value in writes.items()) <= MAX_BYTES


def _split(writes: Writes) -> Iterator[Writes]:
    part: dict[bytes, bytes | None] = {}
    size = 0
    for key, value in writes.items():
        if part and (len(part) >= MAX_WRITES or size + _size(key, value) > MAX_BYTES):
            yield part
            part, size = {}, 0
        part[key] = value
        size += _size(key, value)
    if part:
        yield part


def _journal(writes: Writes) -> Iterator[bytes]:
    for part in _split(writes):
        yield b"".join(
            _HEAD.pack(len(key), -1 if value is None else len(value)) + key + (value or b"")
            for key, value in part.items()
        )


def _read_journal(parts: Iterable[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
    for text in parts:
        at = 0
        while at < len(text):
            key_size, value_size = _HEAD.unpack_from(text, at)
            at += _HEAD.size
            key = text[at : at + key_size]
            at += key_size
            yield key, None if value_size < 0 else text[at : at + value_size]
            at += max(0, value_size)
