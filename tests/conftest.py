"""How long hypothesis looks: a little at each run, much longer with ``YIRANGMQ_HYPOTHESIS=long``; what servers of
tests have in common; which tests begin first, and what becomes of one that hangs; the fixtures of all folders."""

import faulthandler
import os
import signal
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.support.etcd import EtcdCluster
    from yirangmq.testing import ManualClock

# Time on a shared machine says nothing about the code, so no example has a deadline.
settings.register_profile("quick", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("quick"), max_examples=3000)
settings.load_profile(os.environ.get("YIRANGMQ_HYPOTHESIS", "quick"))

# Tests run servers side by side, and there is only one port 8080. A test of HTTP says where its server listens.
os.environ["YIRANGMQ_HTTP"] = "off"

LONG = ("spark", "process", "long")
GRACE = 60.0
"""Seconds after its time limit, which is an exception in the test's thread, that a test which does not heed it has."""
_complaints = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_complaints] = os.dup(2)  # what pytest captures is lost when the process is ended
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As in the background of a script. Tests of Ctrl-C, and the processes they start, would wait for ever.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_complaints])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first, so that no worker is left alone with it at the end."""
    items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.support.xdist_groups import Together

    return Together(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test stuck where no exception reaches it, as in a call into C, ends its process and shows where every thread
    is: the others go on in another process, and a hang does not use up the time of the whole run."""
    marker = item.get_closest_marker("timeout")
    limit = marker.args[0] if marker and marker.args else item.config.getini("timeout")
    faulthandler.dump_traceback_later(float(limit) + GRACE, exit=True, file=item.config.stash[_complaints])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def clock() -> "ManualClock":
    from yirangmq.testing import ManualClock

    return ManualClock()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator["EtcdCluster"]:
    """An etcd of one member for the tests of a module: each test has a queue, or keys, of its own."""
    from tests.support.etcd import EtcdCluster

    with EtcdCluster(tmp_path_factory.mktemp("etcd") / "one") as cluster:
        yield cluster
