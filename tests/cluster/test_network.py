"""A member of etcd that is cut off from the others and from everybody, in network namespaces of its own."""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.troupe import AT_ONCE, Troupe, doubled
from tests.support.etcd import EtcdCluster, play
from tests.support.wait import soon, until

pytestmark = [pytest.mark.process, pytest.mark.slow]

MADE = itertools.count()


class Network:
    """A bridge, and for each member a namespace with one address on it; ``cut`` pulls its cable."""

    def __init__(self, count: int) -> None:
        made = next(MADE)
        self._id = f"{os.getpid() % 100000:05}x{made}"
        self._bridge = f"yr{self._id}"
        self._net = f"10.213.{(os.getpid() * 8 + made) % 250}"
        self.count = count
        self.hosts = [f"{self._net}.{10 + number}" for number in range(count)]
        self.prefixes = [["ip", "netns", "exec", self._space(number)] for number in range(count)]

    def __enter__(self) -> "Network":
        try:
            self._ip("link", "add", self._bridge, "type", "bridge")
            self._ip("addr", "add", f"{self._net}.1/24", "dev", self._bridge)
            self._ip("link", "set", self._bridge, "up")
            for number in range(self.count):
                self._connect(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """A namespace that is deleted takes its cable with it later; a cable that is deleted is gone at once."""
        for number in range(self.count):
            for words in (("link", "del", self._cable(number)), ("netns", "del", self._space(number))):
                with contextlib.suppress(subprocess.CalledProcessError):
                    self._ip(*words)
        with contextlib.suppress(subprocess.CalledProcessError):
            self._ip("link", "del", self._bridge)
        until(lambda: not self.left())

    def left(self) -> list[str]:
        """The devices of this network that are there."""
        shown = subprocess.run(["ip", "-json", "link", "show"], check=True, capture_output=True).stdout
        return [link["ifname"] for link in json.loads(shown) if self._id in link["ifname"]]

    def cut(self, number: int) -> None:
        self._ip("link", "set", self._cable(number), "down")

    def mend(self, number: int) -> None:
        self._ip("link", "set", self._cable(number), "up")

    def _connect(self, number: int) -> None:
        space, cable, inside = self._space(number), self._cable(number), f"yi{self._id}{number}"
        self._ip("netns", "add", space)
        self._ip("link", "add", cable, "type", "veth", "peer", "name", inside)
        self._ip("link", "set", inside, "netns", space)
        self._ip("link", "set", cable, "master", self._bridge)
        self._ip("link", "set", cable, "up")
        for words in (
            ["addr", "add", f"{self.hosts[number]}/24", "dev", inside],
            ["link", "set", inside, "up"],
            ["link", "set", "lo", "up"],
        ):
            self._ip("-n", space, *words)

    def _space(self, number: int) -> str:
        return f"yr{self._id}-{number}"

    def _cable(self, number: int) -> str:
        return f"yo{self._id}{number}"

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def network() -> Iterator[Network]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the command ip")
    try:
        made = Network(3).__enter__()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode()}")
    try:
        yield made
    finally:
        made.__exit__()


def test_network_namespaces_are_removed_on_exit_while_a_process_is_still_in_them(network: Network) -> None:
    with Network(1) as other, subprocess.Popen([*other.prefixes[0], "sleep", "600"]) as dweller:
        assert len(other.left()) == 2
        other.__exit__()
        assert dweller.poll() is None
        dweller.kill()
        assert other.left() == []
    assert len(network.left()) == 4


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_etcd_member_cut_off_and_reconnected_repeats_at_most_unacked_batches(
    network: Network, tmp_path: Path, queue: str, who: str
) -> None:
    """Consumers whose lease ends meanwhile have their unacked batch worked on twice, as if they had frozen."""

    async def evil(troupe: Troupe) -> None:
        leader = await asyncio.to_thread(etcds.leader)
        number = etcds.members.index(leader)
        cut = number if who == "leader" else (number + 1) % 3
        network.cut(cut)
        before = troupe.seen().total()
        await soon(lambda: asyncio.to_thread(others_lead, cut), what="the others lead, and the member is out of reach")
        await soon(lambda: troupe.seen().total() > before + 2 * AT_ONCE, what="work that goes on without it")
        network.mend(cut)

    def others_lead(cut: int) -> bool:
        return not etcds.members[cut].is_well() and etcds.leader() is not etcds.members[cut]

    with (
        EtcdCluster(tmp_path / "etcd", 3, hosts=network.hosts, prefixes=network.prefixes) as etcds,
        Troupe(etcds, tmp_path / "troupe", queue) as troupe,
    ):
        assert doubled(play(troupe.perform(1500, evil))) <= 2 * AT_ONCE
