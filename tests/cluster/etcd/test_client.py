"""The thin client against real members: failing over, never writing twice, watching without a gap, keeping leases."""

import asyncio
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.etcd.proxy import Proxy
from tests.support.credentials import certificate
from tests.support.etcd import EtcdCluster, at, play
from tests.support.wait import PATIENCE, soon
from yirangmq.cluster.etcd import channel
from yirangmq.cluster.etcd.address import EtcdAddress, EtcdTls
from yirangmq.cluster.etcd.channel import RevisionCompacted
from yirangmq.cluster.etcd.client import (
    Etcd,
    create_revision_equals,
    delete,
    get,
    list_and_watch,
    mod_revision_equals,
    nested,
    prefix_end,
    put,
)
from yirangmq.cluster.etcd.lease import EtcdLease
from yirangmq.core.errors import NotAllowed, TooLarge, Unavailable, Unreachable

pytestmark = pytest.mark.process


@pytest.fixture
def key() -> bytes:
    return f"/t/{uuid.uuid4().hex}/".encode()


def test_etcd_client_puts_reads_and_deletes_keys_in_conditional_transactions(etcd: EtcdCluster, key: bytes) -> None:
    async def game() -> None:
        async with at(*etcd.endpoints) as client:
            first = (await client.put(key + b"a", b"1")).header.revision
            assert not (await client.txn([create_revision_equals(key + b"a", 0)], [put(key + b"a", b"2")])).succeeded
            moved = [delete(key + b"a"), nested([mod_revision_equals(key + b"z", 0)], [put(key + b"b", b"1")])]
            answer = await client.txn([mod_revision_equals(key + b"a", first)], moved, [get(key + b"a")])
            assert answer.succeeded
            assert answer.responses[1].response_txn.succeeded
            assert await client.get(key + b"a") is None
            found = await client.get(key + b"b")
            assert found is not None
            assert found.value == b"1"
            assert await client.delete(key, prefix_end(key)) == 1

    play(game())


