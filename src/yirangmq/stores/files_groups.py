"""Groups from the names up: who belongs to each, in order, and who is not where the rule puts them. The rule: the first
of a group is in line or in hand, all behind it are held. A batch that a power cut hit may have freed the next one
without finishing the one before it, or the other way round; nobody was told, so either way back is right.

Knows: the rule, cards. Does not know: files (files_survey.py)."""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator

from yirangmq.core import transitions
from yirangmq.core.message import Message
from yirangmq.core.policy import read_policy
from yirangmq.core.states import WAITING, State
from yirangmq.format.filenames import TOPS
from yirangmq.stores.files_entries import Record


class Muster:
    """The members of one queue's groups, as the names tell of them; 16 bytes each."""

    def __init__(self, record_of: Callable[[int], Record | None]) -> None:
        self._record_of = record_of
        self._members: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))

    def add(self, message: Message) -> None:
        if message.group and message.state in WAITING:
            self._members[message.group].extend((message.place, message.seq))

    def groups(self) -> "Iterator[tuple[int, array[int]]]":
        """Each group with the places and numbers of its members, in order. Some that were added have turned out to be
        somebody else since: the records decide."""
        for group, raw in self._members.items():
            pairs = sorted(set(zip(raw[::2], raw[1::2], strict=True)))
            there = [pair for pair in pairs if self._is_there(*pair)]
            if there:
                yield group, array("q", [number for pair in there for number in pair])

    def _is_there(self, place: int, seq: int) -> bool:
        record = self._record_of(seq)
        return record is not None and record.place == place and TOPS[record.top][0] in WAITING

    def misplaced(self, members: "array[int]") -> Iterator[int]:
        """Numbers of a first one that is held, of others that are not."""
        for at, seq in enumerate(members[1::2]):
            record = self._record_of(seq)
            if record is not None and (record.top == "held") == (at == 0):
                yield seq


def freed(message: Message, available_at: int) -> Message:
    """As it was to be when it was held: ready, unless its own delay was not over then (if it is by now, time acts)."""
    return transitions.free(message, available_at, message.changed_at)


def held(message: Message) -> Message:
    """Behind the others. A lease that nobody was told of was never given."""
    if message.state in (State.LEASED, State.CLAIMED):
        policy = read_policy({}, message.queue)
        message = transitions.release(message, policy, message.changed_at, message.place)
    return transitions.hold(message)
