"""Message groups: messages of one group are delivered one at a time, in order; groups do not wait for each other.

    python examples/groups.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock"""

import sys

import yirangmq
from yirangmq import NewMessage

if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        queues.publish("accounts", NewMessage("ann: open", group="ann"))
        queues.publish("accounts", NewMessage("ann: pay in 50", group="ann"))
        queues.publish("accounts", NewMessage("bob: open", group="bob"))
        queues.publish("accounts", NewMessage("ann: pay out 20", group="ann"))

        while batch := queues.lease("accounts", 10):
            print("leased together:", ", ".join(delivery.value() for delivery in batch))
            queues.ack_many([delivery.lease_id for delivery in batch])
