"""Key schema of a queue in etcd, its policy, and the watch of the inboxes of a served store.

Clients may write ``/queue/`` for ``/q/``. The inbox is ``p``, ``producer``, ``i`` or ``input``; the consumers are ``c``
or ``consumer``. The dispatcher writes the short forms, and puts a consumer's copies where it registered. Below
``/q/QUEUE``, which holds the leader:

    p/CLIENT/NAME         message in the inbox
    NUMBER/NAME           message in line; numbers have 20 digits
    c/CLIENT              registration of a consumer
    c/CLIENT/NUMBER/NAME  copy of a message for that consumer
    c/CLIENT/n/NUMBER     nack by that consumer
    r/NUMBER              note of a message that came back
    dead/NUMBER/NAME      dead letter
    why/NUMBER            reason of a dead letter
    s                     state of the dispatcher
    policy                policy of the queue

The key ``/queue/QUEUE`` asks for a second copy of the line under ``/queue/QUEUE/NUMBER/NAME``
(``cluster.dispatch.long_keys``).

A policy may have only members that a dispatcher acts on. The inbox watch passes on the messages of plain clients, in
order of arrival. The server deletes the key of a message in the same commit that stores the message."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from yirangmq.cluster.etcd.channel import RevisionCompacted
from yirangmq.cluster.etcd.client import Etcd, delete, get, mod_revision_equals, nested, prefix_end, put
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, BadPolicy, Unavailable
from yirangmq.core.policy import QueuePolicy, read_policy
from yirangmq.format.json_codec import loads

# -- key schema --------------------------------------------------------------------------------------------------------

ROOTS = (b"/q/", b"/queue/")
INBOX = frozenset((b"p", b"producer", b"i", b"input"))
CONSUMERS = frozenset((b"c", b"consumer"))
POLICY = b"policy"
NACK = b"n"
DIGITS = 20
MAX_SEGMENT_BYTES = 400
MAX_PRINTED = 1_500


class InboxKey(NamedTuple):
    """Key of a message in the inbox. ``sender`` and ``name`` are the same for all spellings of the key."""

    sender: bytes
    name: bytes


class RegistrationKey(NamedTuple):
    """Key of a consumer's registration. ``home`` is the prefix of the copies that this consumer gets."""

    home: bytes
    client: bytes


class DeliveryKey(NamedTuple):
    home: bytes
    number: int
    name: bytes


class NackKey(NamedTuple):
    """Key of a consumer's nack."""

    home: bytes
    number: int


class PolicyKey(NamedTuple):
    """Key of the queue's policy."""


ParsedKey = InboxKey | RegistrationKey | DeliveryKey | NackKey | PolicyKey


