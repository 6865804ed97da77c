"""Looks over what lies beside the messages of one queue: why they failed, deduplication keys, totals, the policy.

Knows: the queue's messages, which were looked over first. Does not know: how those are found (files_survey.py)."""

import re
from collections.abc import Callable, Iterator

from yirangmq.core.errors import BadPolicy
from yirangmq.format.filenames import Card
from yirangmq.fsio.disk import listdir, read_bytes
from yirangmq.stores.files_content import Broken, read_failure
from yirangmq.stores.files_keys import read_key
from yirangmq.stores.files_made import Made
from yirangmq.stores.files_mending import Mender, Problem
from yirangmq.stores.files_policies import Policies
from yirangmq.stores.files_totals import FOLDER as TOTALS_FOLDER
from yirangmq.stores.files_totals import latest
from yirangmq.stores.files_walk import FAILURES, walk_failures, walk_keys

_FAILURE_NAME = re.compile(r"([0-9]{12,16})[ab]\.json")


class Beside:
    """``card_of``: the message of a number, as it lies in the folder."""

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
        """A failure that cannot be read is set aside; if it is the one in force, what the name says takes its place."""
        card = self._card_of(seq)
        aside = problem.mend

        def mend() -> None:
            if aside is not None:
                aside()
            if card is not None and card.failure == which:
                self._mender.explain(card)

        return problem._replace(mend=mend)

    def keys(self, keyed: dict[int, Card]) -> Iterator[Problem]:
        """``keyed``: messages that say they have a key; those whose key is here are taken out of it."""
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
