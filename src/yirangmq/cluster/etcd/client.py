"""etcd v3 client: keys, transactions, leases; list and watch; packing many operations into one transaction.

Reads, and calls marked ``repeat``, go to the next member when one fails; writes never do (``cluster.etcd.channel``). An
empty range end means "and all keys after it" to etcd, so for a single key the member ``range_end`` is not sent.

``follow`` lists a range, then watches it from the next revision, and lists again when the history between was
compacted.

Packing writes each operation directly into the request, since a finished one would be copied with its message.
Operations without a condition share nested transactions, as many as fit: a nested transaction costs every member
more than an operation inside it."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from yirangmq.cluster.etcd import channel
from yirangmq.cluster.etcd.address import Address
from yirangmq.cluster.etcd.channel import Compacted, Lines
from yirangmq.cluster.etcd.watch import Watch
from yirangmq.core.errors import NotFound

# -- keys, transactions and leases -------------------------------------------------------------------------------------

PAGE = 500
EQUAL, GREATER, LESS = 0, 1, 2
VERSION, CREATE, MOD = 0, 1, 2
NO_PUT, NO_DELETE = 0, 1

_make = channel.MESSAGES
Op = _make["RequestOp"]
Txn = _make["TxnRequest"]
_Compare, _Range, _Put, _Delete = (
    _make[name] for name in ("Compare", "RangeRequest", "PutRequest", "DeleteRangeRequest")
)


def end_of(prefix: bytes) -> bytes:
    """Return the first key after all keys that begin with ``prefix``."""
    for at in reversed(range(len(prefix))):
        if prefix[at] < 255:
            return prefix[:at] + bytes([prefix[at] + 1])
    return b"\0"


def created_at(key: bytes, revision: int) -> Any:
    """Compare: the key was created at exactly this revision; 0: it does not exist."""
    return _Compare(result=EQUAL, target=CREATE, key=key, create_revision=revision)


def changed_at(key: bytes, revision: int) -> Any:
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

    def __init__(self, address: Address) -> None:
        self.lines = Lines(address)

    async def __aenter__(self) -> "Etcd":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.lines.close()

    async def range(self, key: bytes, end: bytes = b"", **how: Any) -> Any:
        """Read a range. Options are those of etcd: ``limit``, ``revision``, ``sort_order``, ``sort_target``,
        ``serializable``, ``keys_only``, ``count_only``."""
        return await self.lines.call(channel.RANGE, _Range(key=key, range_end=end or None, **how), repeat=True)

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
        return await self.lines.call(channel.PUT, _Put(key=key, value=value, lease=lease))

    async def delete(self, key: bytes, end: bytes = b"", *, repeat: bool = False) -> int:
        answer = await self.lines.call(channel.DELETE, _Delete(key=key, range_end=end or None), repeat=repeat)
        return int(answer.deleted)

    async def txn(
        self, compare: Sequence[Any], success: Sequence[Any], failure: Sequence[Any] = (), *, repeat: bool = False
    ) -> Any:
        """Run a transaction. ``repeat`` is allowed only if the transaction is idempotent."""
        return await self.send(Txn(compare=compare, success=success, failure=failure), repeat=repeat)

    async def send(self, transaction: Any, *, repeat: bool = False) -> Any:
        """Run a transaction request."""
        return await self.lines.call(channel.TXN, transaction, repeat=repeat)

    def watch(self, key: bytes, end: bytes = b"", *, revision: int, puts: bool = True, deletes: bool = True) -> Watch:
        unwanted = [NO_PUT] * (not puts) + [NO_DELETE] * (not deletes)
        return Watch(self.lines, key, end, revision, unwanted)

    async def grant(self, seconds: int) -> tuple[int, int]:
        """Create a lease; return (id, seconds). etcd may grant more seconds than requested."""
        answer = await self.lines.call(channel.GRANT, channel.GRANT.request(TTL=seconds), repeat=True)
        return answer.ID, answer.TTL

    async def revoke(self, lease: int) -> None:
        try:
            await self.lines.call(channel.REVOKE, channel.REVOKE.request(ID=lease), repeat=True)
        except NotFound:
            return

    async def compact(self, revision: int) -> None:
        await self.lines.call(channel.COMPACT, channel.COMPACT.request(revision=revision), repeat=True)


# -- list and watch ----------------------------------------------------------------------------------------------------


class Changes(NamedTuple):
    """Changes of a range. With ``anew``, ``events`` is a full listing: a known key that is not in it is deleted.
    Otherwise ``events`` are watch events."""

    anew: bool
    events: list[Any]
    revision: int


async def follow(etcd: Etcd, key: bytes, end: bytes, *, deletes: bool = True) -> AsyncIterator[Changes]:
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
        except Compacted:
            continue


# -- packing -----------------------------------------------------------------------------------------------------------

MOST_INSIDE = 24
MOST_TOP = 100
"""Operations on the outer level. etcd accepts 128 comparisons and 128 operations per level, and adds nested operations
to those of the outer level."""


class Packing:
    """Builder of one transaction that packs unconditional operations into nested transactions.

    ``place`` is the index, among the answers, of the next operation on the outer level."""

    def __init__(self, *compare: Any) -> None:
        self.request = Txn(compare=compare)
        self._pack: Any = None
        self._packed = 0

    @property
    def place(self) -> int:
        return len(self.request.success)

    @property
    def is_empty(self) -> bool:
        return not self.request.success

    def has_room(self, operations: int = 1) -> bool:
        return len(self.request.success) + -(-operations // MOST_INSIDE) <= MOST_TOP

    def only_if(self, key: bytes, revision: int) -> None:
        """Add a condition of the whole transaction: the key was last written at this revision."""
        self.request.compare.add(result=EQUAL, target=MOD, key=key, mod_revision=revision)

    def put(self, key: bytes, value: bytes) -> None:
        made = self._inside().add().request_put
        made.key, made.value = key, value

    def delete(self, key: bytes, end: bytes = b"") -> None:
        made = self._inside().add().request_delete_range
        made.key = key
        if end:
            made.range_end = end

    def add(self, operation: Any) -> None:
        """Add an operation on the outer level."""
        self.request.success.append(operation)

    def put_outside(self, key: bytes, value: bytes) -> None:
        """Add a put on the outer level, where etcd's quota counts it."""
        made = self.request.success.add().request_put
        made.key, made.value = key, value

    def otherwise(self, operation: Any) -> None:
        self.request.failure.append(operation)

    def _inside(self) -> Any:
        if self._pack is None or self._packed == MOST_INSIDE:
            self._pack = self.request.success.add().request_txn.success
            self._packed = 0
        self._packed += 1
        return self._pack
