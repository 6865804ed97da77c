"""Administration of queues in etcd: the state of a queue, deposing its leader, and roles for etcd's users.

The state of one queue is read in one transaction, so its numbers are of one revision. Deposing deletes the leader's
key. That is safe at any time, because every write of a dispatcher is fenced.

etcd cannot grant deletes without puts, so "a consumer may only delete" cannot be a role. A consumer may therefore
write below its own prefix; the leader ignores keys that the consumer puts there."""

from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

from yirangmq.cluster.discovery import find_queues
from yirangmq.cluster.etcd import channel
from yirangmq.cluster.etcd.address import DEFAULT_NAME
from yirangmq.cluster.etcd.client import Etcd, create_revision_equals, delete, get, list_and_watch, prefix_end
from yirangmq.cluster.keys import ROOTS, DeliveryKey, Keys, RegistrationKey
from yirangmq.cluster.leadership import leader_key, prefix_of
from yirangmq.core.errors import BadInput, NotFound, QueueError, WrongState
from yirangmq.format.json_codec import loads

# -- state of the queues -----------------------------------------------------------------------------------------------


class DispatchedQueueStatus(NamedTuple):
    """State of one queue at one revision.

    ``line`` counts all messages in line: ``given`` are leased, ``waiting`` were never delivered, ``again`` came back
    after a delivery. ``at`` is the instant of the leader's last write, in ms of that node's clock."""

    queue: str
    leader: str
    inbox: int
    line: int
    waiting: int
    given: int
    again: int
    dead: int
    consumers: int
    moved: int
    acked: int
    at: int
    long_keys: bool
    """The line has a second copy under ``/queue/QUEUE/``."""


async def queue_status(etcd: Etcd, queue: str) -> DispatchedQueueStatus:
    """Read the state of a queue in one transaction."""
    keys = Keys(queue)
    base = keys.base
    counted = [(base + b"0", keys.ordered_end), (base + b"r/", base + b"r0"), (base + b"dead/", base + b"dead0")]
    counted += keys.inbox_places()
    homes = [get(start, end, keys_only=True) for start, end in keys.consumers()]
    reads = [get(keys.leader), get(keys.state), get(keys.long_leader, keys_only=True)]
    reads += [get(start, end, count_only=True) for start, end in counted]
    answer = await etcd.txn([], [*reads, *homes], repeat=True)
    found = [one.response_range for one in answer.responses]
    leader, state = (one.kvs[0].value if one.kvs else b"" for one in found[:2])
    line, notes, dead, *inboxes = (one.count for one in found[3 : -len(homes)])
    under = [keys.parsed(kv.key) for one in found[-len(homes) :] for kv in one.kvs]
    kept = _numbers(state)
    return DispatchedQueueStatus(
        queue=queue,
        leader=leader.decode("utf-8", "backslashreplace"),
        inbox=sum(inboxes),
        line=line,
        waiting=kept["next"] - 1 - kept["assigned"] if kept["next"] else 0,
        given=sum(isinstance(one, DeliveryKey) for one in under),
        again=notes,
        dead=dead,
        consumers=sum(isinstance(one, RegistrationKey) for one in under),
        moved=kept["moved"],
        acked=kept["acked"],
        at=kept["at"],
        long_keys=bool(found[2].kvs),
    )


async def queue_statuses(etcd: Etcd) -> list[DispatchedQueueStatus]:
    return [await queue_status(etcd, queue) for queue in await find_queues(etcd)]


async def depose(etcd: Etcd, queue: str) -> str:
    """Delete the leader's key and return the name of the node that led. The fence makes this safe at any time.

    Raise ``NotFound`` if the queue has no leader, ``WrongState`` if its leader has just changed."""
    keys = Keys(queue)
    held = await etcd.get(keys.leader)
    if held is None:
        raise NotFound(f"no node leads {queue}", field="queue")
    answer = await etcd.txn(
        [create_revision_equals(keys.leader, held.create_revision)], [delete(keys.leader)], repeat=True
    )
    if not answer.succeeded:
        raise WrongState(f"the leader of {queue} has just changed")
    return str(held.value.decode("utf-8", "backslashreplace"))


