"""The datagram: golden bytes, refusals, and what is not believed twice."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden_files import golden
from yirangmq.core.errors import BadInput, NotAllowed, QueueError
from yirangmq.core.failover import FailoverTiming, NodeLoad, PeerHeartbeat, Role, Status
from yirangmq.core.failover_node import CLOCK_WINDOW_MS, FailoverNode, HeartbeatResult
from yirangmq.wire.heartbeat import HEAD, MAX_BYTES, read, write

KEY = b"a key of the two nodes"
BEAT = PeerHeartbeat(
    node="gateway-1",
    boot="5f0c6a1e9b7d4c32",
    sequence=4711,
    at=1_768_300_000_000,
    running=86_400_000,
    active=3_600_000,
    role=Role.ACTIVE,
    status=Status.RUNNING,
    term=12,
    address="tcp://10.0.0.1:7411",
    heard_boot="0011223344556677",
    heard_sequence=17,
    heard_age=1200,
    load=NodeLoad(cpu=0.125, memory=90_000_000, depth=42),
)
STANDBY = PeerHeartbeat(
    node="gateway-2", boot="0011223344556677", sequence=18, at=1_768_300_000_900, running=500, active=0,
    role=Role.STANDBY, status=Status.STARTING, term=11, claim=12, grant=13, grant_boot="5f0c6a1e9b7d4c32", wish=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("heartbeat", "file"), [(BEAT, "heartbeat-v1-active.bin"), (STANDBY, "heartbeat-v1-standby.bin")]
)
def test_heartbeat_bytes_equal_the_golden_bytes(heartbeat: PeerHeartbeat, file: str) -> None:
    assert write(heartbeat, KEY) == golden(file)
    assert read(golden(file), KEY) == heartbeat


def test_heartbeat_members_are_all_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "pair.md").read_text()
    members = json.loads(golden("heartbeat-v1-active.bin")[HEAD:])
    assert [name for name in (*members, *members["load"]) if f"`{name}`" not in page] == []


def test_heartbeat_with_another_key_is_refused() -> None:
    with pytest.raises(NotAllowed):
        read(write(BEAT, KEY), b"another key")


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_heartbeat_with_a_changed_byte_is_refused(place: int, change: int) -> None:
    data = bytearray(write(BEAT, KEY))
    data[place % len(data)] ^= change
    with pytest.raises(QueueError):
        read(bytes(data), KEY)


@given(st.binary(max_size=200))
def test_heartbeat_of_random_bytes_is_refused(data: bytes) -> None:
    for one in (data, b"YRHB\x01" + data):
        with pytest.raises((BadInput, NotAllowed)):
            read(one, KEY)


def test_heartbeat_too_large_for_a_packet_is_not_written() -> None:
    with pytest.raises(BadInput, match=str(MAX_BYTES)):
        write(
            PeerHeartbeat(**{**{name: getattr(BEAT, name) for name in PeerHeartbeat.__slots__}, "address": "x" * 1100}),
            KEY,
        )


# -- once, and now --------------------------------------------------------------------------------------------------


def partner(boot: str = "here", wall: int = 0) -> FailoverNode:
    return FailoverNode("here", FailoverTiming(), 0, boot, 0)


def there(sequence: int, boot: str = "there", at: int = 0, **more: object) -> PeerHeartbeat:
    known = {"node": "there", "running": 0, "active": 0, "role": Role.STANDBY, "status": Status.RUNNING, "term": 0}
    return PeerHeartbeat(**known | {"boot": boot, "sequence": sequence, "at": at} | more)  # type: ignore[arg-type]


def test_heartbeat_counts_once_and_only_with_a_higher_sequence() -> None:
    one = partner()
    assert [one.on_heartbeat(there(n), 0, 0) for n in (1, 2, 2, 1, 5, 4, 6)] == [
        HeartbeatResult.TAKEN, HeartbeatResult.TAKEN, HeartbeatResult.REPEATED, HeartbeatResult.REPEATED,
        HeartbeatResult.TAKEN, HeartbeatResult.REPEATED, HeartbeatResult.TAKEN,
    ]  # fmt: skip


def test_heartbeat_of_a_process_that_was_replaced_is_rejected() -> None:
    one = partner()
    one.on_heartbeat(there(1), 0, 0)
    assert one.on_heartbeat(there(1, "later", at=5), 0, 0) is HeartbeatResult.TAKEN
    assert one.on_heartbeat(there(99), 0, 0) is HeartbeatResult.REPEATED


def test_heartbeat_of_an_earlier_unknown_process_does_not_replace_the_known_process() -> None:
    one = partner()
    one.on_heartbeat(there(1, at=100, running=10), 0, 100)
    assert one.on_heartbeat(there(50, "earlier", at=95, running=60), 0, 100) is HeartbeatResult.STRANGE
    assert one.on_heartbeat(there(2, at=110, running=20), 0, 110) is HeartbeatResult.TAKEN


def test_heartbeat_of_a_new_process_with_another_clock_must_confirm_one_of_ours() -> None:
    one = partner()
    old = there(7, at=-CLOCK_WINDOW_MS - 1)
    assert one.on_heartbeat(old, 0, 0) is HeartbeatResult.STRANGE
    assert one.peer is None
    said = one.heartbeat(10, 10)
    assert (said.heard_boot, said.heard_sequence) == ("there", 7)
    proven = there(8, at=-CLOCK_WINDOW_MS - 1, heard_boot="here", heard_sequence=said.sequence)
    assert one.on_heartbeat(proven, 20, 20) is HeartbeatResult.TAKEN


def test_heartbeat_clock_may_jump_within_one_process() -> None:
    one = partner()
    one.on_heartbeat(there(1), 0, 0)
    assert one.on_heartbeat(there(2, at=10**12), 0, 0) is HeartbeatResult.TAKEN
    assert one.skew == 10**12


def test_heartbeat_with_our_own_name_is_not_from_a_peer() -> None:
    assert partner().on_heartbeat(there(1, node="here"), 0, 0) is HeartbeatResult.OURSELVES


def test_heartbeat_measures_the_link_delay_without_comparing_clocks() -> None:
    one = partner()
    said = one.heartbeat(1000, 0)
    one.on_heartbeat(there(1, heard_boot="here", heard_sequence=said.sequence, heard_age=70), 1100, 5)
    assert one.delay == 30
