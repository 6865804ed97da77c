"""etcd v3 client: keys, transactions, leases; list and watch; packing many operations into one transaction.

Reads, and calls marked ``repeat``, go to the next member when one fails; writes never do (``cluster.etcd.channel``). An
empty range end means "and all keys after it" to etcd, so for a single key the member ``range_end`` is not sent.

``list_and_watch`` lists a range, then watches it from the next revision, and lists again when the history between was
compacted.

Packing writes each operation directly into the request, since a finished one would be copied with its message.
Operations without a condition share nested transactions, as many as fit: a nested transaction costs every member
more than an operation inside it."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from yirangmq.cluster.etcd import channel
from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.cluster.etcd.channel import ClusterConnection, RevisionCompacted
from yirangmq.cluster.etcd.watch import EtcdWatch
from yirangmq.core.errors import NotFound

# -- keys, transactions and leases -------------------------------------------------------------------------------------

PAGE = 500
EQUAL, GREATER, LESS = 0, 1, 2
VERSION, CREATE, MOD = 0, 1, 2
NO_PUT, NO_DELETE = 0, 1
PHYSICAL_COMPACTION_SECONDS = 120.0
"""Timeout of a compaction that waits for its end."""

_make = channel.MESSAGES
Op = _make["RequestOp"]
Txn = _make["TxnRequest"]
_Compare, _Range, _Put, _Delete = (
    _make[name] for name in ("Compare", "RangeRequest", "PutRequest", "DeleteRangeRequest")
)


def prefix_end(prefix: bytes) -> bytes:
    """Return the first key after all keys that begin with ``prefix``."""
    for at in reversed(range(len(prefix))):
        if prefix[at] < 255:
            return prefix[:at] + bytes([prefix[at] + 1])
    return b"\0"


def create_revision_equals(key: bytes, revision: int) -> Any:
    """Compare: the key was created at exactly this revision; 0: it does not exist."""
    return _Compare(result=EQUAL, target=CREATE, key=key, create_revision=revision)


def mod_revision_equals(key: bytes, revision: int) -> Any:
    """Compare: the key was last written at exactly this revision; 0: it does not exist."""
    return _Compare(result=EQUAL, target=MOD, key=key, mod_revision=revision)


def exists(key: bytes) -> Any:
    return _Compare(result=GREATER, target=VERSION, key=key, version=0)


def put(key: bytes, value: bytes, lease: int = 0) -> Any:
    return Op(request_put=_Put(key=key, value=value, lease=lease))


def rewrite(key: bytes, value: bytes) -> Any:
    """Put another value and keep the key's lease."""
    return Op(request_put=_Put(key=key, value=value, ignore_lease=True))


def delete(key: bytes, end: bytes = b"") -> Any:
    return Op(request_delete_range=_Delete(key=key, range_end=end or None))


def get(key: bytes, end: bytes = b"", **how: Any) -> Any:
    return Op(request_range=_Range(key=key, range_end=end or None, **how))


def nested(compare: Sequence[Any], success: Sequence[Any], failure: Sequence[Any] = ()) -> Any:
    return Op(request_txn=Txn(compare=compare, success=success, failure=failure))


class Etcd:
    """Client of an etcd cluster. Used in one event loop, with ``async with``."""

    def __init__(self, address: EtcdAddress) -> None:
        self.connection = ClusterConnection(address)

    async def __aenter__(self) -> "Etcd":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.connection.close()

    async def range(self, key: bytes, end: bytes = b"", **how: Any) -> Any:
        """Read a range. Options are those of etcd: ``limit``, ``revision``, ``sort_order``, ``sort_target``,
        ``serializable``, ``keys_only``, ``count_only``."""
        return await self.connection.call(channel.RANGE, _Range(key=key, range_end=end or None, **how), repeat=True)

    async def pages(self, key: bytes, end: bytes, *, revision: int = 0, **how: Any) -> AsyncIterator[list[Any]]:
        """Yield a whole range in order of keys, at one revision, in pages."""
        while True:
            found = await self.range(key, end, revision=revision, limit=PAGE, **how)
            revision = revision or found.header.revision
            if found.kvs:
                yield list(found.kvs)
            if not found.more:
                return
            key = found.kvs[-1].key + b"\0"

    async def get(self, key: bytes) -> Any | None:
        found = await self.range(key)
        return found.kvs[0] if found.kvs else None

    async def put(self, key: bytes, value: bytes, lease: int = 0) -> Any:
        return await self.connection.call(channel.PUT, _Put(key=key, value=value, lease=lease))

    async def delete(self, key: bytes, end: bytes = b"", *, repeat: bool = False) -> int:
        answer = await self.connection.call(channel.DELETE, _Delete(key=key, range_end=end or None), repeat=repeat)
        return int(answer.deleted)

    async def txn(
        self, compare: Sequence[Any], success: Sequence[Any], failure: Sequence[Any] = (), *, repeat: bool = False
    ) -> Any:
        """Run a transaction. ``repeat`` is allowed only if the transaction is idempotent."""
        return await self.send(Txn(compare=compare, success=success, failure=failure), repeat=repeat)

    async def send(self, transaction: Any, *, repeat: bool = False) -> Any:
        """Run a transaction request."""
        return await self.connection.call(channel.TXN, transaction, repeat=repeat)

    def watch(
        self, key: bytes, end: bytes = b"", *, revision: int, puts: bool = True, deletes: bool = True
    ) -> EtcdWatch:
        unwanted = [NO_PUT] * (not puts) + [NO_DELETE] * (not deletes)
        return EtcdWatch(self.connection, key, end, revision, unwanted)

    async def grant(self, seconds: int) -> tuple[int, int]:
        """Create a lease; return (id, seconds). etcd may grant more seconds than requested."""
        answer = await self.connection.call(channel.GRANT, channel.GRANT.request(TTL=seconds), repeat=True)
        return answer.ID, answer.TTL

    async def revoke(self, lease: int) -> None:
        try:
            await self.connection.call(channel.REVOKE, channel.REVOKE.request(ID=lease), repeat=True)
        except NotFound:
            return

    async def compact(self, revision: int, *, physical: bool = False) -> None:
        """Drop the history before a revision. ``physical``: return when the member that answers has freed the space."""
        request = channel.COMPACT.request(revision=revision, physical=physical or None)
        seconds = PHYSICAL_COMPACTION_SECONDS if physical else 0.0
        await self.connection.call(channel.COMPACT, request, repeat=True, seconds=seconds)


