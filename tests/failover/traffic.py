"""Programs at both nodes of a pair, and their books: what each node took in and handed out, in which term, and when.

Each speaks to its node alone, by the node's own socket, and tries nothing twice: what the books say of a node was said
by that node."""

import itertools
import threading
import time
from contextlib import suppress
from typing import Any, NamedTuple

import stomp

from tests.support.pair import NAMES, Pair
from tests.support.server_process import until
from yirangmq import NewMessage, QueueError
from yirangmq.client.connect import connect

QUEUE = "work"
PAUSE = 0.01
LEASE_SECONDS = 1


class Accepted(NamedTuple):
    """A message that a node confirmed. ``term``: of the node, before and after; None where that is not one and the
    same, as while it changes."""

    id: str
    node: str
    term: int | None
    begun: float
    ended: float


class Traffic:
    """From ``with`` to its end."""

    def __init__(self, two: Pair) -> None:
        self._two = two
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._go, args=(name,)) for name in NAMES]
        self.accepted: list[Accepted] = []
        self.tried: set[str] = set()
        self.acked: list[str] = []
        self.unsure: set[str] = set()
        """Acked, but nobody said so."""

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _go(self, name: str) -> None:
        number = 0
        while not self._over.wait(PAUSE):
            try:
                with connect(self._two.nodes[name].address, retries=0, timeout=10) as client:
                    while not self._over.wait(PAUSE):
                        number += 1
                        self._publish(client, name, f"{name}{number}")
                        if number % 2:
                            self._take(client)
            except (QueueError, OSError):
                continue

    def _publish(self, client: Any, name: str, id: str) -> None:
        before = _term(client)
        self.tried.add(id)
        begun = time.monotonic()
        client.publish(QUEUE, NewMessage(payload=id.encode(), id=id))
        ended = time.monotonic()
        after = _term(client)
        self.accepted.append(Accepted(id, name, before if before == after else None, begun, ended))

    def _take(self, client: Any) -> None:
        for one in client.lease(QUEUE, lease_seconds=LEASE_SECONDS):
            self.unsure.add(one.id)
            client.ack(one.lease_id)
            self.acked.append(one.id)
            self.unsure.discard(one.id)

    # -- what is in the books ---------------------------------------------------------------------------------------

    def wait_for_more(self, count: int = 10, *, at: str = "") -> None:
        """Until so many more were confirmed, by this node or any."""
        enough = self._count(at) + count
        until(lambda: self._count(at) >= enough)

    def _count(self, node: str) -> int:
        return len([one for one in self.accepted.copy() if node in ("", one.node)])

    @property
    def confirmed(self) -> set[str]:
        return {one.id for one in self.accepted}

    def both_accepted(self) -> list[tuple[Accepted, Accepted]]:
        """One that was taken in with an older term, though another had been confirmed with a newer one before it was
        sent: then both nodes took work at that moment."""
        known = sorted((one for one in self.accepted if one.term is not None), key=lambda one: one.ended)
        found = []
        for late in known:
            found += [(one, late) for one in known if one.ended < late.begun and _of(one) > _of(late)][:1]
        return found

    def terms_of_both(self) -> set[int]:
        """Terms in which both nodes took something in."""
        a, b = ({one.term for one in self.accepted if one.node == name} for name in NAMES)
        return {term for term in a & b if term is not None}

    def longest_gap(self) -> float:
        """Seconds for which nobody took anything in."""
        ends = sorted(one.ended for one in self.accepted)
        return max((after - before for before, after in itertools.pairwise(ends)), default=0.0)


def _of(one: Accepted) -> int:
    return one.term or 0


def _term(client: Any) -> int | None:
    found = client.call("pair_status")
    return int(found["term"]) if found["works"] else None


def check_one_at_a_time(traffic: Traffic) -> None:
    assert traffic.both_accepted() == []
    assert traffic.terms_of_both() == set()


