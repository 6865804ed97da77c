"""Connection to one etcd member at a time, with failover to the next; etcd's messages, from ``etcd.proto``.

A write is never sent twice. If a connection fails after a write was sent, the write may have been applied: the call
raises ``Unreachable``, and the caller must check. Every other error, ``Unavailable`` among them, means that it was not
applied. Calls marked ``repeat`` are idempotent, and are retried at the next member. etcd rejects an expired token
before it applies anything, so the client fetches a new one and repeats the call once.

The message classes are built when this module is loaded. Only the used subset of proto2 is parsed: messages of
optional and repeated fields. So there is no generated code, and any protobuf from 4.25 on works."""

import asyncio
import contextlib
import random
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any, NamedTuple, NoReturn

from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.core.errors import (
    BadInput,
    MissingExtra,
    NotAllowed,
    NotFound,
    QueueError,
    StoreError,
    StoreFull,
    TooLarge,
    Unavailable,
    Unreachable,
)

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError as error:  # pragma: no cover - the base install
    raise MissingExtra("etcd needs grpcio and protobuf: pip install 'yirangmq[etcd]'") from error


# -- messages and methods ----------------------------------------------------------------------------------------------

PACKAGE = "yirangmq.etcd"
COMMENT = re.compile(r"//[^\n]*")
MESSAGE = re.compile(r"message (\w+) \{([^}]*)\}")
FIELD = re.compile(r"(optional|repeated) (\w+) (\w+) = (\d+);")
Fields = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "bytes": Fields.TYPE_BYTES,
    "string": Fields.TYPE_STRING,
    "bool": Fields.TYPE_BOOL,
    "int32": Fields.TYPE_INT32,
    "int64": Fields.TYPE_INT64,
    "uint64": Fields.TYPE_UINT64,
}


def read_proto(text: str) -> dict[str, Any]:
    """Build the message classes of a proto2 text; return them by name."""
    described = descriptor_pb2.FileDescriptorProto(name="etcd.proto", package=PACKAGE, syntax="proto2")
    for name, body in MESSAGE.findall(COMMENT.sub("", text)):
        message = described.message_type.add(name=name)
        for label, kind, field, number in FIELD.findall(body):
            made = message.field.add(name=field, number=int(number))
            made.label = Fields.LABEL_REPEATED if label == "repeated" else Fields.LABEL_OPTIONAL
            if kind in SCALARS:
                made.type = SCALARS[kind]
            else:
                made.type, made.type_name = Fields.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(described.SerializeToString())
    found = [pool.FindMessageTypeByName(f"{PACKAGE}.{message.name}") for message in described.message_type]
    return {one.name: message_factory.GetMessageClass(one) for one in found}


MESSAGES = read_proto((files(__package__) / "etcd.proto").read_text())


class Method(NamedTuple):
    """A gRPC method: its path, and the classes of request and response."""

    path: str
    request: Any
    response: Any


def _method(path: str, request: str, response: str) -> Method:
    return Method(f"/etcdserverpb.{path}", MESSAGES[request], MESSAGES[response])


RANGE = _method("KV/Range", "RangeRequest", "RangeResponse")
PUT = _method("KV/Put", "PutRequest", "PutResponse")
DELETE = _method("KV/DeleteRange", "DeleteRangeRequest", "DeleteRangeResponse")
TXN = _method("KV/Txn", "TxnRequest", "TxnResponse")
COMPACT = _method("KV/Compact", "CompactionRequest", "HeaderOnly")
GRANT = _method("Lease/LeaseGrant", "LeaseGrantRequest", "LeaseGrantResponse")
REVOKE = _method("Lease/LeaseRevoke", "LeaseRevokeRequest", "HeaderOnly")
KEEP_ALIVE = _method("Lease/LeaseKeepAlive", "LeaseKeepAliveRequest", "LeaseKeepAliveResponse")
WATCH = _method("Watch/Watch", "WatchRequest", "WatchResponse")
AUTHENTICATE = _method("Auth/Authenticate", "AuthenticateRequest", "AuthenticateResponse")
USER_ADD = _method("Auth/UserAdd", "AuthUserAddRequest", "HeaderOnly")
ROLE_ADD = _method("Auth/RoleAdd", "AuthRoleAddRequest", "HeaderOnly")
ROLE_GRANT = _method("Auth/RoleGrantPermission", "AuthRoleGrantPermissionRequest", "HeaderOnly")
USER_GRANT = _method("Auth/UserGrantRole", "AuthUserGrantRoleRequest", "HeaderOnly")
STATUS = _method("Maintenance/Status", "Empty", "StatusResponse")
ALARM = _method("Maintenance/Alarm", "AlarmRequest", "AlarmResponse")
DEFRAGMENT = _method("Maintenance/Defragment", "Empty", "HeaderOnly")
MOVE_LEADER = _method("Maintenance/MoveLeader", "MoveLeaderRequest", "HeaderOnly")
MEMBERS = _method("Cluster/MemberList", "Empty", "MemberListResponse")


