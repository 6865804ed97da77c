"""etcd's messages, made from ``etcd.proto`` when this module is loaded, and the methods that take and give them.
Knows: the text of that file, protobuf. Does not know: connections, keys, queues.

The file is plain protobuf that any compiler takes; of that language only what it uses is read here: messages of
optional and repeated fields. So nothing generated is kept, and any protobuf from 4.25 on will do."""

import re
from importlib.resources import files
from typing import Any, NamedTuple

from yirangmq.core.errors import MissingExtra

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError as error:  # pragma: no cover - the base install
    raise MissingExtra("etcd needs grpcio and protobuf: pip install 'yirangmq[etcd]'") from error

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
    """The message classes of such a text, by name."""
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
    """A path, what goes there and what comes back."""

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
