"""Looks a files store over, from the names up, and knows how to mend each thing that is wrong. On the way it makes
the index anew.

Does not know: when to mend (files_recover.py, files_check.py), which of two names of a message stays
(files_rivals.py), what lies beside messages (files_beside.py)."""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from yirangmq.core.message import Counts, Message
from yirangmq.core.states import WAITING, State
from yirangmq.core.validation import QUEUE
from yirangmq.format.filenames import UNSAID, Card, folder_for, is_vague, lead, read_name, top_of
from yirangmq.fsio.disk import exists, isdir, listdir, read_bytes, subfolders
from yirangmq.stores.files_beside import Beside
from yirangmq.stores.files_commit import TRASH
from yirangmq.stores.files_content import Broken, completed, read_envelope
from yirangmq.stores.files_counter import COUNTER, read_counter
from yirangmq.stores.files_deeds import Deeds, Home, is_blank
from yirangmq.stores.files_due import Stretch, stretch_of
from yirangmq.stores.files_groups import Muster, freed, held
from yirangmq.stores.files_keyless import Keyless
from yirangmq.stores.files_made import Made
from yirangmq.stores.files_mending import Mender, Problem, by_settling, path_of
from yirangmq.stores.files_notes import FOLDER as NOTES
from yirangmq.stores.files_notes import TEMP as NOTE_TEMP
from yirangmq.stores.files_notes import unfinished
from yirangmq.stores.files_pending import is_counted, weight
from yirangmq.stores.files_policies import Policies
from yirangmq.stores.files_rivals import age, claim
from yirangmq.stores.files_spares import SPARE_FOLDER as SPARES
from yirangmq.stores.files_totals import NONE, TOTALS, Base, Numbers, base_of, cut_off, minus, plus, share_of, shares_of
from yirangmq.stores.files_view import failure_path
from yirangmq.stores.files_walk import (
    TEMP,
    spares,
    strays,
    temps,
    walk,
)

STUCK = ("stuck", "is held, and nobody of its group is before it")
OUT_OF_TURN = ("out of turn", "is not held, and others of its group come first")


