"""Where everything of a queue lies in etcd. Knows: the keys, in all their spellings. Does not know: etcd, what is
done.

``/q/`` is ``/queue/``; ``p``, ``producer``, ``i`` and ``input`` are the inbox; ``c`` and ``consumer`` are the
consumers. What we write ourselves is written short; a consumer gets its copies where it registered."""

from typing import NamedTuple

from yirangmq.core import validation
from yirangmq.core.errors import BadInput

ROOTS = (b"/q/", b"/queue/")
INBOX = frozenset((b"p", b"producer", b"i", b"input"))
CONSUMERS = frozenset((b"c", b"consumer"))
POLICY = b"policy"
NACK = b"n"
DIGITS = 20
LONGEST_SEGMENT = 400


class Message(NamedTuple):
    """Of the inbox. ``sender`` and ``name`` are the same for all spellings of one key."""

    sender: bytes
    name: bytes


class Registration(NamedTuple):
    """``home`` is the prefix of what this consumer is given."""

    home: bytes
    client: bytes


class Delivery(NamedTuple):
    home: bytes
    number: int
    name: bytes


class Refusal(NamedTuple):
    """A consumer says that it could not do it."""

    home: bytes
    number: int


class Definition(NamedTuple):
    """The queue's policy."""


Meaning = Message | Registration | Delivery | Refusal | Definition


class Keys:
    """The keys of one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.leader = ROOTS[0] + queue.encode()
        self.base = self.leader + b"/"
        self.state = self.base + b"s"
        self.policy = self.base + POLICY
        self._plain = self.base + b"p/"

    def ordered(self, index: int, name: bytes) -> bytes:
        return self.base + b"%020d/" % index + name

    def in_line(self, key: bytes) -> tuple[int, bytes] | None:
        """Number and name of a message in line; None of a key that somebody else put among them."""
        text, slash, name = key.removeprefix(self.base).partition(b"/")
        return (int(text), name) if slash and len(text) == DIGITS and text.isdigit() else None

    def from_index(self, index: int) -> bytes:
        """Where this index begins, among the ordered."""
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
        """Inbox, consumers and policy, each root in one range: ``c…`` to ``p…``."""
        return [(root + self.queue.encode() + b"/c", root + self.queue.encode() + b"/q") for root in ROOTS]

    def inboxes(self) -> list[tuple[bytes, bytes]]:
        """``i…`` to ``p/…``, and of the long root to ``producer/…``; see ``policy_and_rest``."""
        (start, _), long = [(root + self.queue.encode() + b"/i", root + self.queue.encode() + b"/q") for root in ROOTS]
        return [(start, self.policy), long]

    def policy_and_rest(self) -> tuple[bytes, bytes]:
        """The policy, and the inbox where it is spelt ``producer/…``, which lies behind it."""
        return self.policy, self.base + b"q"

    def consumers(self) -> list[tuple[bytes, bytes]]:
        return [(root + self.queue.encode() + b"/c", root + self.queue.encode() + b"/d") for root in ROOTS]

    def meaning(self, key: bytes) -> Meaning | None:
        if key.startswith(self._plain):  # nearly all
            sender, slash, name = key[len(self._plain) :].partition(b"/")
            return Message(sender, name.replace(b"/", b"%2F") or b"_") if slash else Message(b"", sender or b"_")
        root = next((root for root in ROOTS if key.startswith(root)), None)
        parts = key[len(root) :].split(b"/") if root else []
        if len(parts) < 2 or parts[0] != self.queue.encode():
            return None
        kind, rest = parts[1], parts[2:]
        if kind in INBOX and rest:
            sender, left = (rest[0], rest[1:]) if len(rest) > 1 else (b"", rest)
            return Message(sender, b"%2F".join(left) or b"_")
        if kind in CONSUMERS and rest and rest[0]:
            return _of_consumer(b"/".join((key[: len(root or b"")] + parts[0], kind, rest[0])) + b"/", rest)
        return Definition() if kind == POLICY and not rest and root == ROOTS[0] else None


def _of_consumer(home: bytes, rest: list[bytes]) -> Meaning | None:
    client, left = rest[0], rest[1:]
    if left in ([], [b""]):
        return Registration(home, client)
    if len(left) == 2 and left[0] == NACK and left[1].isdigit():
        return Refusal(home, int(left[1]))
    if len(left) == 2 and len(left[0]) == DIGITS and left[0].isdigit():
        return Delivery(home, int(left[0]), left[1])
    return None


def queue_of(key: bytes) -> str | None:
    """The queue a key belongs to; None if it is no name we could serve."""
    root = next((root for root in ROOTS if key.startswith(root)), None)
    if root is None:
        return None
    try:
        return validation.check_queue(key[len(root) :].split(b"/", 1)[0].decode())
    except (UnicodeDecodeError, BadInput):
        return None


def segment(text: str, field: str = "key") -> bytes:
    """One part of a path: a slash, and the percent sign that would then be unclear, are written as in addresses."""
    made = text.replace("%", "%25").replace("/", "%2F").encode()
    if not 0 < len(made) <= LONGEST_SEGMENT:
        raise BadInput(f"must have 1 to {LONGEST_SEGMENT} bytes, not {len(made)}", field=field)
    return made


def text_of(part: bytes) -> str:
    """``segment`` the other way."""
    return part.decode("utf-8", "backslashreplace").replace("%2F", "/").replace("%25", "%")