# -- connections -------------------------------------------------------------------------------------------------------

try:
    import grpc
    from grpc import aio
except ImportError as error:  # pragma: no cover - the base install
    raise MissingExtra("etcd needs grpcio and protobuf: pip install 'yirangmq[etcd]'") from error

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),  # a write retried inside gRPC could store a message twice
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
CONNECT_SECONDS = 1.0
GRACE_SECONDS = 5.0
"""Grace period in s before an abandoned connection is closed. It is longer than the timeout of its calls, so they
complete first."""
ATTEMPTS_PER_MEMBER = 2
"""Attempts per member for one call."""
PAUSE_SECONDS = 0.1
RETRYABLE_DETAILS = ("no leader", "leader changed", "timed out", "not capable", "too many requests", "server stopped")
FULL = (
    "etcd is full and takes nothing until there is room and its alarm is lifted: `yirangmq cluster repair` does both "
    '(docs/cluster.md, "When etcd is full")'
)
EXPIRED_TOKEN_DETAILS = ("invalid auth token", "revision of auth store is old")


class RevisionCompacted(Exception):
    """The requested revision was compacted: list again, then watch from the revision of the list."""


class MemberConnection:
    """Connection to one etcd member. ``left`` is set when it is no longer in use."""

    def __init__(self, endpoint: str, address: EtcdAddress) -> None:
        self.endpoint = endpoint
        self.left = asyncio.Event()
        if address.tls is None:
            self.channel = aio.insecure_channel(endpoint, options=OPTIONS)
        else:
            tls = grpc.ssl_channel_credentials(address.tls.ca, address.tls.key, address.tls.cert)
            self.channel = aio.secure_channel(endpoint, tls, options=OPTIONS)
        self._calls: dict[str, Any] = {}

    def unary(self, method: Method) -> Any:
        return self._made(method, self.channel.unary_unary)

    def stream(self, method: Method) -> Any:
        return self._made(method, self.channel.stream_stream)

    def _made(self, method: Method, make: Callable[..., Any]) -> Any:
        if method.path not in self._calls:
            encode, decode = method.request.SerializeToString, method.response.FromString
            self._calls[method.path] = make(method.path, request_serializer=encode, response_deserializer=decode)
        return self._calls[method.path]

    async def is_ready(self) -> bool:
        """Wait until connected, at most ``CONNECT_SECONDS``; return whether it is."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                while (state := self.channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                        return False
                    await self.channel.wait_for_state_change(state)
        except (TimeoutError, aio.UsageError):
            return False
        return True

    async def close(self, grace: float) -> None:
        self.left.set()
        with contextlib.suppress(Exception):
            await self.channel.close(grace)


class ClusterConnection:
    """Connection to a cluster: one member at a time, with failover to the next. Owned by ``Etcd``."""

    def __init__(self, address: EtcdAddress) -> None:
        self.address = address
        self._order = random.sample(address.endpoints, len(address.endpoints))
        self._member: MemberConnection | None = None
        self._token = ""
        self._token_lock = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    async def member(self) -> MemberConnection:
        """Return a ready connection, failing over to the next members. Raise ``Unavailable`` if no member answers."""
        for _ in range(ATTEMPTS_PER_MEMBER * len(self._order)):
            if self._member is None:
                self._member = MemberConnection(self._order[0], self.address)
            member = self._member
            if await member.is_ready():
                return member
            self.abandon(member)
        await asyncio.sleep(PAUSE_SECONDS)
        raise Unavailable(f"no member of the etcd cluster answers: {', '.join(self.address.endpoints)}")

    def abandon(self, member: MemberConnection) -> None:
        """Abandon a failed connection, so that the next call goes to the next member.

        No effect if another caller has abandoned it already."""
        if self._member is member:
            self._order.append(self._order.pop(0))
            self._member = None
            member.left.set()
            task = asyncio.ensure_future(member.close(GRACE_SECONDS))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def call(self, method: Method, request: Any, *, repeat: bool = False, seconds: float = 0) -> Any:
        """Call a method. ``repeat`` marks an idempotent request: it is retried at the next member on failure."""
        for left in reversed(range(ATTEMPTS_PER_MEMBER * len(self._order) if repeat else 1)):
            member = await self.member()
            try:
                return await self._call(member, method, request, seconds or self.address.timeout)
            except (Unreachable, Unavailable):
                self.abandon(member)
                if not left:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
        raise AssertionError("a call ends in its loop")

    async def metadata(self, member: MemberConnection) -> tuple[tuple[str, str], ...]:
        if not self.address.user:
            return ()
        async with self._token_lock:
            if not self._token:
                given = AUTHENTICATE.request(name=self.address.user, password=self.address.password)
                self._token = (await self._sent(member, AUTHENTICATE, given, self.address.timeout, ())).token
        return (("token", self._token),)

    def forget_token(self) -> None:
        self._token = ""

    async def _call(self, member: MemberConnection, method: Method, request: Any, seconds: float) -> Any:
        """Call with the token. etcd rejects an expired token before it applies anything, so fetch a new one and call
        once more."""
        try:
            return await self._sent(member, method, request, seconds, await self.metadata(member))
        except TokenExpired:
            self.forget_token()
        return await self._sent(member, method, request, seconds, await self.metadata(member))

    async def _sent(
        self,
        member: MemberConnection,
        method: Method,
        request: Any,
        seconds: float,
        metadata: tuple[tuple[str, str], ...],
    ) -> Any:
        try:
            return await member.unary(method)(request, timeout=seconds, metadata=metadata)
        except aio.AioRpcError as error:
            raise_translated(error, member.endpoint)
        except asyncio.CancelledError:
            raise_connection_closed(member)
        except (aio.UsageError, asyncio.InvalidStateError) as error:
            raise Unreachable(f"{member.endpoint}: the connection was closed during a call") from error

    async def close(self) -> None:
        if self._member is not None:
            await self._member.close(0)
            self._member = None
        for task in list(self._closing):
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)


class TokenExpired(NotAllowed):
    """The authentication token has expired."""

    pass


def raise_connection_closed(member: MemberConnection) -> NoReturn:
    """Raise ``Unreachable`` for a call that gRPC cancelled because its connection was closed.

    A cancellation of the current task is raised as ``CancelledError``."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    raise Unreachable(f"{member.endpoint}: the connection was closed during a call") from None


