"""File names of the files store: encoding of a message's state and metadata in folder and name, and decoding.

The folder is the message's state. All other mutable metadata is in the name, so that a change is one rename::

    000000000042A1L1Dmkc4yo80Cmkc4y120Z7~018f3c5e-0b7a~worker-1.json

The first number is decimal and gives the order within the folder: the place in the queue (``inbox``, ``inbox-for``),
the time of the last change (``dlq``, ``parked``, ``archive``), or the message's number in the store (all other
folders). Marks follow: a capital letter and a value, numbers in base 36. A mark without a value is omitted. Then come
the message id and, if there is one, the consumer.

A name has at most 255 bytes. If it would be longer, it omits the fields that never change (priority, group, target) and
the size; they are read from the content. docs/files.md explains each mark."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from yirangmq.core.errors import StoreError
from yirangmq.core.message import RANK_LAST, Message, Reason, new_message
from yirangmq.core.states import State

PER_FOLDER = 1000
"""Numbers per folder: a compromise between the time to list a folder and the number of folders."""
MINUTE_MS = 60_000
SUFFIX = ".json"
NO_PRIORITY_FOLDER = "last"
"""The inbox folder of messages without a priority."""
MAX_NAME_BYTES = 255
"""Upper bound of a file name, in bytes, set by the file system."""
OMITTED = -1
"""Value of a field that the name omits and the content of the file has."""
TARGET_DIGITS = 12
"""Base-36 digits of a target's number in the name of its folder; enough for 62 bits."""

STATE_FOLDERS: dict[str, tuple[State, bool]] = {
    "inbox": (State.READY, True),
    "inbox-for": (State.READY, True),
    "processing": (State.LEASED, True),
    "delayed": (State.DELAYED, True),
    "dlq": (State.DEAD, True),
    "archive": (State.DONE, True),
    "parked": (State.PARKED, True),
    "claimed": (State.CLAIMED, True),
    "draft": (State.DRAFT, True),
    "held": (State.HELD, True),
    "meta/done": (State.DONE, False),
    "meta/dropped": (State.DROPPED, False),
}
"""State folders of a queue: the state of the messages in them, and True if their content is kept."""
STATE_FOLDER_OF: dict[tuple[State, bool], str] = {
    kind: top for top, kind in STATE_FOLDERS.items() if top != "inbox-for"
}
BY_PLACE = frozenset({"inbox", "inbox-for"})
"""State folders in which file names begin with the place in the queue."""
BY_TIME = frozenset({"dlq", "parked", "archive"})
"""State folders in which file names begin with the time of the last change, so that they sort by age."""
DEPTH = {**dict.fromkeys(STATE_FOLDERS, 1), "inbox": 2, "inbox-for": 3, "archive": 2}
"""Number of folder levels between the state folder and the file."""

REASON_OF = {
    "v": Reason.VALIDATION_ERROR,
    "h": Reason.HANDLER_ERROR,
    "t": Reason.TIMEOUT,
    "l": Reason.RETRY_LIMIT,
    "p": Reason.POISON,
    "r": Reason.REJECTED,
    "e": Reason.EXPIRED,
    "c": Reason.CORRUPT,
}
LETTER_OF = {str(reason): letter for letter, reason in REASON_OF.items()}
FAILURE_MARKS = {
    "": ("", False),
    "a": ("a", False),
    "b": ("b", False),
    "k": ("", True),
    "y": ("a", True),
    "z": ("b", True),
}
"""Values of the mark ``F``: the current failure file (a or b), and True if the message has a deduplication key."""
FAILURE_MARK_OF = {meaning: note for note, meaning in FAILURE_MARKS.items()}

