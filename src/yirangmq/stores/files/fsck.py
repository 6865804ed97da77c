"""Consistency check of a files store, based on the file names. The same pass builds a new index.

``Survey`` walks all queues and yields each problem with its repair (``stores.files.repair``). After all repairs have
run, its attribute ``made`` holds the correct index. ``stores.files.recovery`` decides which repairs run.

``Beside`` checks the files that belong to a queue's messages, after the messages: failures, deduplication keys, totals
and the policy.

``Keyless`` restores lost deduplication keys: a power cut may keep a new message and lose its key. The publish of that
message was never confirmed, and a producer that repeats it must get a duplicate."""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from yirangmq.core.errors import BadPolicy
from yirangmq.core.message import Counts, Message
from yirangmq.core.states import WAITING, State
from yirangmq.core.validation import QUEUE
from yirangmq.fsio.disk import exists, isdir, listdir, read_bytes, subfolders
from yirangmq.stores.files.commit import TRASH
from yirangmq.stores.files.index import Key, key_print
from yirangmq.stores.files.index_update import Made
from yirangmq.stores.files.layout import (
    FAILURES,
    TEMP,
    KeyFile,
    read_key,
    spares,
    strays,
    temps,
    walk,
    walk_failures,
    walk_keys,
)
from yirangmq.stores.files.layout import SPARE_FOLDER as SPARES
from yirangmq.stores.files.message_file import Broken, completed, read_envelope, read_failure
from yirangmq.stores.files.metadata import COUNTER, Policies, read_counter, unfinished
from yirangmq.stores.files.metadata import FOLDER as NOTES
from yirangmq.stores.files.metadata import TEMP as NOTE_TEMP
from yirangmq.stores.files.names import UNSAID, Card, folder_for, is_vague, lead, read_name, top_of
from yirangmq.stores.files.overlay import is_counted, weight
from yirangmq.stores.files.repair import Mender, Muster, Problem, age, by_settling, claim, freed, held, path_of
from yirangmq.stores.files.timer_index import Stretch, stretch_of
from yirangmq.stores.files.totals import FOLDER as TOTALS_FOLDER
from yirangmq.stores.files.totals import (
    NONE,
    TOTALS,
    Base,
    Numbers,
    base_of,
    cut_off,
    latest,
    minus,
    plus,
    share_of,
    shares_of,
)
from yirangmq.stores.files.undo_log import Deeds, Home, is_blank
from yirangmq.stores.files.view import failure_path

# -- failures, keys, totals, policy ------------------------------------------------------------------------------------

_FAILURE_NAME = re.compile(r"([0-9]{12,16})[ab]\.json")


class Beside:
    """Check of a queue's metadata files, to run after the check of its messages.

    ``card_of``: return the message of a number as found on disk, or None."""

    def __init__(self, folder: str, made: Made, mender: Mender, card_of: Callable[[int], Card | None]) -> None:
        self._folder = folder
        self._made = made
        self._mender = mender
        self._card_of = card_of

    def _has(self, seq: int) -> bool:
        record = self._made.record(seq)
        return record is not None and record.queue == self._mender.queue

    def failures(self, contents: bool) -> Iterator[Problem]:
        for below, names in walk_failures(self._folder):
            for name in names:
                path = f"{FAILURES}/{below}/{name}"
                found = _FAILURE_NAME.fullmatch(name)
                seq = int(found[1]) if found else 0
                if not self._has(seq):
                    yield self._mender.unlinked("orphan", path, "a failure without its message")
                elif contents:
                    try:
                        read_failure(read_bytes(f"{self._folder}/{path}") or b"")
                    except Broken as error:
                        yield self._retold(self._mender.rejected("broken", path, str(error)), seq, name[-6])

    def _retold(self, problem: Problem, seq: int, which: str) -> Problem:
        """Extend the quarantine of an unreadable failure file: if the message refers to that file, write a new one from
        the facts in the message's name."""
        card = self._card_of(seq)
        aside = problem.mend

        def mend() -> None:
            if aside is not None:
                aside()
            if card is not None and card.failure == which:
                self._mender.explain(card)

        return problem._replace(mend=mend)

    def keys(self, keyed: dict[int, Card]) -> Iterator[Problem]:
        """Check the key files. ``keyed``: messages with the key mark in their names; those with a key file are removed
        from it."""
        for below, names in walk_keys(self._folder):
            for name in names:
                path = f"meta/keys/{below}/{name}"
                file = read_key(name)
                if file is None or file.path != path:
                    yield self._mender.unlinked("wrong name", path, "is not the name of a key")
                    continue
                is_here = self._has(file.key.seq)
                if not is_here and not file.outlived:
                    yield self._mender.unlinked("orphan", path, "a key whose message never was")
                    continue
                if not file.is_far:
                    keyed.pop(file.key.seq, None)
                    if is_here:
                        self._made.set_until(file.key.seq, file.key.until)
                self._made.add_key(file.key)
                self._made.last = max(self._made.last, file.key.seq)

    def totals(self) -> Iterator[Problem]:
        names = listdir(f"{self._folder}/{TOTALS_FOLDER}")
        in_force = latest(names)
        for name in sorted(names):
            if name != in_force:
                yield self._mender.unlinked("totals", f"{TOTALS_FOLDER}/{name}", "is not the latest")

    def policy(self, policies: Policies) -> Iterator[Problem]:
        queue = self._mender.queue
        try:
            policies.policy(queue, policies.text(queue))
        except BadPolicy as error:
            yield Problem("policy", self._mender.where("config/policy.json"), str(error), None)