async def next_leader(etcd: Etcd, queue: str) -> str:
    """Wait until the queue has a leader; return the leader's name."""
    async for changes in list_and_watch(etcd, Keys(queue).leader, b"", deletes=False):
        for one in changes.events:
            kv = one if changes.is_listing else one.kv
            return str(kv.value.decode("utf-8", "backslashreplace"))
    raise AssertionError("following does not end by itself")


def _numbers(text: bytes) -> dict[str, int]:
    names = ("next", "assigned", "moved", "acked", "at")
    try:
        kept = loads(text) if text else {}
        return {name: int(kept.get(name, 0)) for name in names}
    except (BadInput, ValueError, TypeError, AttributeError):
        return dict.fromkeys(names, 0)


# -- roles for etcd's users --------------------------------------------------------------------------------------------

KINDS = ("read", "write", "readwrite")


class EtcdGrant(NamedTuple):
    """Permission on one key, or with ``prefix`` on all keys that begin with ``key``."""

    kind: str
    key: bytes
    prefix: bool


class EtcdRole(NamedTuple):
    name: str
    grants: tuple[EtcdGrant, ...]


def roles_of(
    queue: str, producers: Sequence[str], consumers: Sequence[str], *, references: bool = False
) -> list[EtcdRole]:
    """Return one role per client, and one for nodes. A node serves all queues.

    ``references``: consumers may read the line, as those with ``copies="reference"`` do. All numbers begin with 0."""
    keys = Keys(queue)
    short, long = ROOTS
    own = [*(EtcdGrant("readwrite", root, True) for root in ROOTS), EtcdGrant("read", leader_key(DEFAULT_NAME), False)]
    made = [EtcdRole("yirangmq-node", tuple(own))]
    for client in producers:
        inbox = keys.inbox(client, "x")[:-1]
        grants = [EtcdGrant("write", inbox, True), EtcdGrant("read", keys.state, False)]
        made.append(EtcdRole(f"yirangmq-{queue}-producer-{client}", tuple(grants)))
    for client in consumers:
        home = keys.home(client)
        spelt = home.replace(short, long, 1).replace(b"/c/", b"/consumer/", 1)
        grants = [EtcdGrant("readwrite", home, True), EtcdGrant("readwrite", spelt, True)]
        grants += [EtcdGrant("read", keys.base + b"0", True)] * references
        made.append(EtcdRole(f"yirangmq-{queue}-consumer-{client}", tuple(grants)))
    return made


def server_role(name: str) -> EtcdRole:
    """Return the role of servers of the served store ``name``.

    It grants the keys of the store. The role of the default store also grants the inboxes of plain clients, because
    only that store serves them."""
    own = EtcdGrant("readwrite", prefix_of(name), True)
    inboxes = tuple(EtcdGrant("readwrite", root, True) for root in ROOTS) if name == DEFAULT_NAME else ()
    return EtcdRole("yirangmq-server" if name == DEFAULT_NAME else f"yirangmq-server-{name}", (own, *inboxes))


def as_commands(roles: Sequence[EtcdRole]) -> list[str]:
    """Format the roles as ``etcdctl`` commands of a shell."""
    commands = []
    for role in roles:
        name = quote(role.name)
        commands.append(f"etcdctl role add {name}")
        for grant in role.grants:
            prefix = "--prefix=true " if grant.prefix else ""
            key = quote(grant.key.decode())
            commands.append(f"etcdctl role grant-permission {prefix}{name} {grant.kind} {key}")
    return commands


async def create_roles(etcd: Etcd, roles: Sequence[EtcdRole]) -> list[str]:
    """Create the roles and their grants; return the names of roles that were new. Idempotent."""
    made: list[str] = []
    for role in roles:
        try:
            await etcd.connection.call(channel.ROLE_ADD, channel.ROLE_ADD.request(name=role.name))
            made.append(role.name)
        except QueueError as error:
            if "already exists" not in str(error):
                raise
        for grant in role.grants:
            end = prefix_end(grant.key) if grant.prefix else None
            allowed = channel.MESSAGES["Permission"](permType=KINDS.index(grant.kind), key=grant.key, range_end=end)
            await etcd.connection.call(
                channel.ROLE_GRANT, channel.ROLE_GRANT.request(name=role.name, perm=allowed), repeat=True
            )
    return made
