"""Whatever bytes come: no crash, no leak, and each bad frame gets an error with a name. Ten seconds at each run of
``pytest``, a minute in ``make test``, two in ``make fuzz`` (``YIRANGMQ_FUZZ_SECONDS``)."""

import gc
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.frame_examples import EXAMPLES
from tests.support.session import MAX_FRAME, Client, Server
from yirangmq.core.errors import every_error
from yirangmq.core.states import State
from yirangmq.stores.open import open_store
from yirangmq.wire import messages
from yirangmq.wire.frames import HEAD, FrameKind, encode

SECONDS = float(os.environ.get("YIRANGMQ_FUZZ_SECONDS", "10"))
PER_SERVER = 60
"""Sessions before a fresh server takes over, so that what they stored does not count as a leak."""
CODES = {error.code for error in every_error()} - {"internal_error"}
ANSWERS = {
    FrameKind.WELCOME,
    FrameKind.STORED,
    FrameKind.DELIVER,
    FrameKind.SETTLED,
    FrameKind.RESULT,
    FrameKind.ERROR,
    FrameKind.PONG,
    FrameKind.BYE,
}
ASKED = [example for example in EXAMPLES if example.kind not in ANSWERS]
METHODS = Server().calls.names
WORDS = (None, True, 0, -1, 2**63, 1.5, "", "telemetry", "m-1", "é" * 300, b"\xff", [], ["m-1"], {}, *State)
VALUES: dict[str, tuple[Any, ...]] = {
    "queue": ("telemetry", "telemetry-dlq"),
    "id": ("alarm-1", "nobody"),
    "ids": (["alarm-1"], ["alarm-1", "nobody"]),
    "limit": (1, 10_000),
    "state": ("ready", "dead", "all", "delayed"),
    "cursor": ("", "7", "1:2", '["telemetry","dead","x"]', "99999999999999999999"),
    "filter": ("", "attempt>=1", "payload.temp>3 or state=parked"),
    "document": (None, {}, {"retry": {"limit": 1}}, {"dlq": {"queue": "telemetry"}}),
    "dry_run": (True, False),
    "wish": ("pause",),
}
"""Of each named value some that may well be right."""

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20)
    | st.binary(max_size=20) | st.sampled_from(["telemetry", "1-1", "TIMEOUT"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def check(client: Client) -> None:
    """The invariants of a session that has just been fed."""
    assert client.session.held <= MAX_FRAME + HEAD.size
    for answer in client.answers:
        if answer.kind is FrameKind.ERROR:
            assert answer.value.code in CODES, answer.value.text
    client.answers.clear()


def ended(server: Server, client: Client) -> None:
    client.session.close()
    server.turn()
    assert server.desk.is_idle
    assert not server.desk.waiting_consumers.waiters, "somebody who left still waits"


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_fuzz_any_bytes_leave_the_session_consistent(pieces: list[bytes]) -> None:
    server = Server()
    client = server.client()
    for piece in pieces:
        if not client.is_closed:
            client.session.receive(piece)
            server.turn()
            check(client)
    ended(server, client)


@given(st.sampled_from([*FrameKind, 0, 99]), st.lists(plain, max_size=6), st.integers(0, 2**32 - 1))
def test_fuzz_any_members_in_any_kind_of_frame_leave_the_session_working(
    kind: int, members: list[Any], request: int
) -> None:
    server = Server()
    client = server.client()
    client.session.receive(encode(kind, request, msgspec.msgpack.encode(members)))
    server.turn()
    check(client)
    if not client.is_closed:
        client.session.receive(messages.frame(FrameKind.PING, 5, messages.Empty()))
        assert client.answers[-1].kind is FrameKind.PONG
    ended(server, client)


class Mutator:
    """Frames that are nearly right: the nearer, the deeper they get."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def stream(self) -> bytes:
        frames = [self._frame() for _ in range(self.chance.randint(1, 12))]
        data = bytearray(b"".join(frames))
        if self.chance.random() < 0.3:
            self._damage(data)
        return bytes(data)

    def _frame(self) -> bytes:
        chance = self.chance
        if chance.random() < 0.4:
            names = {"queue", *chance.sample([*VALUES, "nonsense"], chance.randint(0, 3))}
            values = {
                name: chance.choice(VALUES.get(name, WORDS) if chance.random() < 0.9 else WORDS) for name in names
            }
            return messages.frame(FrameKind.CALL, chance.randint(0, 20), messages.Call(chance.choice(METHODS), values))
        example = chance.choice(ASKED)
        body = bytearray(example.bytes()[HEAD.size :])
        if chance.random() < 0.5:
            self._damage(body)
        kind = example.kind if chance.random() < 0.9 else chance.randint(0, 255)
        return encode(kind, chance.randint(0, 20), bytes(body))

    def _damage(self, data: bytearray) -> None:
        for _ in range(self.chance.randint(1, 3)):
            at = self.chance.randrange(len(data) + 1)
            match self.chance.randrange(4):
                case 0 if data:
                    data[at % len(data)] = self.chance.choice(
                        (0, 1, 0x7F, 0x80, 0xC1, 0xFF, self.chance.randrange(256))
                    )
                case 1:
                    data[at:at] = self.chance.randbytes(self.chance.randint(1, 6))
                case 2:
                    del data[at : at + self.chance.randint(1, 6)]
                case _:
                    data += data[at : at + 20]

    def pieces(self, data: bytes) -> list[bytes]:
        pieces = []
        while data:
            size = self.chance.choice((1, 3, 11, 12, 13, 50, 500))
            pieces.append(data[:size])
            data = data[size:]
        return pieces


def played(server: Server, mutator: Mutator) -> None:
    client = server.client()
    for piece in mutator.pieces(mutator.stream()):
        client.session.receive(piece)
        server.turn()
        check(client)
        if client.is_closed:
            break
    server.turns.advance(mutator.chance.choice((0, 1, 40_000)))
    ended(server, client)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_fuzz_damaged_frames_leak_no_memory(kind: str, tmp_path: Path) -> None:
    mutator = Mutator(20260113)
    until = time.monotonic() + SECONDS / 2
    blocks: list[int] = []
    rounds = 0
    while time.monotonic() < until or len(blocks) < 6:
        where = f"sqlite:{tmp_path / f'{rounds}.db'}" if kind == "sqlite" else "memory:"
        store = open_store(where, durability="os")
        server = Server(store)
        for _ in range(PER_SERVER):
            played(server, mutator)
        server.pages.stop()
        store.close()
        del server, store
        gc.collect()
        blocks.append(sys.getallocatedblocks())
        rounds += 1
    early, late = min(blocks[2 : len(blocks) // 2 + 1]), min(blocks[len(blocks) // 2 :])
    assert late < early * 1.02 + 1000, f"memory grows: {blocks}"
