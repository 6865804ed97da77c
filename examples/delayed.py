"""Delayed messages: stored now, delivered after a delay; in the meantime other messages pass.

    python examples/delayed.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock"""

import sys
import time

import yirangmq
from yirangmq import NewMessage

if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        start = time.monotonic()
        queues.publish("reminders", NewMessage("the delayed one", delay=0.5))
        queues.publish("reminders", "the other one")

        [first] = queues.lease("reminders")
        print("first:", first.value())
        queues.ack(first.lease_id)

        [second] = queues.lease("reminders", wait=30)  # returns when the delay is over
        is_late = time.monotonic() - start >= 0.5
        print("then:", second.value(), "after half a second" if is_late else "too early")
        queues.ack(second.lease_id)
