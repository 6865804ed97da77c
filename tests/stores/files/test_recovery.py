"""What a crash or a power cut can leave behind is put in order when the store is opened, and while it is open."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stores.files.parts import document, only, open_queues, tree
from tests.support.store_contract import FAILURE, NOW, bring, envelope, move, picture, put
from yirangmq import NewMessage
from yirangmq.core.errors import StoreTooNew
from yirangmq.core.ports import Change
from yirangmq.core.states import State
from yirangmq.stores.files.store import FilesStore
from yirangmq.testing import ManualClock


def _furnished(folder: Path) -> FilesStore:
    """A store with messages in every state a message can be in."""
    store = FilesStore(folder, durability="os")
    states = [state for state in State if state is not State.DRAFT]
    made = put(
        store, *[envelope(f"m{n}", rank=n % 3, dedup_key=f"k{n}", expires_at=NOW + 10**6) for n in range(len(states))]
    )
    for card, state in zip(made, states, strict=True):
        card = bring(store, card, state)
        if state in (State.DEAD, State.DELAYED):
            move(store, card, state, FAILURE)
    put(store, *[envelope(f"p{n}", "post") for n in range(3)])
    first, *behind = put(store, *[envelope(f"g{n}", "post", group=7 + n % 2, target=n % 3) for n in range(2, 8)])
    with store.transaction() as transaction:
        transaction.swap([Change(card, card._replace(state=State.HELD)) for card in behind[1:]])
        transaction.add([envelope("d", "post", group=7)], NOW, NOW, NOW + 10**6)
        transaction.set_note("ledger/one", "1")
    move(store, first, State.LEASED, FAILURE)
    return store


def _no_index(folder: Path) -> None:
    shutil.rmtree(folder / ".index")


def _torn_index(folder: Path) -> None:
    for path in (folder / ".index").rglob("*"):
        if path.is_file():
            path.write_bytes(os.urandom(100))


def _unfinished_index(folder: Path) -> None:
    state = folder / ".index" / "state"
    data = bytearray(state.read_bytes())
    data[8] = 1
    state.write_bytes(data)


def _another_boot(folder: Path) -> None:
    state = folder / ".index" / "state"
    state.write_bytes(state.read_bytes().replace(b"-", b"+"))
    shutil.rmtree(folder / ".index" / "seq")
    (folder / ".index" / "seq").mkdir()


@pytest.mark.parametrize("harm", [_no_index, _torn_index, _unfinished_index, _another_boot])
def test_index_rebuild_from_the_file_names_restores_the_store(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    store = _furnished(tmp_path)
    before = picture(store)
    store.close()
    harm(tmp_path)
    store = FilesStore(tmp_path)
    assert picture(store) == before
    assert list(store.check(repair=False)) == []
    [card] = put(store, envelope("m0", dedup_key="other"), envelope("new", dedup_key="k1"))[:1]
    assert card.id == "m0"
    store.close()


@pytest.mark.parametrize("harm", [_no_index, _torn_index, _unfinished_index])
def test_index_rebuild_happens_when_the_index_is_lost_while_the_store_is_open(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    store = _furnished(tmp_path)
    before = picture(store)
    harm(tmp_path)
    assert picture(store) == before
    [card] = put(store, envelope("new"))
    with store.transaction(write=False) as transaction:
        assert transaction.by_id("mail", ["new"]) == [card]
    assert list(store.check(repair=False)) == []
    store.close()


def test_copied_folder_is_an_independent_store(tmp_path: Path) -> None:
    store = _furnished(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    copy = FilesStore(tmp_path / "two")
    assert picture(copy) == picture(store)
    put(copy, envelope("only here"))
    assert picture(copy) != picture(store)
    store.close()
    copy.close()


def test_sequence_is_never_reused_after_the_index_is_lost(tmp_path: Path) -> None:
    store = FilesStore(tmp_path)
    [card] = put(store, envelope("m"))
    with store.transaction() as transaction:
        transaction.forget([card])
    store.close()
    _no_index(tmp_path)
    store = FilesStore(tmp_path)
    [again] = put(store, envelope("m"))
    assert again.seq > card.seq
    store.close()


@pytest.mark.parametrize("harm", ["missing", "torn", "behind"])
def test_sequence_counter_missing_torn_or_behind_is_restored_from_the_file_names(tmp_path: Path, harm: str) -> None:
    store = FilesStore(tmp_path)
    last = put(store, *[envelope(f"m{n}") for n in range(5)])[-1]
    store.close()
    counter = tmp_path / ".counter"
    if harm == "missing":
        counter.unlink()
    else:
        counter.write_bytes(b'{"format":1,"res' if harm == "torn" else b'{"format":1,"reserved":2}')
    _no_index(tmp_path)
    store = FilesStore(tmp_path)
    [card] = put(store, envelope("new"))
    assert card.seq > last.seq
    assert document(counter)["reserved"] >= card.seq
    assert list(store.check(repair=False)) == []
    store.close()


def test_store_format_from_a_later_version_is_refused_and_unchanged(tmp_path: Path) -> None:
    FilesStore(tmp_path).close()
    (tmp_path / ".counter").write_text('{"format":4,"reserved":7}')
    with pytest.raises(StoreTooNew, match="format 4"):
        FilesStore(tmp_path)
    assert (tmp_path / ".counter").read_text() == '{"format":4,"reserved":7}'


MOVES = [
    (State.READY, State.LEASED),
    (State.LEASED, State.DONE),
    (State.LEASED, State.DELAYED),
    (State.LEASED, State.READY),
    (State.LEASED, State.DEAD),
    (State.DELAYED, State.READY),
    (State.DEAD, State.READY),
    (State.READY, State.DROPPED),
]


@pytest.mark.parametrize(("origin", "target"), MOVES)
def test_file_name_restored_by_a_power_cut_gives_way_to_the_new_name(
    tmp_path: Path, origin: State, target: State
) -> None:
    store = FilesStore(tmp_path)
    card = bring(store, put(store, envelope("m"))[0], origin)
    [old] = [path for path in tmp_path.rglob("*~m*.json") if path.is_file()]
    kept = tmp_path / "kept"
    shutil.copy(old, kept)
    after = move(store, card, target)
    wanted = picture(store)
    store.close()
    old.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(kept, old)
    _no_index(tmp_path)
    store = FilesStore(tmp_path)
    assert picture(store) == wanted
    with store.transaction(write=False) as transaction:
        assert transaction.by_id("mail", ["m"]) == [after]
    assert not old.exists()
    store.close()


def test_recovery_removes_unfinished_files(tmp_path: Path) -> None:
    store = _furnished(tmp_path)
    before = picture(store)
    store.close()
    (tmp_path / "mail" / "meta" / "temp" / "99.tmp").write_bytes(b"half")
    (tmp_path / ".counter.tmp").write_bytes(b"{")
    (tmp_path / ".notes" / ".temp" / "0123456789abcdef.tmp").write_bytes(b"half")
    (tmp_path / ".trash" / "scratch~1" / "inbox").mkdir(parents=True)
    (tmp_path / ".trash" / "scratch~1" / "inbox" / "x.json").write_bytes(b"1")
    orphan = tmp_path / "mail" / "meta" / "failures" / "0000000000" / "000000000999a.json"
    orphan.write_bytes(b"{}")
    _no_index(tmp_path)
    store = FilesStore(tmp_path)
    assert picture(store) == before
    assert list(store.check(repair=False)) == []
    assert tree(tmp_path / "mail" / "meta" / "temp") == []
    assert not orphan.exists()
    assert not (tmp_path / ".counter.tmp").exists()
    assert list((tmp_path / ".notes" / ".temp").iterdir()) == []
    assert list((tmp_path / ".trash").iterdir()) == []
    store.close()


@pytest.mark.parametrize(
    "content", [b"", b'{"messageId":"m","payl', b"\0" * 300, b'{"messageId":"other","yirangmq":{}}']
)
def test_broken_message_file_is_quarantined_and_the_others_are_leased(tmp_path: Path, content: bytes) -> None:
    with open_queues(tmp_path) as queues:
        queues.publish_many("mail", [NewMessage(payload=n, id=f"m{n}") for n in range(3)])
        [path] = (tmp_path / "mail" / "inbox").rglob("*~m0.json")
        path.write_bytes(content)
        assert [delivery.value() for delivery in queues.lease("mail", 9)] == [1, 2]
        assert queues.counts("mail").ready == 0
        quarantine = tmp_path / "mail" / "quarantine"
        assert (quarantine / path.name).exists()
        assert document(quarantine / f"{path.name}.reason.json")["from"].startswith("inbox/last/")
        assert list(queues.check()) == []
        assert not queues.publish("mail", NewMessage(payload=0, id="m0")).duplicate


def test_dedup_key_without_its_message_after_a_power_cut_is_void(tmp_path: Path) -> None:
    """The power failed when the key's name was on disk and the message's was not: who sends it again must succeed."""
    with open_queues(tmp_path) as queues:
        queues.publish("mail", NewMessage(payload=1, id="m", deduplication_key="k"))
    only(tmp_path / "mail" / "inbox").unlink()
    _no_index(tmp_path)
    with open_queues(tmp_path) as queues:
        assert not queues.publish("mail", NewMessage(payload=1, deduplication_key="k")).duplicate


def test_dedup_key_lost_in_a_power_cut_is_restored_from_its_message(tmp_path: Path) -> None:
    """The other way round: who sends it again must be told that it is there."""
    clock = ManualClock(time.time_ns() // 1_000_000)
    with open_queues(tmp_path, clock) as queues:
        queues.publish("mail", NewMessage(payload=1, id="m", deduplication_key="k"))
    only(tmp_path / "mail" / "meta" / "keys").unlink()
    _no_index(tmp_path)
    with open_queues(tmp_path, clock) as queues:
        again = queues.publish("mail", NewMessage(payload=1, deduplication_key="k"))
        assert (again.duplicate, again.id) == (True, "m")


def test_dedup_key_outlives_its_message_through_an_index_rebuild(tmp_path: Path) -> None:
    store = FilesStore(tmp_path)
    [card] = put(store, envelope("m", dedup_key="k"))
    with store.transaction() as transaction:
        transaction.forget([card])
    store.close()
    _no_index(tmp_path)
    store = FilesStore(tmp_path)
    with store.transaction() as transaction:
        [again] = transaction.add([envelope("n", dedup_key="k")], NOW + 1, NOW + 2)
        assert (again.duplicate, again.id, again.seq) == (True, "m", card.seq)
    store.close()


def test_message_file_removed_by_hand_is_noticed_and_leaves_the_counts_right(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        queues.publish_many("mail", [NewMessage(payload=n, id=f"m{n}") for n in range(3)])
        [path] = (tmp_path / "mail" / "inbox").rglob("*~m1.json")
        path.unlink()
        assert queues.drop("mail", ["m1"])[0] is not None
        assert queues.counts("mail").ready == 2
        assert [delivery.value() for delivery in queues.lease("mail", 9)] == [0, 2]
        assert list(queues.check()) == []


def test_torn_tail_of_the_results_file_does_not_break_later_lines(tmp_path: Path) -> None:
    with open_queues(tmp_path) as queues:
        for _ in range(2):
            queues.publish("mail", 1)
            queues.ack(queues.lease("mail")[0].lease_id)
            [results] = tmp_path.rglob("results.jsonl")
            results.write_bytes(results.read_bytes()[:-10])
        queues.publish("mail", NewMessage(payload=1, id="last"))
        queues.ack(queues.lease("mail")[0].lease_id)
    lines = results.read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[-1])["messageId"] == "last"