class Keys:
    """The keys of one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.leader = ROOTS[0] + queue.encode()
        self.base = self.leader + b"/"
        self.state = self.base + b"s"
        self.policy = self.base + POLICY
        self.long_leader = ROOTS[1] + queue.encode()
        """While this key exists, the line has a second copy below it; its value is the name of the leader."""
        self._plain_prefix = self.base + b"p/"

    def ordered(self, index: int, name: bytes) -> bytes:
        return self.base + b"%020d/" % index + name

    def long_ordered(self, index: int, name: bytes) -> bytes:
        """Return the key of the second copy of a message in line."""
        return self.long_leader + b"/%020d/" % index + name

    def in_line(self, key: bytes) -> tuple[int, bytes] | None:
        """Return number and name of a message in line; None if the key is not of that form (a foreign key)."""
        return _number_and_name(key.removeprefix(self.base))

    def in_long_line(self, key: bytes) -> tuple[int, bytes] | None:
        """Return number and name of a second copy; None if the key is not of that form."""
        return _number_and_name(key.removeprefix(self.long_leader + b"/"))

    @property
    def long_line(self) -> tuple[bytes, bytes]:
        """Return the range of the second copies."""
        return self.long_leader + b"/0", self.long_leader + b"/:"

    def from_index(self, index: int) -> bytes:
        """Return the lower bound of the keys in line from ``index`` on."""
        return self.base + b"%020d/" % index

    @property
    def ordered_end(self) -> bytes:
        return self.base + b":"

    def retry(self, index: int) -> bytes:
        return self.base + b"r/%020d" % index

    def dead(self, index: int, name: bytes) -> bytes:
        return self.base + b"dead/%020d/" % index + name

    def why(self, index: int) -> bytes:
        return self.base + b"why/%020d" % index

    def inbox(self, client: str, name: str) -> bytes:
        return self.base + b"p/" + segment(client) + b"/" + segment(name)

    def home(self, client: str) -> bytes:
        return self.base + b"c/" + segment(client) + b"/"

    def watched(self) -> list[tuple[bytes, bytes]]:
        """Return the ranges of inbox, consumers and policy, one per root: ``c…`` to ``p…``."""
        return [(root + self.queue.encode() + b"/c", root + self.queue.encode() + b"/q") for root in ROOTS]

    def inboxes(self) -> list[tuple[bytes, bytes]]:
        """Return the ranges of the inbox: ``i…`` to ``p/…``, and under the long root to ``producer/…``.

        ``policy_and_rest`` covers the remaining spelling."""
        (start, _), long = [(root + self.queue.encode() + b"/i", root + self.queue.encode() + b"/q") for root in ROOTS]
        return [(start, self.policy), long]

    def policy_and_rest(self) -> tuple[bytes, bytes]:
        """Return the range of the policy, and of the inbox spelling ``producer/…``, which sorts after it."""
        return self.policy, self.base + b"q"

    def inbox_places(self) -> list[tuple[bytes, bytes]]:
        """Return the exact ranges of the inbox, one per root and spelling, without the keys that sort in between."""
        places = [root + self.queue.encode() + b"/" + place for root in ROOTS for place in sorted(INBOX)]
        return [(place + b"/", place + b"0") for place in places]

    def consumers(self) -> list[tuple[bytes, bytes]]:
        return [(root + self.queue.encode() + b"/c", root + self.queue.encode() + b"/d") for root in ROOTS]

    def parsed(self, key: bytes) -> ParsedKey | None:
        if key.startswith(self._plain_prefix):  # nearly all
            sender, slash, name = key[len(self._plain_prefix) :].partition(b"/")
            return InboxKey(sender, name.replace(b"/", b"%2F") or b"_") if slash else InboxKey(b"", sender or b"_")
        root = next((root for root in ROOTS if key.startswith(root)), None)
        parts = key[len(root) :].split(b"/") if root else []
        if len(parts) < 2 or parts[0] != self.queue.encode():
            return None
        kind, rest = parts[1], parts[2:]
        if kind in INBOX and rest:
            sender, left = (rest[0], rest[1:]) if len(rest) > 1 else (b"", rest)
            return InboxKey(sender, b"%2F".join(left) or b"_")
        if kind in CONSUMERS and rest and rest[0]:
            return _of_consumer(b"/".join((key[: len(root or b"")] + parts[0], kind, rest[0])) + b"/", rest)
        return PolicyKey() if kind == POLICY and not rest and root == ROOTS[0] else None


def _number_and_name(rest: bytes) -> tuple[int, bytes] | None:
    text, slash, name = rest.partition(b"/")
    return (int(text), name) if slash and len(text) == DIGITS and text.isdigit() else None


def _of_consumer(home: bytes, rest: list[bytes]) -> ParsedKey | None:
    client, left = rest[0], rest[1:]
    if left in ([], [b""]):
        return RegistrationKey(home, client)
    if len(left) == 2 and left[0] == NACK and left[1].isdigit():
        return NackKey(home, int(left[1]))
    if len(left) == 2 and len(left[0]) == DIGITS and left[0].isdigit():
        return DeliveryKey(home, int(left[0]), left[1])
    return None


def queue_of_segment(part: bytes) -> str:
    """Return the name of the dispatched queue with this path segment: the segment itself, so that two spellings are
    two queues. Raise ``BadInput`` if no queue can have this name."""
    return validation.check_dispatched_queue(part.decode("utf-8", "surrogateescape"))


def served_queue_of_key(key: bytes) -> str | None:
    """Return the queue of a served store to which a key belongs; None if that is not a valid name of such a queue."""
    root = next((root for root in ROOTS if key.startswith(root)), None)
    if root is None:
        return None
    try:
        return validation.check_queue(key[len(root) :].split(b"/", 1)[0].decode())
    except (UnicodeDecodeError, BadInput):
        return None


def printable(key: bytes) -> str:
    """Format a key for logs and tables: control characters escaped, at most ``MAX_PRINTED`` characters."""
    text = key.decode("utf-8", "backslashreplace")
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return shown if len(shown) <= MAX_PRINTED else shown[: MAX_PRINTED - 1] + "…"


def segment(text: str, field: str = "key") -> bytes:
    """Encode one path segment: percent-encode the slash, and the percent sign, which would be ambiguous otherwise."""
    made = text.replace("%", "%25").replace("/", "%2F").encode()
    if not 0 < len(made) <= MAX_SEGMENT_BYTES:
        raise BadInput(f"must have 1 to {MAX_SEGMENT_BYTES} bytes, not {len(made)}", field=field)
    return made


def decode_segment(part: bytes) -> str:
    """Decode a path segment; the inverse of ``segment``."""
    return part.decode("utf-8", "backslashreplace").replace("%2F", "/").replace("%25", "%")


# -- registration of a consumer ----------------------------------------------------------------------------------------

BODY, REFERENCE = "body", "reference"
COPIES = (BODY, REFERENCE)
"""What a consumer's copies hold: the body of the message, or nothing. A copy without a body refers to the message in
line with the same number and name, whose value is the body."""
_WANTS_REFERENCES = b"?copies=reference"


class Registration(NamedTuple):
    """Value of a consumer's registration: its host, and whether it asks for references."""

    host: bytes
    references: bool

    @property
    def value(self) -> bytes:
        return self.host + _WANTS_REFERENCES if self.references else self.host


