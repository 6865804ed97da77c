"""Priorities: 0 is delivered first, larger numbers later, messages without a priority last.

    python examples/priorities.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock"""

import sys

import yirangmq
from yirangmq import NewMessage

if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        queues.publish("mails", "newsletter")
        queues.publish("mails", NewMessage("receipt", priority=5))
        queues.publish("mails", NewMessage("password reset", priority=0))
        queues.publish("mails", NewMessage("second receipt", priority=5))  # same priority: in order of arrival

        for delivery in queues.lease("mails", 10):
            print(delivery.value())
            queues.ack(delivery.lease_id)