# -- list and watch ----------------------------------------------------------------------------------------------------


class Changes(NamedTuple):
    """Changes of a range. With ``is_listing``, ``events`` is a full listing: a known key that is not in it is deleted.
    Otherwise ``events`` are watch events."""

    is_listing: bool
    events: list[Any]
    revision: int


async def list_and_watch(etcd: Etcd, key: bytes, end: bytes, *, deletes: bool = True) -> AsyncIterator[Changes]:
    while True:
        try:
            found: list[Any] = []
            head = await etcd.range(key, end, limit=1, keys_only=True)
            revision = int(head.header.revision)
            async for page in etcd.pages(key, end, revision=revision):
                found += page
            yield Changes(True, found, revision)
            async for events in etcd.watch(key, end, revision=revision + 1, deletes=deletes):
                yield Changes(False, events, events[-1].kv.mod_revision)
        except RevisionCompacted:
            continue


# -- packing -----------------------------------------------------------------------------------------------------------

MAX_NESTED = 24
MAX_TOP_LEVEL = 100
"""Operations on the outer level. etcd accepts 128 comparisons and 128 operations per level, and adds nested operations
to those of the outer level."""
MAX_KEY_BYTES = 400_000
"""Bytes of keys in one transaction. etcd accepts 1.5 MiB, of which the values have 1,000,000 bytes."""


class TransactionBuilder:
    """Builder of one transaction that packs unconditional operations into nested transactions.

    ``answer_index`` is the index, among the answers, of the next operation on the outer level."""

    def __init__(self, *compare: Any) -> None:
        self.request = Txn(compare=compare)
        self._pack: Any = None
        self._packed = 0
        self._key_bytes = 0

    @property
    def answer_index(self) -> int:
        return len(self.request.success)

    @property
    def is_empty(self) -> bool:
        return not self.request.success

    def has_capacity(self, operations: int = 1) -> bool:
        is_small = self._key_bytes < MAX_KEY_BYTES
        return is_small and len(self.request.success) + -(-operations // MAX_NESTED) <= MAX_TOP_LEVEL

    def require_revision(self, key: bytes, revision: int) -> None:
        """Add a condition of the whole transaction: the key was last written at this revision."""
        self.request.compare.add(result=EQUAL, target=MOD, key=key, mod_revision=revision)
        self._key_bytes += len(key)

    def put(self, key: bytes, value: bytes) -> None:
        made = self._nested_operations().add().request_put
        made.key, made.value = key, value
        self._key_bytes += len(key)

    def delete(self, key: bytes, end: bytes = b"") -> None:
        made = self._nested_operations().add().request_delete_range
        made.key = key
        if end:
            made.range_end = end
        self._key_bytes += len(key) + len(end)

    def add(self, operation: Any, key_bytes: int = 0) -> None:
        """Add an operation on the outer level; ``key_bytes`` is the size of its keys."""
        self.request.success.append(operation)
        self._key_bytes += key_bytes

    def put_top_level(self, key: bytes, value: bytes) -> None:
        """Add a put on the outer level, where etcd's quota counts it."""
        made = self.request.success.add().request_put
        made.key, made.value = key, value

    def on_failure(self, operation: Any) -> None:
        self.request.failure.append(operation)

    def _nested_operations(self) -> Any:
        if self._pack is None or self._packed == MAX_NESTED:
            self._pack = self.request.success.add().request_txn.success
            self._packed = 0
        self._packed += 1
        return self._pack
