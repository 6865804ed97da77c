"""New messages that came with a deduplication key of which there is no trace: a power cut may have kept a message and
lost its key. Nobody was told of that message, and whoever sends it again must find it."""

import time
from collections.abc import Iterable

from yirangmq.core.errors import BadPolicy
from yirangmq.core.message import Message
from yirangmq.core.states import State
from yirangmq.format.filenames import Card
from yirangmq.fsio.disk import read_bytes
from yirangmq.stores.files_content import Broken, read_envelope
from yirangmq.stores.files_deeds import Deeds
from yirangmq.stores.files_entries import Key, key_print
from yirangmq.stores.files_keys import KeyFile
from yirangmq.stores.files_made import Made
from yirangmq.stores.files_mending import path_of
from yirangmq.stores.files_policies import Policies


class Keyless:
    def __init__(self, root: str, policies: Policies, deeds: Deeds, made: Made) -> None:
        self._root = root
        self._policies = policies
        self._deeds = deeds
        self._made = made
        self._cards: list[Card] = []

    def add(self, cards: Iterable[Card]) -> None:
        self._cards += [card for card in cards if _is_new(card.message)]

    def restore(self) -> None:
        """The key is read from the content."""
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
                continue  # somebody else has it by now
            if until > time.time() * 1000:
                file = KeyFile(Key(key_print(message.queue, key), message.seq, until), message.id)
                self._deeds.create(f"{self._root}/{message.queue}/{file.path}")
                self._made.set_until(message.seq, until)
                self._made.add_key(file.key)


def _is_new(message: Message) -> bool:
    return message.leases == 0 and message.state in (State.READY, State.DELAYED, State.HELD, State.DRAFT)