_NAME = re.compile(
    r"(?P<lead>[0-9]{12,16})(?:P(?P<rank>[0-9a-z]+))?(?:S(?P<seq>[0-9a-z]+))?(?:W(?P<place>[0-9a-z]+))?"
    r"(?:A(?P<attempt>[0-9a-z]+))?(?:L(?P<leases>[0-9a-z]+))?(?:D(?P<due>[0-9a-z]+))?(?:X(?P<expires>[0-9a-z]+))?"
    r"(?:C(?P<changed>[0-9a-z]+))?(?:N(?P<repeats>[0-9a-z]+))?(?:R(?P<reason>[vhtlprec]))?(?:F(?P<note>[abkyz]))?"
    r"(?:G(?P<group>[0-9a-z]+))?(?:T(?P<target>[0-9a-z]+))?(?:Z(?P<size>[0-9a-z]+))?(?P<inside>E)?"
    r"~(?P<id>[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,99})(?:~(?P<consumer>[a-zA-Z0-9_-][a-zA-Z0-9._:@-]{0,63}))?\.json"
)
_DUE = re.compile(r"[^~DX]*[DX]([0-9a-z]+)")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class FileRow(NamedTuple):
    """Card: the metadata of a message file, as encoded in its folder and name.

    ``failure``: the current failure file (a, b or empty). ``keyed``: the message has a deduplication key."""

    message: Message
    failure: str = ""
    keyed: bool = False
    sized: bool = True
    """The name holds the size. Names of format 1 do not."""

    @property
    def folder(self) -> str:
        """Folder of the message, relative to the queue's folder."""
        return folder_of(self.message)

    @property
    def name(self) -> str:
        return name_of(self)


@lru_cache(maxsize=512)
def base36(number: int) -> str:
    """Encode in base 36. Cached, because the messages of a batch share their instants."""
    if number < 36:
        return _DIGITS[number]
    digits = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def folder_of(message: Message) -> str:
    where = (message.seq, message.rank, message.place, message.changed_at, message.target)
    return folder_for(state_folder_of(message), *where)


def folder_for(top: str, seq: int, rank: int, place: int, changed_at: int, target: int) -> str:
    """Return the folder of a message, relative to the queue's folder: the state folder, then a folder by place, by
    number, or by the time of the last change."""
    match top:
        case "inbox":
            return f"inbox/{NO_PRIORITY_FOLDER if rank == RANK_LAST else rank}/{place // PER_FOLDER:010d}"
        case "inbox-for":
            return (
                f"{line_folder(target)}/{NO_PRIORITY_FOLDER if rank == RANK_LAST else rank}/{place // PER_FOLDER:010d}"
            )
        case "dlq" | "parked":
            return f"{top}/{hour_folder(changed_at)}"
        case "archive":
            return f"archive/{_day_and_minute(changed_at // MINUTE_MS)}"
        case _:
            return f"{top}/{seq // PER_FOLDER:010d}"


def line_folder(target: int) -> str:
    """Return the folder of the ready messages for one consumer (``target``), or for all consumers (0)."""
    return f"inbox-for/{base36(target):0>{TARGET_DIGITS}}" if target else "inbox"


def state_folder_of(message: Message) -> str:
    """Return the folder of the message's state."""
    if message.state is State.READY:
        return "inbox-for" if message.target else "inbox"
    finished = message.state is State.DONE or message.state is State.DROPPED
    return STATE_FOLDER_OF[message.state, message.body if finished else True]


def hour_folder(moment: int) -> str:
    return _hour(moment // (60 * MINUTE_MS))


def minute_folder(moment: int) -> str:
    return _day_and_minute(moment // MINUTE_MS)


@lru_cache(maxsize=64)
def _hour(hours: int) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(hours=hours)).strftime("%Y-%m-%dT%H")


@lru_cache(maxsize=64)
def _day_and_minute(minutes: int) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(minutes=minutes)).strftime("%Y-%m-%d/%H%M")


def leading_number(top: str, seq: int, place: int, changed_at: int) -> str:
    """Return the number that file names in this state folder begin with."""
    if top in BY_PLACE:
        return f"{place:012d}"
    return f"{changed_at:013d}" if top in BY_TIME else f"{seq:012d}"


def due_in(name: str) -> int:
    """Return the due time in a file name, in ms, without parsing the whole name; 0 if it has none."""
    found = _DUE.match(name)
    return int(found[1], 36) if found else 0


def name_of(row: FileRow) -> str:
    name = _named(row, _lasting(row))
    if len(name) > MAX_NAME_BYTES:
        name = _named(row._replace(message=row.message._replace(rank=RANK_LAST)), "E")
    return name