# -- lost deduplication keys -------------------------------------------------------------------------------------------


class Keyless:
    """Restoration of lost deduplication keys, for messages that were never leased."""

    def __init__(self, root: str, policies: Policies, deeds: Deeds, made: Made) -> None:
        self._root = root
        self._policies = policies
        self._deeds = deeds
        self._made = made
        self._cards: list[Card] = []

    def add(self, cards: Iterable[Card]) -> None:
        self._cards += [card for card in cards if _is_new(card.message)]

    def restore(self) -> None:
        """Create the key files again, with the keys read from the contents, unless their window is over."""
        for card in self._cards:
            message = card.message
            try:
                window = self._policies.policy(message.queue, self._policies.text(message.queue)).dedup_ms
                text = read_bytes(f"{self._root}/{message.queue}/{path_of(card)}")
                key = read_envelope(text or b"", message, 0).dedup_key
            except (BadPolicy, Broken):
                continue
            until = message.changed_at + window
            if key is None or self._made.has_key(key_print(message.queue, key)):
                continue  # the key belongs to another message by now
            if until > time.time() * 1000:
                file = KeyFile(Key(key_print(message.queue, key), message.seq, until), message.id)
                self._deeds.create(f"{self._root}/{message.queue}/{file.path}")
                self._made.set_until(message.seq, until)
                self._made.add_key(file.key)


def _is_new(message: Message) -> bool:
    return message.leases == 0 and message.state in (State.READY, State.DELAYED, State.HELD, State.DRAFT)


# -- messages of all queues --------------------------------------------------------------------------------------------

STUCK = ("stuck", "is held, and nobody of its group is before it")
OUT_OF_TURN = ("out of turn", "is not held, and others of its group come first")


class Survey:
    """Consistency check of the whole store. An instance is used once, under the store's lock.

    ``made`` is the correct index after every repair has run."""

    def __init__(self, home: Home) -> None:
        self._root = home.root
        self._policies = Policies(home.root)
        self.deeds = Deeds(home)
        self.made = Made()
        self.due: defaultdict[Stretch, dict[str, None]] = defaultdict(dict)
        self.hollow: list[str] = []
        """Message folders that hold no files."""
        self.spares: list[str] = []
        """Paths of spare files."""
        self.keyless = Keyless(home.root, self._policies, self.deeds, self.made)
        self.reserved = 0
        self.bases: dict[str, Base] = {}
        """New base of the totals, for each queue with a wrong stored base."""
        self._counts: dict[str, int] = {}
        self._states: defaultdict[State, int] = defaultdict(int)
        """Number of messages of the current queue by state, including those without content."""
        self._gone: Numbers = NONE
        """Share of the current queue's quarantined messages in its totals, to be added to the base."""
        self._cut_off = cut_off(home.root)
        self._keyed: dict[int, Card] = {}
        self._muster = Muster(self.made.record)
        self._queue = ""
        self._mender = Mender(home.root, "", self.deeds)

    def problems(self, *, contents: bool) -> Iterator[Problem]:
        """Yield all problems. ``contents``: read and check the content of every file too."""
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
        """Check a queue of which a power cut interrupted the creation. It has no messages, but its temporary files must
        be removed, because their names are used again."""
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
        """Compute the totals: the counts from the names plus the base. Add to the base the share of quarantined
        messages, and of an interrupted batch (``stores.files.totals``)."""
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
        """Parse a name, and read the fields it omits from the content if the check needs them.

        The group of the card is ``UNSAID`` if the content should have it and cannot be read."""
        card = read_name(self._queue, top, name)
        if card is None or not is_vague(card) or (card.message.group == 0 and card.message.state not in WAITING):
            return card
        known = completed(card, read_bytes(f"{self._root}/{self._queue}/{folder}/{name}") or b"")
        if known is None:
            return card
        return known if known.name == name else None

    def _is_plain(self, card: Card, folder: str) -> bool:
        """Fast path: return True if the file is in the right folder, has no failure, and shares neither number nor id
        with another message. This holds for nearly all messages; they need no further check."""
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
                return  # a repair has just moved it to the right folder
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
        """Build the problem that quarantines a message of the queue. The message stays in the totals."""
        self._gone = plus(self._gone, share_of(card.message))
        return self._mender.rejected(kind, path, text)

    def _count(self, message: Message, step: int) -> None:
        self._states[message.state] += step
        if is_counted(message):
            self._counts[message.state.value] += step
            self._counts["bytes"] += step * weight(message)

    def _card_of(self, seq: int) -> Card | None:
        """Return the first card found with this number in the current queue, or None."""
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
        """Return another message of the queue with the same id, or None."""
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
        """Check the temporary files. Quarantine one that holds a message which is not in the queue; remove all others:
        old versions of existing messages, and unfinished metadata files."""
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
