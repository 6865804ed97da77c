"""The store in etcd: commits too large for one request, answers that are lost, a lead that is lost."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.etcd import EtcdCluster
from tests.support.server_process import until
from tests.support.store_contract import NOW, QUEUE, bring, envelope, listed, picture, put
from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.cluster.etcd.channel import TXN
from yirangmq.cluster.etcd.client import Etcd, prefix_end
from yirangmq.cluster.fenced_commits import LeaderTerm
from yirangmq.cluster.leadership import Leader
from yirangmq.core.errors import NotActive, TooLarge, Unavailable, Unreachable
from yirangmq.core.ports import Change
from yirangmq.core.states import State
from yirangmq.stores.etcd.store import EtcdStore

pytestmark = pytest.mark.process
MANY = 3_000


@pytest.fixture
def address(etcd: EtcdCluster, request: pytest.FixtureRequest) -> EtcdAddress:
    return EtcdAddress(endpoints=tuple(etcd.endpoints), name=request.node.name[:100], lease=60)


def opened(address: EtcdAddress) -> EtcdStore:
    store = EtcdStore(address, Leader("here"))
    store.join_election()
    store.wait_for_leadership()
    return store


def with_etcd(address: EtcdAddress, act: Any) -> Any:
    async def whole() -> Any:
        async with Etcd(address) as client:
            return await act(client)

    return asyncio.run(whole())


def keys_of(address: EtcdAddress, part: bytes) -> list[bytes]:
    async def look(client: Etcd) -> list[bytes]:
        prefix = b"/yirangmq/" + address.name.encode() + b"/" + part
        return [kv.key for kv in (await client.range(prefix, prefix_end(prefix), keys_only=True)).kvs]

    found: list[bytes] = with_etcd(address, look)
    return found


def test_etcd_commit_larger_than_a_request_is_stored_and_leaves_no_journal(address: EtcdAddress) -> None:
    """Bodies go ahead; so many cards are a journal."""
    store = opened(address)
    made = put(store, *[envelope(f"m{number}", payload=bytes(1_000)) for number in range(MANY)])
    with store.transaction() as transaction:
        leased = [card._replace(state=State.LEASED, consumer="c" * 400) for card in made]
        transaction.swap([Change(before, after) for before, after in zip(made, leased, strict=True)])
    before = picture(store)
    store.close()
    again = opened(address)
    assert picture(again) == before
    assert keys_of(address, b"j/") == []
    again.close()


@pytest.mark.parametrize("step", ["_commit_marker", "_finish"])
def test_etcd_journal_interrupted_before_its_commit_is_void_and_after_it_is_complete(
    address: EtcdAddress, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before the commit it is nothing, after it everything."""
    store = opened(address)
    put(store, envelope("first"))
    real = getattr(LeaderTerm, step)

    async def dies(self: LeaderTerm, *given: Any) -> None:
        if step == "_finish" or given[1:] == () or given[1]:
            raise Unavailable("killed here")
        await real(self, *given)

    monkeypatch.setattr(LeaderTerm, step, dies)
    with pytest.raises(Unavailable):
        put(store, *[envelope(f"m{number}", payload=bytes(1_000)) for number in range(2 * MANY)])
    monkeypatch.undo()
    store.close()
    again = opened(address)
    with again.transaction(write=False) as transaction:
        found = len(listed(transaction, QUEUE, State.READY))
        assert found == (1 if step == "_commit_marker" else 2 * MANY + 1)
        assert transaction.counts(QUEUE).ready == found
    assert keys_of(address, b"j/") == []
    assert len(keys_of(address, b"b/")) == found
    again.close()


def test_etcd_commit_whose_response_was_lost_is_applied_once(
    address: EtcdAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(address)
    real = Etcd.txn
    lost: list[Any] = []

    async def loses_one(self: Etcd, *given: Any, **more: Any) -> Any:
        answer = await real(self, *given, **more)
        if not lost:
            lost.append(answer)
            raise Unreachable("the line was cut")
        return answer

    monkeypatch.setattr(Etcd, "txn", loses_one)
    put(store, envelope("m"))
    put(store, envelope("n"))
    assert lost
    before = picture(store)
    store.close()
    again = opened(address)
    assert picture(again) == before
    again.close()


def test_etcd_leader_that_lost_its_key_writes_nothing_and_is_elected_again(address: EtcdAddress) -> None:
    store = opened(address)
    [card] = put(store, envelope("m"))
    leader = b"/yirangmq/" + address.name.encode() + b"/leader"
    term_count = store.term_count

    def lose_it() -> None:
        with store.transaction() as transaction:
            with_etcd(address, lambda client: client.delete(leader))
            transaction.swap([Change(card, card._replace(state=State.LEASED))])

    with pytest.raises(NotActive):
        lose_it()
    until(lambda: store.is_on and store.term_count > term_count)
    with store.transaction(write=False) as transaction:
        assert transaction.by_id(QUEUE, ["m"]) == [card]
    bring(store, card, State.DEAD)
    store.close()


def test_etcd_lease_and_ack_of_a_batch_send_one_request_each_without_payloads(address: EtcdAddress) -> None:
    """One call for a hundred messages, with their cards and without their bodies."""
    store = opened(address)
    made = put(store, *[envelope(f"m{number}", payload=bytes(10_000)) for number in range(100)])
    etcd, sizes = store._etcd, list[int]()
    assert etcd is not None
    call = etcd.connection.call

    async def noted(method: Any, request: Any, **more: Any) -> Any:
        if method is TXN:
            sizes.append(request.ByteSize())
        return await call(method, request, **more)

    etcd.connection.call = noted  # type: ignore[method-assign]
    leased = [card._replace(state=State.LEASED, consumer="ann", leases=1) for card in made]
    done = [card._replace(state=State.DONE, body=False) for card in leased]
    for before, after in ((made, leased), (leased, done)):
        with store.transaction() as transaction:
            transaction.swap([Change(*pair) for pair in zip(before, after, strict=True)])
            assert transaction.counts(QUEUE).published == 100  # reading asks nobody
    assert len(sizes) == 2
    assert max(sizes) < 100 * 1_000
    store.close()


def test_etcd_message_too_large_is_refused_and_the_next_is_stored(address: EtcdAddress) -> None:
    store = opened(address)
    with pytest.raises(TooLarge, match="payload: a message in etcd may have 1310720 bytes"):
        put(store, envelope("m", payload=bytes(1_310_721)))
    put(store, envelope("n", payload=bytes(1_310_720)))
    with store.transaction(write=False) as transaction:
        assert [card.id for card, _ in transaction.heads(QUEUE, 9)] == ["n"]
    store.close()


def test_etcd_store_refuses_a_second_process_with_the_name_of_the_active_node(
    address: EtcdAddress, tmp_path: Path
) -> None:
    store = opened(address)
    other = EtcdStore(address, Leader("there"))
    other.join_election()
    until(lambda: other.leader is not None)
    with pytest.raises(Unavailable, match="the active node is here"):
        other.wait_for_leadership(0.1)
    with pytest.raises(NotActive, match="the active node is here"), other.transaction():
        pass
    put(store, envelope("m"))
    store.close()
    other.wait_for_leadership()
    with other.transaction(write=False) as transaction:
        assert transaction.counts(QUEUE).ready == 1
        assert transaction.due(NOW, 9) == []
    other.close()