def raise_translated(error: Any, endpoint: str) -> NoReturn:
    raise translate_error(error.code(), error.details() or "", endpoint) from None


def translate_error(code: Any, details: str, endpoint: str) -> Exception:
    """Map an error of etcd to an exception.

    An error that does not prove the call was rejected becomes ``Unreachable``: it may have been applied."""
    text, status = f"{endpoint}: {details}", grpc.StatusCode
    if any(words in details for words in EXPIRED_TOKEN_DETAILS):
        return TokenExpired(text)
    if any(words in details for words in RETRYABLE_DETAILS) or code in (status.UNAVAILABLE, status.DEADLINE_EXCEEDED):
        return Unreachable(text)
    if "has been compacted" in details:
        return RevisionCompacted(details)
    if "database space exceeded" in details:
        return StoreFull(f"{endpoint}: {FULL}")
    if "request is too large" in details or "larger than max" in details:
        return TooLarge(text)
    if code in (status.UNAUTHENTICATED, status.PERMISSION_DENIED) or "authentication failed" in details:
        return NotAllowed(text)
    kinds: dict[Any, type[QueueError]] = {status.NOT_FOUND: NotFound, status.INVALID_ARGUMENT: BadInput}
    if code in (status.CANCELLED, status.UNKNOWN, status.INTERNAL):
        return Unreachable(text)
    return kinds.get(code, StoreError)(text)