def check_nothing_is_lost(two: Pair, traffic: Traffic) -> None:
    """The standby tells what lies on its disk; adopted, everything that was confirmed and not handed out before is
    handed out by the active node, once, and nothing else."""
    active = two.wait_for_one()
    standby = "b" if active == "a" else "a"
    reported = sum(two.status(standby)["backlog"].values())
    assert two.nodes[standby].stop() == 0
    adopted = two.call(active, "pair_adopt", store=two.nodes[standby].url, node=standby)
    assert adopted["messages"] + adopted["known"] == reported
    got: list[str] = []

    def is_empty() -> bool:
        with connect(two.nodes[active].address, retries=0, timeout=30) as client:
            for one in client.lease(QUEUE, 100):
                got.append(one.id)
                client.ack(one.lease_id)
        return not sum(two.status(active)["backlog"].values())

    until(is_empty)
    assert len(got) == len(set(got)), "handed out twice"
    assert not set(got) & set(traffic.acked), "acked at one node, and handed out by the other"
    assert len(traffic.acked) == len(set(traffic.acked)), "acked twice"
    assert traffic.confirmed - traffic.unsure <= set(got) | set(traffic.acked), "lost"
    assert set(got) <= traffic.tried
    assert two.call(active, "pair_adopt", store=two.nodes[standby].url, node=standby)["messages"] == 0


BEATS_MS = 1000


GREETING_SECONDS = 5.0


class Program(stomp.ConnectionListener):  # type: ignore[misc]
    """As programs of ActiveMQ are: it connects to the first of its list that lets it in, and again when it was lost.
    A node that takes the connection and says nothing is passed over for the next."""

    def __init__(self, ports: list[int]) -> None:
        self.addresses = [("127.0.0.1", port) for port in ports]
        self.got: list[bytes] = []
        self.receipts: list[str] = []
        self.line: Any = None
        self._lost = threading.Event()
        self._over = threading.Event()
        self._lost.set()
        self._thread = threading.Thread(target=self._keep)

    def on_message(self, frame: Any) -> None:
        self.got.append(frame.body)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.append(frame.headers["receipt-id"])

    def on_disconnected(self) -> None:
        self._lost.set()

    def _keep(self) -> None:
        while not self._over.is_set():
            if self._lost.wait(0.05):
                self._drop()
                self._lost.clear()
                if not self._connect():
                    self.addresses.append(self.addresses.pop(0))
                    self._lost.set()
                    self._over.wait(0.1)

    def _connect(self) -> bool:
        beats = (BEATS_MS, BEATS_MS)
        line = stomp.Connection12(
            self.addresses, heartbeats=beats, reconnect_attempts_max=1, timeout=GREETING_SECONDS, auto_decode=False
        )
        line.set_listener("program", self)
        try:
            line.connect()
            until(lambda: line.is_connected() or self._lost.is_set(), GREETING_SECONDS)
            line.subscribe("/queue/work", id="1", ack="auto")
        except (AssertionError, OSError, stomp.exception.StompException):
            return False
        self.line = line
        return True

    def _drop(self) -> None:
        line, self.line = self.line, None
        if line is not None:
            with suppress(Exception):
                line.transport.disconnect_socket()

    def send(self, id: str) -> None:
        """Until it is confirmed, by whichever node; what is sent twice is stored once."""
        end = time.monotonic() + 120
        while id not in self.receipts:
            assert time.monotonic() < end, "nobody confirmed it"
            with suppress(AssertionError):
                until(lambda: self.line is not None, 2.0)
            with suppress(Exception):
                self.line.send("/queue/work", id, headers={"receipt": id, "_AMQ_DUPL_ID": id})
            with suppress(AssertionError):
                until(lambda: id in self.receipts or self._lost.is_set(), 2.0)

    def start(self) -> "Program":
        self._thread.start()
        return self

    def stop(self) -> None:
        self._over.set()
        self._thread.join(30)
        self._drop()
