"""``make bench-gateways``: the gateways of ``deploy/`` under the same STOMP load, over TLS, started from their files.

Figures: confirmed messages of 2000 bytes a second and their delay; then the active node is killed: the time without a
confirmation, and how many confirmed messages were not delivered after it, of a queue that is consumed as they come and
of one whose consumers begin after the failure."""

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.failover.test_deploy_pair import works
from tests.support.deployed import Gateway, gateway
from tests.support.server_process import until
from tests.support.stomp_load import Load, percentile

PATIENCE = 120.0
PRODUCERS = 8
CONSUMERS = 2
BACKLOG = 500
SETTLE_SECONDS = 10.0


def start(name: str, found: Gateway, stack: ExitStack) -> None:
    """Members of etcd first; then both nodes, of which one becomes active."""
    if name == "gateway-etcd":
        members = [found.member(name, number) for number in ("1", "2", "3")]
        for member in members:
            stack.callback(member.kill)
            member.start()
        until(lambda: all(member.is_well() for member in members), PATIENCE)
    found.start("1")
    if name == "pair":
        until(lambda: works(found, "1"), PATIENCE)
    found.start("2")


def measure(name: str, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        found = stack.enter_context(gateway(name, Path(folder)))
        start(name, found, stack)
        running, waiting = Load("/queue/JETCO"), Load("/queue/EPSCO")
        running.start(found.place("ATMH"), found.place("JETCO"), PRODUCERS, CONSUMERS)
        try:
            until(lambda: len(running.sent) > 100, PATIENCE)
            begun, first = time.monotonic(), len(running.delays)
            time.sleep(seconds)
            steady = [delay for _, delay in running.delays[first:]]
            rate = len(steady) / (time.monotonic() - begun)
            waiting.produce(found.place("ATMH"), 2)
            until(lambda: len(waiting.sent) >= BACKLOG, PATIENCE)
            waiting.stop_producing()
            found.nodes["1"].kill()
            before = len(running.sent)
            until(lambda: len(running.sent) > before + 100, PATIENCE)
            running.stop_producing()
            waiting.consume(found.place("EPSCO"), CONSUMERS)
            time.sleep(SETTLE_SECONDS)  # what can be delivered is delivered
            p50, p99 = (1000 * percentile(steady, share) for share in (0.5, 0.99))
            print(
                f"{name:13} {rate:6.0f} messages/s   delay {p50:5.1f} ms median, {p99:5.1f} ms 99 %   "
                f"failover {running.longest_gap:4.1f} s   not delivered: "
                f"{running.missing} of {len(running.sent)} consumed as they came, "
                f"{waiting.missing} of {len(waiting.sent)} that waited   "
                f"delivered twice: {sum(count - 1 for count in running.got.values())}",
                flush=True,
            )
        finally:
            running.stop()
            waiting.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of the steady load (15)")
    parser.add_argument("--only", choices=("pair", "gateway-etcd"), help="one of the two")
    args = parser.parse_args()
    for name in ("pair", "gateway-etcd"):
        if args.only in (None, name):
            measure(name, args.seconds)


if __name__ == "__main__":
    sys.exit(main())
