"""A disk that is full or can no longer be written: at every single call, a clear error and nothing half done."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.faulty_disk import UnwillingDisk, dead_from, full_from, full_once, willing
from tests.support.store_contract import FAILURE, NOW, Picture, cards, envelope, moved, picture, put
from yirangmq.core.errors import StoreError, StoreFull, StoreReadOnly
from yirangmq.core.message import Message
from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import State
from yirangmq.crashtest.faults.injector import Injector, SystemCalls
from yirangmq.stores.files.store import FilesStore

Work = Callable[[Transaction, list[Message]], None]
MOST_CALLS = 200
NEW = {"n", "anew", *(f"n{n}" for n in range(9)), *(f"g{n}" for n in range(4))}
"""Ids of what the works below publish."""


def _publish(transaction: Transaction, there: list[Message]) -> None:
    transaction.add([envelope(f"n{n}", rank=n % 2, dedup_key=f"k{n}") for n in range(9)], NOW, NOW + 1000)
    transaction.add([envelope("n", "fresh", available_at=NOW + 50)], NOW, NOW)


def _lease(transaction: Transaction, there: list[Message]) -> None:
    heads = transaction.heads("mail", 3)
    transaction.swap([Change(card, moved(card, State.LEASED, 0)) for card, _ in heads])


def _settle(transaction: Transaction, there: list[Message]) -> None:
    leased = [message for message in there if message.state is State.LEASED]
    transaction.swap(
        [
            Change(leased[0], moved(leased[0], State.DONE, 0)),
            Change(leased[1], moved(leased[1], State.DONE, 0)._replace(body=False)),
            Change(leased[2], moved(leased[2], State.DEAD, 0), FAILURE),
            Change(leased[3], moved(leased[3], State.READY, transaction.places(1)), FAILURE),
        ]
    )


def _steer(transaction: Transaction, there: list[Message]) -> None:
    transaction.set_policy("mail", '{"ttlSec":9}')
    transaction.set_policy("post", None)


def _delete(transaction: Transaction, there: list[Message]) -> None:
    transaction.delete_queue("mail")
    transaction.add([envelope("anew")], NOW, NOW)


def _forget(transaction: Transaction, there: list[Message]) -> None:
    transaction.forget([message for message in there if message.state is not State.READY])
    transaction.forget_keys(NOW + 10**9, 9)


def _rewrite(transaction: Transaction, there: list[Message]) -> None:
    """In place, under another name, and on the way to another state."""
    ready = [message for message in there if message.state is State.READY][:3]
    payloads = [b"daolyap", b"longer than before", b"new"]
    new = [
        envelope(card.id, payload=one, dedup_key=f"old{card.id[1:]}") for card, one in zip(ready, payloads, strict=True)
    ]
    transaction.rewrite(ready, new)
    last = ready[-1]._replace(size=new[-1].size)
    transaction.swap([Change(last, moved(last, State.LEASED, 0))])


def _regroup(transaction: Transaction, there: list[Message]) -> None:
    """Two groups begin, and one that is there moves on."""
    stored = transaction.add([envelope(f"g{n}", group=7 + n % 2) for n in range(4)], NOW, NOW)
    behind = cards(transaction, [one.seq for one in stored[2:]])
    transaction.swap([Change(card, card._replace(state=State.HELD)) for card in behind])
    [first] = [card for card in transaction.group_first("mail", [5]) if card is not None]
    transaction.swap([Change(first, moved(first, State.DEAD, 0), FAILURE)])


def _turn_keys(transaction: Transaction, there: list[Message]) -> None:
    transaction.hold_keys("mail", {"old1": (there[2].seq, "m2"), "new": (there[3].seq, "m3")}, NOW + 9_000)
    transaction.free_keys("mail", ["old4"])


def _jot(transaction: Transaction, there: list[Message]) -> None:
    transaction.set_note("a/b", "2")
    transaction.set_note("a", None)
    transaction.set_note("c/d/e", "3")


TAKEN_BACK = [_publish, _lease, _settle, _steer, _delete, _rewrite, _regroup, _turn_keys, _jot]
"""Everything but forgetting, which is of what is over."""


class Scene:
    """A store with a little of everything, on a disk that can be told to refuse."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = UnwillingDisk()
        self.store = FilesStore(folder, disk=self.disk)
        made = put(self.store, *[envelope(f"m{n}", dedup_key=f"old{n}") for n in range(12)])
        with self.store.transaction() as transaction:
            leased = [Change(card, moved(card, State.LEASED, 0)) for card in made[:6]]
            transaction.swap(leased)
        self.seqs = [card.seq for card in made]
        with self.store.transaction() as transaction:
            transaction.set_policy("mail", '{"ttlSec":7}')
            transaction.set_policy("post", '{"ttlSec":8}')
            transaction.set_note("a", "0")
            transaction.set_note("a/b", "1")
            transaction.add([envelope("first", group=5), envelope("one", target=6)], NOW, NOW)

    def attempt(self, work: Work) -> None:
        with self.store.transaction() as transaction:
            work(transaction, cards(transaction, self.seqs))

    def close(self) -> None:
        self.store.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "queues")
    yield scene
    scene.close()