def read_registration(value: bytes) -> Registration:
    host = value.removesuffix(_WANTS_REFERENCES)
    return Registration(host, len(host) < len(value))


# -- policy of a queue -------------------------------------------------------------------------------------------------

SUPPORTED_MEMBERS = frozenset({"visibilityTimeoutSec", "retry", "dlq", "requeue", "dedupWindowSec", "paused"})
SUPPORTED_DLQ_MEMBERS = frozenset({"enabled", "whenDisabled", "retentionDays"})
"""Members of ``dlq`` that a dispatcher acts on. Dead letters are stored under ``dead/`` of their queue, so the policy
names no other queue."""


POLICY_QUEUE = "dispatched"
"""Name of queue under which a policy is parsed. It only names the dead-letter queue, which a dispatched queue has not,
and names of dispatched queues follow another rule."""


def read_dispatched_policy(given: object) -> QueuePolicy:
    return read_policy(given, POLICY_QUEUE)


async def write_policy(etcd: Etcd, queue: str, text: bytes) -> bool:
    """Check a policy and write it; return whether the queue had none before."""
    given = loads(text)
    read_dispatched_policy(given)
    for name in given:
        if name not in SUPPORTED_MEMBERS:
            known = ", ".join(sorted(SUPPORTED_MEMBERS))
            raise BadPolicy(f"a cluster does not act on it; it acts on {known}", field=name)
    for name in given.get("dlq", {}):
        if name not in SUPPORTED_DLQ_MEMBERS:
            raise BadPolicy("a cluster does not act on it", field=f"dlq.{name}")
    keys = Keys(queue)
    answer = await etcd.txn(
        [mod_revision_equals(keys.policy, 0)], [put(keys.policy, text)], [put(keys.policy, text)], repeat=True
    )
    return bool(answer.succeeded)


async def set_long_keys(etcd: Etcd, queue: str, *, on: bool) -> None:
    """Begin or end the second copy of a queue's line. The leader acts on it at once, or when there is one."""
    key = Keys(queue).long_leader
    await etcd.txn([mod_revision_equals(key, 0)], [put(key, b"")] * on, [delete(key)] * (not on), repeat=True)


# -- inboxes of a served store -----------------------------------------------------------------------------------------

PAUSE_SECONDS = 0.2
READ_BATCH = 32
PUT = 0


class InboxMessage(NamedTuple):
    """A message in an inbox, as of ``revision``."""

    queue: str
    key: bytes
    sender: bytes
    name: bytes
    revision: int
    value: bytes

    @property
    def removal(self) -> Any:
        """Operation that deletes the key unless its producer has rewritten it: a rewritten key is another message."""
        return nested([mod_revision_equals(self.key, self.revision)], [delete(self.key)])


class InboxWatch:
    """Watch of the inboxes. It calls ``on_messages`` with new messages in order of arrival.

    A message that the server does not store stays in the inbox, and the next leader reads it again."""

    def __init__(self, etcd: Etcd, on_messages: Callable[[list[InboxMessage]], None]) -> None:
        self._etcd = etcd
        self._on_messages = on_messages

    async def run(self) -> None:
        while True:
            try:
                await self._list_and_watch()
            except (Unavailable, RevisionCompacted):
                await asyncio.sleep(PAUSE_SECONDS)

    async def _list_and_watch(self) -> None:
        revision = int((await self._etcd.range(ROOTS[0], limit=1, keys_only=True)).header.revision)
        await self._list(revision)
        watches = [asyncio.ensure_future(self._watch(root, revision + 1)) for root in ROOTS]
        try:
            await asyncio.gather(*watches)
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _list(self, revision: int) -> None:
        found: list[tuple[int, bytes]] = []
        for root in ROOTS:
            async for page in self._etcd.pages(root, prefix_end(root), revision=revision, keys_only=True):
                found += [(kv.mod_revision, kv.key) for kv in page if _parse_inbox_key(kv.key) is not None]
        found.sort()
        for at in range(0, len(found), READ_BATCH):
            part = found[at : at + READ_BATCH]
            answer = await self._etcd.txn([], [get(key) for _, key in part], repeat=True)
            self._pass_on([kv for one in answer.responses for kv in one.response_range.kvs])

    async def _watch(self, root: bytes, revision: int) -> None:
        async for events in self._etcd.watch(root, prefix_end(root), revision=revision, deletes=False):
            self._pass_on([event.kv for event in events if event.type == PUT])

    def _pass_on(self, kvs: list[Any]) -> None:
        puts: list[InboxMessage] = []
        for kv in kvs:
            found = _parse_inbox_key(kv.key)
            if found is not None:
                queue, message = found
                puts.append(InboxMessage(queue, kv.key, message.sender, message.name, kv.mod_revision, kv.value))
        if puts:
            self._on_messages(puts)


def _parse_inbox_key(key: bytes) -> tuple[str, InboxKey] | None:
    queue = served_queue_of_key(key)
    if queue is None:
        return None
    found = Keys(queue).parsed(key)
    return (queue, found) if isinstance(found, InboxKey) else None
