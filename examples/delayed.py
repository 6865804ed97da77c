"""Delayed messages: stored now, delivered after a delay; in the meantime other messages pass.

    python examples/delayed.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock"""

import sys

import yirangmq
from yirangmq import NewMessage

if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        queues.publish("reminders", NewMessage("after half a second", delay=0.5))
        queues.publish("reminders", "at once")

        [first] = queues.lease("reminders", 10)
        print(first.value())
        queues.ack(first.lease_id)

        counts = queues.counts("reminders")
        print(f"{counts.ready} ready, {counts.delayed} delayed")
        [second] = queues.lease("reminders", wait=30)  # returns when the delay is over
        print(second.value())
        queues.ack(second.lease_id)
