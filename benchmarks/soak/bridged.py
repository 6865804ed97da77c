"""A queue that is fed by topics during a run: at its end it must hold each record once, in the order of the log."""

import time
from zlib import crc32

from benchmarks.soak.judge import Seen
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect
from yirangmq.format.envelope import header_of

NAME = QUEUE = "bridged"
PAGE = 500


def build(address: str, pattern: str) -> None:
    with connect(address, retries=5, timeout=10) as client:
        client.call("bridge_add", name=NAME, queue=QUEUE, topics=[pattern], groups=False, start="beginning")


def taken(address: str, last: int) -> list[Seen]:
    """All that is in the queue once the bridge has come to the end of the log."""
    until = time.monotonic() + PATIENCE
    found: list[Seen] = []
    with connect(address, retries=5, timeout=30) as client:
        while client.call("bridge_show", name=NAME)["sequence"] < last and time.monotonic() < until:
            time.sleep(0.02)
        while got := client.lease(QUEUE, PAGE):
            for one in got:
                about = header_of(one.envelope)["attributes"]
                checksum = crc32(one.envelope.payload)
                found.append(Seen(about["sequence"], about["topic"], about["topicSequence"], checksum))
            client.ack([one.lease_id for one in got])
    return found