def _named(row: FileRow, lasting: str) -> str:
    message, failure, keyed, _ = row
    seq, _, id, _, rank, place, attempt, leases, due, expires, changed, consumer, reason, repeats, *_ = message
    top = state_folder_of(message)
    text = leading_number(top, seq, place, changed)
    if rank != RANK_LAST:
        text += "P" + base36(rank)
    if top in BY_TIME or (top in BY_PLACE and seq != place):
        text += "S" + base36(seq)
    if top not in BY_PLACE and seq != place:
        text += "W" + base36(place)
    if attempt:
        text += "A" + base36(attempt)
    if leases:
        text += "L" + base36(leases)
    if due != expires:
        text += "D" + base36(due)
    if expires:
        text += "X" + base36(expires)
    if top not in BY_TIME:
        text += "C" + base36(changed)
    if repeats:
        text += "N" + base36(repeats)
    if reason:
        text += "R" + _letter(reason)
    if failure or keyed:
        text += "F" + FAILURE_MARK_OF[failure, keyed]
    return f"{text}{lasting}~{id}~{consumer}.json" if consumer else f"{text}{lasting}~{id}.json"


def _lasting(row: FileRow) -> str:
    """Return the marks of fields that never change, and of the size, which changes only with the content."""
    text = f"Z{base36(row.message.size)}" if row.sized else ""
    if row.message.target:
        text = f"T{base36(row.message.target)}{text}"
    return f"G{base36(row.message.group)}{text}" if row.message.group else text


def _letter(reason: str) -> str:
    letter = LETTER_OF.get(reason)
    if letter is None:
        raise StoreError(f"the files store has no code for the reason {reason!r}")
    return letter


def read_name(queue: str, top: str, name: str) -> FileRow | None:
    """Parse a file name in a state folder. Return None if it is not the name of a message.

    ``needs_content`` returns True for a card with fields that must be read from the content."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    first, rank, seq, place, attempt, leases, due, expires, changed, repeats, reason, note, *lasting, id, consumer = (
        found.groups()
    )
    numbers = _numbers(top, int(first), seq, place, changed)
    if numbers is None or (lasting[3] and (rank or any(lasting[:3]))):
        return None
    state, body = STATE_FOLDERS[top]
    expires_at = int(expires, 36) if expires else 0
    message = new_message(
        (
            numbers[0],
            queue,
            id,
            state,
            int(rank, 36) if rank else RANK_LAST,
            numbers[1],
            int(attempt, 36) if attempt else 0,
            int(leases, 36) if leases else 0,
            int(due, 36) if due else expires_at,
            expires_at,
            numbers[2],
            consumer or "",
            REASON_OF[reason].value if reason else "",
            int(repeats, 36) if repeats else 0,
            body,
            *_group_target_size(lasting, top),
        )
    )
    return FileRow(message, *FAILURE_MARKS[note or ""], lasting[2] is not None or lasting[3] is not None)


def _group_target_size(lasting: list[str | None], top: str) -> tuple[int, int, int]:
    """Parse group, target and size; ``OMITTED`` for a field that must be read from the content.

    Without content an omitted field is 0. A message in the archive does not need its size."""
    group, target, size, inside = lasting
    has_content = STATE_FOLDERS[top][1]
    if inside:
        return (OMITTED, OMITTED, OMITTED) if has_content else (0, 0, 0)
    omitted = OMITTED if has_content and top != "archive" else 0
    return int(group, 36) if group else 0, int(target, 36) if target else 0, int(size, 36) if size else omitted


def needs_content(row: FileRow) -> bool:
    """Return True if the name omits fields that the content has (``stores.files.message_file``)."""
    return row.message.size == OMITTED


def _numbers(
    top: str, first: int, seq: str | None, place: str | None, changed: str | None
) -> tuple[int, int, int] | None:
    """Return number, place and time of the last change. One of them begins the name, the others have marks.

    Return None if one of them is missing or occurs twice."""
    if top in BY_TIME:
        if seq is None or changed is not None:
            return None
        number = int(seq, 36)
        return number, int(place, 36) if place else number, first
    if changed is None or (place if top in BY_PLACE else seq) is not None:
        return None
    if top in BY_PLACE:
        return int(seq, 36) if seq else first, first, int(changed, 36)
    return first, int(place, 36) if place else first, int(changed, 36)