def test_etcd_client_pages_are_of_one_revision(etcd: EtcdCluster, key: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yirangmq.cluster.etcd.client.PAGE", 3)

    async def game() -> None:
        async with at(*etcd.endpoints) as client:
            await client.txn([], [put(key + b"%d" % number, b"") for number in range(8)])
            seen: list[bytes] = []
            async for page in client.pages(key, prefix_end(key)):
                seen += [one.key.removeprefix(key) for one in page]
                await client.put(key + b"9", b"")
            assert seen == [b"%d" % number for number in range(8)]

    play(game())


def test_etcd_client_sends_reads_and_new_writes_to_the_next_member_after_a_failure(
    etcds: EtcdCluster, key: bytes
) -> None:
    async def game() -> None:
        async with at(*etcds.endpoints) as client:
            for number in range(2):
                await client.put(key + b"%d" % number, b"")
                used = (await client.connection.member()).endpoint
                [member] = [one for one in etcds.members if one.endpoint == used]
                if number:
                    member.freeze()  # it takes connections and never answers
                    with pytest.raises(Unreachable):
                        await client.put(key + b"x", b"")
                else:
                    member.kill()
                assert (await client.range(key, prefix_end(key), count_only=True)).count > number
                await client.put(key + b"after%d" % number, b"")
                assert (await client.connection.member()).endpoint != used
                member.wake() if number else member.start()
                assert etcds.wait_well()

    play(game())


def test_etcd_client_raises_unavailable_when_no_member_answers(key: bytes) -> None:
    async def game() -> None:
        async with at("127.0.0.1:1", "127.0.0.1:2") as client:
            with pytest.raises(Unavailable, match="no member"):
                await client.put(key, b"")

    play(game())


def test_etcd_client_does_not_repeat_a_write_whose_answer_is_lost(etcd: EtcdCluster, key: bytes) -> None:
    async def game() -> None:
        async with Proxy(etcd.endpoints[0]) as proxy, at(proxy.endpoint) as client:
            await client.put(key, b"0")
            proxy.deaf = True
            writing = asyncio.ensure_future(client.put(key, b"1"))
            async with at(*etcd.endpoints) as other:

                async def is_there() -> bool:
                    return bool((await other.range(key)).kvs[0].version == 2)

                await soon(is_there, what="the write at the member")
                proxy.cut()
                with pytest.raises(Unreachable):
                    await writing
                proxy.deaf = False
                found = await client.get(key)
                assert found is not None
                assert found.version == 2

    play(game())


def test_etcd_watch_cut_during_catchup_misses_nothing(etcd: EtcdCluster, key: bytes) -> None:
    async def game() -> None:
        async with at(*etcd.endpoints) as writer:
            first = (await writer.put(key + b"begin", b"")).header.revision
            for start in range(0, 4000, 100):
                await writer.txn([], [put(key + b"%04d" % n, bytes(500)) for n in range(start, start + 100)])
        async with Proxy(etcd.endpoints[0], cut_after=700_000) as proxy, at(proxy.endpoint) as client:
            seen = await _seen(client, key, first + 1, 4000)
            assert proxy.cuts == 1
            assert seen == [b"%04d" % number for number in range(4000)]

    play(game())


async def _seen(client: Etcd, key: bytes, revision: int, count: int) -> list[bytes]:
    seen: list[bytes] = []
    async for events in client.watch(key, prefix_end(key), revision=revision):
        seen += [event.kv.key.removeprefix(key) for event in events]
        if len(seen) >= count:
            break
    return seen


def test_etcd_watch_joins_the_parts_of_large_answers_to_whole_revisions(etcd: EtcdCluster, key: bytes) -> None:
    """1.2 MB a revision, ten of them: more than one answer may hold."""

    async def game() -> None:
        async with at(*etcd.endpoints) as client:
            first = (await client.put(key + b"begin", b"")).header.revision
            for start in range(0, 120, 12):
                await client.txn([], [put(key + b"%03d" % n, bytes(100_000)) for n in range(start, start + 12)])
            assert await _comes_in_parts(client, key, first + 1)
            seen: list[bytes] = []
            async for events in client.watch(key, prefix_end(key), revision=first + 1):
                seen += [event.kv.key.removeprefix(key) for event in events]
                assert len(seen) % 12 == 0
                if len(seen) == 120:
                    break
            assert seen == [b"%03d" % number for number in range(120)]

    play(game())


async def _comes_in_parts(client: Etcd, key: bytes, revision: int) -> bool:
    member = await client.connection.member()
    wanted = channel.MESSAGES["WatchCreateRequest"](
        key=key, range_end=prefix_end(key), start_revision=revision, fragment=True
    )
    call = member.stream(channel.WATCH)()
    await call.write(channel.WATCH.request(create_request=wanted))
    parts, events = 0, 0
    while events < 120:
        answer = await call.read()
        parts, events = parts + answer.fragment, events + len(answer.events)
    call.cancel()
    return parts > 0


def test_etcd_watch_that_was_compacted_raises_an_error_and_following_lists_again(etcd: EtcdCluster, key: bytes) -> None:
    async def game() -> None:
        async with at(*etcd.endpoints) as client:
            first = (await client.put(key + b"a", b"")).header.revision
            await client.put(key + b"b", b"")
            await client.delete(key + b"a")
            await client.compact((await client.put(key + b"b", b"")).header.revision)
            with pytest.raises(RevisionCompacted):
                await _seen(client, key, first, 1)

    async def following() -> None:
        async with Proxy(etcd.endpoints[0]) as proxy, at(proxy.endpoint) as client, at(*etcd.endpoints) as writer:
            known: set[bytes] = set()
            lists = 0
            async for changes in list_and_watch(client, key, prefix_end(key)):
                if changes.is_listing:
                    lists, known = lists + 1, set()
                for one in changes.events:
                    known.add(one.key if changes.is_listing else one.kv.key)
                if lists == 1:
                    proxy.cut()
                    proxy.deaf = True
                    await writer.put(key + b"c", b"")
                    await writer.compact((await writer.put(key + b"d", b"")).header.revision)
                    proxy.cut()
                    proxy.deaf = False
                if key + b"d" in known:
                    break
            assert lists == 2
            assert known == {key + letter for letter in (b"b", b"c", b"d")}

    play(game())
    play(following())


def test_etcd_lease_is_kept_alive_and_reports_its_loss(etcd: EtcdCluster, key: bytes) -> None:
    async def game() -> None:
        async with at(*etcd.endpoints) as client:
            async with await EtcdLease.grant(client, 4) as lease:
                await client.put(key, b"", lease.id)
                left_alone, _ = await client.grant(lease.seconds)
                await client.put(key + b"other", b"", left_alone)

                async def has_ended() -> bool:
                    return await client.get(key + b"other") is None

                await soon(has_ended, what="the end of a lease as long, granted later, that nobody keeps")
                assert await client.get(key) is not None
                assert [lease.is_alive, lease.lost.is_set()] == [True, False]
                etcd.ctl("lease", "revoke", f"{lease.id:x}")
                await asyncio.wait_for(lease.lost.wait(), PATIENCE)
                assert [lease.is_alive, lease.lost.is_set()] == [False, True]
            async with await EtcdLease.grant(client, 2) as other:
                await client.put(key, b"", other.id)
            assert await client.get(key) is None

    play(game())


def test_etcd_lease_is_lost_when_nothing_was_confirmed_for_its_duration(etcd: EtcdCluster) -> None:
    async def game() -> None:
        async with Proxy(etcd.endpoints[0]) as proxy, at(proxy.endpoint) as client:
            lease = await EtcdLease.grant(client, 2)
            async with lease:
                proxy.deaf = True
                await asyncio.wait_for(lease.lost.wait(), PATIENCE)
                assert not lease.is_alive
                proxy.deaf = False
                proxy.cut()

    play(game())


def test_etcd_watch_and_lease_continue_when_the_leader_of_etcd_is_killed(etcds: EtcdCluster, key: bytes) -> None:
    """A connection swapped under running calls must neither end them nor leave two of them."""

    async def game() -> None:
        leader = etcds.leader()
        order = (leader.endpoint, *(member.endpoint for member in etcds.members if member is not leader))
        client = at(*order)
        client.connection._order = list(order)
        async with client, await EtcdLease.grant(client, 60) as lease:
            revision = (await client.put(key + b"begin", b"", lease.id)).header.revision
            seen: list[bytes] = []

            async def watch() -> None:
                async for events in client.watch(key, prefix_end(key), revision=revision + 1):
                    seen.extend(event.kv.key.removeprefix(key) for event in events)

            watching = asyncio.ensure_future(watch())
            sent = 0

            async def is_written(name: bytes) -> bool:
                """The key is the message's name, so writing it again is safe if it is not there."""
                try:
                    await client.txn([create_revision_equals(name, 0)], [put(name, b"")])
                except Unavailable:
                    return False
                return True

            for number in range(60):
                if number == 20:
                    leader.kill()
                if number == 40:
                    leader.start()
                await soon(partial(is_written, key + b"%02d" % number), what="an etcd that writes")
                sent += 1
            await soon(lambda: len(seen) >= sent, what="all events")
            assert seen == [b"%02d" % number for number in range(60)]
            assert lease.is_alive
            assert not watching.done()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    play(game())


def test_etcd_login_by_password_renews_a_token_that_a_restart_made_void(tmp_path: Path, key: bytes) -> None:
    async def game(etcd: EtcdCluster) -> None:
        for words in (
            ["user", "add", "root:secret"],
            ["role", "add", "root"],
            ["user", "grant-role", "root", "root"],
            ["user", "add", "ann:word"],
            ["role", "add", "mine"],
            ["role", "grant-permission", "mine", "readwrite", "--prefix=true", key.decode()],
            ["user", "grant-role", "ann", "mine"],
            ["auth", "enable"],
        ):
            etcd.ctl(*words)
        address = EtcdAddress(endpoints=tuple(etcd.endpoints), user="ann", password="word")
        async with Etcd(address) as client:
            revision = (await client.put(key, b"1")).header.revision
            with pytest.raises(NotAllowed):
                await client.put(b"/other", b"")
            with pytest.raises(NotAllowed):
                await _seen(client, b"/other", 1, 1)
            etcd.members[0].kill()
            etcd.members[0].start()
            assert etcd.wait_well()
            await client.range(key)
            client.connection._token = "never given"
            await client.put(key, b"2")
            client.connection._token = "never given"
            assert len(await _seen(client, key, revision, 2)) == 2
            async with await EtcdLease.grant(client, 5) as lease:
                client.connection._token = "never given"
                assert await lease._renewed() or await lease._renewed()
        async with Etcd(EtcdAddress(endpoints=tuple(etcd.endpoints), user="ann", password="wrong")) as client:
            with pytest.raises(NotAllowed):
                await client.get(key)

    with EtcdCluster(tmp_path / "etcd") as cluster:
        play(game(cluster))


def test_tls_to_etcd_works_with_a_client_certificate_and_is_refused_without(tmp_path: Path, key: bytes) -> None:
    cert, secret = certificate(tmp_path)
    flags = ["--cert-file", str(cert), "--key-file", str(secret), "--client-cert-auth", "--trusted-ca-file", str(cert)]
    tls = EtcdTls(ca=cert.read_bytes(), cert=cert.read_bytes(), key=secret.read_bytes())

    async def game(endpoints: tuple[str, ...]) -> None:
        async with Etcd(EtcdAddress(endpoints=endpoints, tls=tls)) as client:
            await client.put(key, b"1")
            assert await client.get(key) is not None
        async with at(*endpoints) as stranger:
            with pytest.raises(Unavailable):
                await stranger.put(key, b"2")

    with EtcdCluster(tmp_path / "etcd", flags=flags, scheme="https") as cluster:
        play(game(tuple(cluster.endpoints)))


def test_etcd_client_refuses_a_value_too_large_by_name(etcd: EtcdCluster, key: bytes) -> None:
    async def game() -> Any:
        async with at(*etcd.endpoints) as client:
            with pytest.raises(TooLarge, match="too large"):
                await client.put(key, bytes(1_700_000))

    play(game())