@pytest.mark.parametrize("full", [full_once, full_from])
@pytest.mark.parametrize("work", TAKEN_BACK, ids=[work.__name__ for work in TAKEN_BACK])
def test_full_disk_at_any_call_leaves_the_store_as_it_was(
    scene: Scene, tmp_path: Path, work: Work, full: Callable[[int], Callable[[int, str], int]]
) -> None:
    before = picture(scene.store)
    wanted = _undisturbed(tmp_path / "twin", work)
    failures = 0
    for at in range(1, MOST_CALLS):
        scene.disk.start(full(at))
        try:
            scene.attempt(work)
            break  # what is refused now is refused to those who tidy up afterwards
        except StoreFull:
            failures += 1
        finally:
            scene.disk.start(willing)
        assert picture(scene.store) == before, f"refused at call {at}"
    assert failures > 1 or (work is _lease and full is full_from), "a lease needs no space"
    assert picture(scene.store) == wanted
    assert list(scene.store.check(repair=False)) == []
    assert _reopened(scene) == wanted


def _undisturbed(folder: Path, work: Work) -> Picture:
    twin = Scene(folder)
    twin.attempt(work)
    twin.close()
    return _reopened(twin)


def test_full_disk_during_forget_leaves_each_message_forgotten_or_kept(scene: Scene) -> None:
    for at in range(1, MOST_CALLS):
        scene.disk.start(full_once(at))
        try:
            with scene.store.transaction() as transaction:
                there = [message for message in transaction.by_seq(scene.seqs) if message is not None]
                _forget(transaction, there)
        except StoreFull:
            pass
        if not scene.disk.refused:
            break
        scene.disk.start(willing)
        assert picture(scene.store)  # whoever comes next clears up
        assert list(scene.store.check(repair=False)) == []
    with scene.store.transaction(write=False) as transaction:
        assert [message is None for message in transaction.by_seq(scene.seqs)] == [True] * 6 + [False] * 6


@pytest.mark.parametrize("work", [*TAKEN_BACK, _forget], ids=[work.__name__ for work in [*TAKEN_BACK, _forget]])
def test_disk_that_fails_from_any_call_on_loses_no_message(tmp_path: Path, work: Work) -> None:
    for at in range(1, MOST_CALLS, 4):
        scene = Scene(tmp_path / str(at))
        before = _cards_in(picture(scene.store))
        scene.disk.start(dead_from(at))
        with suppress(StoreReadOnly):
            scene.attempt(work)
        over = not scene.disk.refused
        scene.close()
        after = _reopened(scene)
        assert _cards_in(after).keys() - before.keys() <= NEW
        if work not in (_forget, _delete):
            assert before.keys() <= _cards_in(after).keys()
        if over:
            return
    pytest.fail("it never ended")


def test_full_disk_error_names_the_cause_and_the_store_continues(scene: Scene) -> None:
    scene.disk.start(full_from(1))
    with pytest.raises(StoreFull, match="no space left"):
        put(scene.store, envelope("x"))
    with scene.store.transaction(write=False) as transaction:
        assert len(transaction.heads("mail", 99)) == 7
    scene.disk.start(willing)
    [card] = put(scene.store, envelope("x"))
    with scene.store.transaction(write=False) as transaction:
        assert transaction.by_id("mail", ["x"]) == [card]


@pytest.mark.parametrize("part", ["ids", "keys"])
def test_index_write_error_in_any_part_hides_no_later_message(tmp_path: Path, part: str) -> None:
    """From each call on in turn, on this part alone: the rest of the disk works, so the index stays trusted."""
    injector = Injector()
    store = FilesStore(tmp_path)
    last = 0
    with SystemCalls(injector, tmp_path / ".index" / part):
        for call in range(1, MOST_CALLS):
            injector.arm("EIO", call, None)
            with suppress(StoreError):
                put(store, envelope(f"r{call}", dedup_key=f"refused {call}"))
            injector.disarm()
            new = [envelope(f"a{call}-{n}", dedup_key=f"{call} {n}") for n in range(300)]  # in every shard
            put(store, *new)
            with store.transaction() as transaction:
                assert None not in transaction.by_id("mail", [one.id for one in new])
                assert None not in transaction.key_holders("mail", [f"{call} {n}" for n in range(300)], NOW)
            if not injector.fired:
                last = call
                break
    assert last > 1
    store.close()


def _reopened(scene: Scene) -> Picture:
    store = FilesStore(scene.folder)
    try:
        assert list(store.check(repair=False)) == []
        return picture(store)
    finally:
        store.close()


def _cards_in(seen: Picture) -> dict[str, Message]:
    found: dict[str, Message] = {}
    for queue in seen.values():
        if isinstance(queue, dict) and "messages" in queue:
            found.update({message.id: message for message in queue["messages"]})
    return found


@pytest.mark.parametrize("content", [b"", b'{"of":"a message that was not blanked"}'])
def test_spare_file_that_is_not_blank_does_not_refuse_a_message(tmp_path: Path, content: bytes) -> None:
    """A message that was finished while the disk was full is left with an empty file; once it is forgotten that file
    is a spare one."""
    store = FilesStore(tmp_path / "s")
    put(store, envelope("first"))
    spare = tmp_path / "s" / "mail" / "meta" / "spare" / "7.spare"
    spare.parent.mkdir(exist_ok=True)
    spare.write_bytes(content)
    put(store, envelope("second", payload=b"what is sent"))
    with store.transaction(write=False) as transaction:
        heads = transaction.heads("mail", 9)
    assert [sent.payload for _, sent in heads] == [envelope("first").payload, b"what is sent"]
    assert not spare.exists()
    store.close()
