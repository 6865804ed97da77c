"""Who may do what in etcd: the roles that fit the keys of a queue. Knows: keys and etcd's permissions. Does not know:
how to print.

etcd cannot allow deleting without putting, so "a consumer may only delete" is none of its permissions: what a
consumer puts under its own path means nothing to the leader."""

from collections.abc import Sequence
from typing import NamedTuple

from yirangmq.cluster import wire
from yirangmq.cluster.address import NAME
from yirangmq.cluster.campaign import leader_key, prefix_of
from yirangmq.cluster.etcd import Etcd, end_of
from yirangmq.cluster.keys import ROOTS, Keys
from yirangmq.core.errors import QueueError

KINDS = ("read", "write", "readwrite")


class Grant(NamedTuple):
    """``prefix``: all keys that begin so; or else the one key."""

    kind: str
    key: bytes
    prefix: bool


class Role(NamedTuple):
    name: str
    grants: tuple[Grant, ...]


def roles_of(queue: str, producers: Sequence[str], consumers: Sequence[str]) -> list[Role]:
    """One role for each client, and one for nodes. A node serves all queues."""
    keys = Keys(queue)
    short, long = ROOTS
    own = [*(Grant("readwrite", root, True) for root in ROOTS), Grant("read", leader_key(NAME), False)]
    made = [Role("yirangmq-node", tuple(own))]
    for client in producers:
        inbox = keys.inbox(client, "x")[:-1]
        grants = [Grant("write", inbox, True), Grant("read", keys.state, False)]
        made.append(Role(f"yirangmq-{queue}-producer-{client}", tuple(grants)))
    for client in consumers:
        home = keys.home(client)
        spelt = home.replace(short, long, 1).replace(b"/c/", b"/consumer/", 1)
        made.append(
            Role(
                f"yirangmq-{queue}-consumer-{client}",
                (Grant("readwrite", home, True), Grant("readwrite", spelt, True)),
            )
        )
    return made


def server_role(name: str) -> Role:
    """For servers before the served store of that name: its keys, and the inboxes of plain clients where it takes them
    in."""
    own = Grant("readwrite", prefix_of(name), True)
    inboxes = tuple(Grant("readwrite", root, True) for root in ROOTS) if name == NAME else ()
    return Role("yirangmq-server" if name == NAME else f"yirangmq-server-{name}", (own, *inboxes))


def as_commands(roles: Sequence[Role]) -> list[str]:
    """The same for ``etcdctl``."""
    lines = []
    for role in roles:
        lines.append(f"etcdctl role add {role.name}")
        for grant in role.grants:
            prefix = "--prefix=true " if grant.prefix else ""
            lines.append(f"etcdctl role grant-permission {prefix}{role.name} {grant.kind} {grant.key.decode()}")
    return lines


async def apply(etcd: Etcd, roles: Sequence[Role]) -> list[str]:
    """Make the roles and grant what they need; the names of those that were new. Doing it again does no harm."""
    made: list[str] = []
    for role in roles:
        try:
            await etcd.lines.call(wire.ROLE_ADD, wire.ROLE_ADD.request(name=role.name))
            made.append(role.name)
        except QueueError as error:
            if "already exists" not in str(error):
                raise
        for grant in role.grants:
            end = end_of(grant.key) if grant.prefix else None
            allowed = wire.MESSAGES["Permission"](permType=KINDS.index(grant.kind), key=grant.key, range_end=end)
            await etcd.lines.call(wire.ROLE_GRANT, wire.ROLE_GRANT.request(name=role.name, perm=allowed), repeat=True)
    return made