class Survey:
    """One use. ``made`` is right once every problem found was mended."""

    def __init__(self, home: Home) -> None:
        self._root = home.root
        self._policies = Policies(home.root)
        self.deeds = Deeds(home)
        self.made = Made()
        self.due: defaultdict[Stretch, dict[str, None]] = defaultdict(dict)
        self.hollow: list[str] = []
        """Folders with nothing in them."""
        self.spares: list[str] = []
        """Files kept to be written again."""
        self.keyless = Keyless(home.root, self._policies, self.deeds, self.made)
        self.reserved = 0
        self.bases: dict[str, Base] = {}
        """Of queues whose totals on disk must change."""
        self._counts: dict[str, int] = {}
        self._states: defaultdict[State, int] = defaultdict(int)
        """How many messages of the queue are in each state, those without content included."""
        self._gone: Numbers = NONE
        """The share of its messages that are set aside."""
        self._cut_off = cut_off(home.root)
        self._keyed: dict[int, Card] = {}
        self._muster = Muster(self.made.record)
        self._queue = ""
        self._mender = Mender(home.root, "", self.deeds)

    def problems(self, *, contents: bool) -> Iterator[Problem]:
        """``contents``: read every file as well."""
        for name in sorted(listdir(f"{self._root}/{TRASH}")):
            path = f"{self._root}/{TRASH}/{name}"
            mend = partial(self.deeds.discard_tree, path)
            yield Problem("trash", f"{TRASH}/{name}", "left of a deleted queue", mend)
        for queue in sorted(filter(QUEUE.fullmatch, subfolders(self._root))):
            if isdir(f"{self._root}/{queue}/inbox"):
                yield from self._survey_queue(queue, contents)
            else:
                yield from self._survey_beginning(queue)
        for name in unfinished(self._root):
            path = f"{NOTES}/{NOTE_TEMP}/{name}"
            mend = partial(self.deeds.discard, f"{self._root}/{path}")
            yield Problem("temp", path, "a note that was never finished", mend)
        yield from self._survey_counter()

    def _survey_beginning(self, queue: str) -> Iterator[Problem]:
        """A queue that a power cut kept from being made has no messages, but its temporary names must be free again."""
        self._queue, self._mender = queue, Mender(self._root, queue, self.deeds)
        yield from self._survey_temps(f"{self._root}/{queue}")

    def _survey_queue(self, queue: str, contents: bool) -> Iterator[Problem]:
        self._queue, self._mender = queue, Mender(self._root, queue, self.deeds)
        self._counts = dict.fromkeys(Counts._fields, 0)
        self._states.clear()
        self._gone = NONE
        self._keyed = {}
        self._muster = Muster(self.made.record)
        self.made.add_queue(queue)
        folder = f"{self._root}/{queue}"
        for name in spares(folder):
            path = f"{self._root}/{queue}/{SPARES}/{name}"
            self.spares.append(path)
            if contents and not is_blank(path):
                yield self._mender.unlinked("temp", f"{SPARES}/{name}", "a spare file that is not blank")
        for path in strays(folder):
            yield self._mender.rejected("stray", path, "lies where no message can be")
        for top, below, names in walk(folder):
            if not names:
                self.hollow.append(f"{folder}/{top}/{below}")
            for name in names:
                card = self._read(top, f"{top}/{below}", name)
                if card is None:
                    yield self._mender.rejected("wrong name", f"{top}/{below}/{name}", "is not the name of a message")
                elif card.message.group == UNSAID:
                    yield self._reject(card, "broken", f"{top}/{below}/{name}", "has not what its name leaves to it")
                elif contents or not self._is_plain(card, f"{top}/{below}"):
                    yield from self._survey_card(card, top, f"{top}/{below}", contents)
                else:
                    self._note(card, top)
        yield from self._survey_groups()
        yield from self._survey_temps(folder)
        beside = Beside(folder, self.made, self._mender, self._card_of)
        yield from beside.failures(contents)
        yield from beside.keys(self._keyed)
        self.keyless.add(self._keyed.values())
        yield from beside.totals()
        self._count_totals()
        if contents:
            yield from beside.policy(self._policies)
        self.made.counts[queue] = Counts(**self._counts)

    def _count_totals(self) -> None:
        """What the names say, and the base: the share of messages that are gone, and of a batch that was cut off."""
        queue, named = self._queue, shares_of(self._states)
        name, base = base_of(self._root, queue)
        if base.version == 0 and name is not None:  # format 2: whole totals, which may lag behind the names
            base = Base(1, tuple(max(0, step) for step in minus(base.numbers, named)))
        begun, share = self._cut_off.get(queue, ("", NONE))
        if queue in self._cut_off and begun == (name or "") and any(share):
            base = base.plus(share)
        if any(self._gone):
            base = base.plus(self._gone)
        if base.name != name and (name is not None or any(base.numbers)):
            self.bases[queue] = base
        self._counts.update(zip(TOTALS, plus(base.numbers, named), strict=True))

    # -- messages -------------------------------------------------------------------------------------------------

    def _read(self, top: str, folder: str, name: str) -> Card | None:
        """With what the name leaves to the content, if that matters here; a card that stays without has no group."""
        card = read_name(self._queue, top, name)
        if card is None or not is_vague(card) or (card.message.group == 0 and card.message.state not in WAITING):
            return card
        known = completed(card, read_bytes(f"{self._root}/{self._queue}/{folder}/{name}") or b"")
        if known is None:
            return card
        return known if known.name == name else None

    def _is_plain(self, card: Card, folder: str) -> bool:
        """In its place, unlike any other, without a failure: nearly all are, and need no further look."""
        message = card.message
        return (
            not card.failure
            and card.folder == folder
            and self.made.record(message.seq) is None
            and self.made.add_new_id(self._queue, message.id, message.seq)
        )

    def _survey_card(self, card: Card, top: str, folder: str, contents: bool) -> Iterator[Problem]:
        path = f"{folder}/{card.name}"
        if card.folder != folder:
            yield self._mender.moved(path, card)
        there = self.made.record(card.message.seq)
        if there is not None:
            other = self._card_of(card.message.seq)
            if other == card:
                return  # it has just been put in its place
            if other is None or there.queue != self._queue:
                yield self._mender.rejected("same number", path, f"queue {there.queue} has a message of this number")
                return
            winner, loser = sorted((other, card), key=age, reverse=True)
            yield self._mender.unlinked("twice", path_of(loser), f"is also {winner.message.state}, which is later")
            if winner is other:
                return
            self._count(other.message, -1)
        else:
            rival = self._rival(card)
            if rival is not None:
                winner, loser = sorted((rival, card), key=claim, reverse=True)
                yield self._mender.rejected("same id", path_of(loser), f"message {winner.message.seq} has the same id")
                if winner is rival:
                    return
                self._count(rival.message, -1)
                self.made.remove(rival.message.seq)
            self.made.add_id(self._queue, card.message.id, card.message.seq)
        if contents:
            here = path if exists(f"{self._root}/{self._queue}/{path}") else path_of(card)
            if reason := self._broken(card, here):
                yield self._reject(card, "broken", here, reason)
                return
        yield from self._keep(card, top)

    def _note(self, card: Card, top: str) -> None:
        message = card.message
        self._place(card, top)
        self._muster.add(message)
        if card.keyed:
            self._keyed[message.seq] = card

    def _place(self, card: Card, top: str) -> None:
        message = card.message
        self.made.put(card, top)
        self._count(message, 1)
        if message.due_at:
            self.due[stretch_of(message.due_at, message.changed_at)][f"{self._queue}/{card.folder}"] = None

    def _keep(self, card: Card, top: str) -> Iterator[Problem]:
        self._note(card, top)
        message = card.message
        if card.failure and not exists(failure_path(self._root, message, card.failure)):
            mend = partial(self._mender.explain, card)
            yield Problem("no reason", self._mender.where(path_of(card)), "its failure is lost", mend)

    def _reject(self, card: Card, kind: str, path: str, text: str) -> Problem:
        """Set a message aside that was one of the queue's: it stays in the totals."""
        self._gone = plus(self._gone, share_of(card.message))
        return self._mender.rejected(kind, path, text)

    def _count(self, message: Message, step: int) -> None:
        self._states[message.state] += step
        if is_counted(message):
            self._counts[message.state.value] += step
            self._counts["bytes"] += step * weight(message)

    def _card_of(self, seq: int) -> Card | None:
        """The card seen first under this number."""
        record = self.made.record(seq)
        if record is None or record.queue != self._queue:
            return None
        folder = folder_for(record.top, seq, record.rank, record.place, record.changed_at, record.target)
        begin = lead(record.top, seq, record.place, record.changed_at)
        for name in listdir(f"{self._root}/{record.queue}/{folder}"):
            if name.startswith(begin):
                card = self._read(record.top, folder, name)
                if card is not None and card.message.seq == seq and card.message.changed_at == record.changed_at:
                    return card
        return None

    def _rival(self, card: Card) -> Card | None:
        """Another message with the same id."""
        for seq in self.made.seqs_of(self._queue, card.message.id):
            other = self._card_of(seq)
            if other is not None and other.message.id == card.message.id and other.message.queue == self._queue:
                return other
        return None

    def _broken(self, card: Card, path: str) -> str:
        if not card.message.body or card.message.state is State.DROPPED:
            return ""
        try:
            text = read_bytes(f"{self._root}/{self._queue}/{path}")
            read_envelope(b"" if text is None else text, card.message, 0)
        except Broken as error:
            return str(error)
        return ""

    def _survey_groups(self) -> Iterator[Problem]:
        for group, members in self._muster.groups():
            self.made.add_group(group, members)
            for seq in self._muster.misplaced(members):
                card = self._card_of(seq)
                if card is not None:
                    yield self._put_in_turn(card)

    def _put_in_turn(self, card: Card) -> Problem:
        is_first = card.message.state is State.HELD
        after = card._replace(message=freed(card.message, self._available_at(card)) if is_first else held(card.message))

        def then() -> None:
            self._count(card.message, -1)
            self._place(after, top_of(after.message))
            if card.keyed:
                self._keyed[card.message.seq] = after

        return self._mender.changed(STUCK if is_first else OUT_OF_TURN, card, after, then)

    def _available_at(self, card: Card) -> int:
        try:
            text = read_bytes(f"{self._root}/{self._queue}/{path_of(card)}")
            return read_envelope(text or b"", card.message, 0).available_at
        except Broken:
            return 0

    def _survey_temps(self, folder: str) -> Iterator[Problem]:
        """A message that was half-way in is set aside. The old name of one that is there, and what was to lie beside a
        message, just goes."""
        for name in temps(folder):
            number, text = name.removesuffix(".tmp"), "a file that was never finished"
            record = self.made.record(int(number)) if number.isdecimal() else None
            is_message = number.isdecimal() and (record is None or record.queue != self._queue)
            yield (self._mender.rejected if is_message else self._mender.unlinked)("temp", f"{TEMP}/{name}", text)

    def _survey_counter(self) -> Iterator[Problem]:
        temp = f"{COUNTER}.tmp"
        if exists(f"{self._root}/{temp}"):
            mend = partial(self.deeds.discard, f"{self._root}/{temp}")
            yield Problem("temp", temp, "a file that was never finished", mend)
        counter = read_counter(self._root)
        self.reserved = counter.reserved if counter else 0
        if counter is None and exists(f"{self._root}/{COUNTER}"):
            yield Problem("counter", COUNTER, "cannot be read", by_settling)
        elif self.reserved < self.made.last:
            text = f"is at {self.reserved}, the names are at {self.made.last}"
            yield Problem("counter", COUNTER, text, by_settling)
