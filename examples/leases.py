"""Leases: a message that is not acked in time goes to the next consumer, and a late ack is refused.

    python examples/leases.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock"""

import sys

import yirangmq

if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        queues.publish("reports", "January")

        [first] = queues.lease("reports", consumer="slow", lease_seconds=0.2)
        print(f"slow has {first.value()}, attempt {first.attempt}")

        # The lease ends after 0.2 s. Another consumer waits for a message, and gets this one.
        [second] = queues.lease("reports", consumer="quick", wait=30, lease_seconds=60)
        print(f"quick has {second.value()}, attempt {second.attempt}")
        try:
            queues.ack(first.lease_id, consumer="slow")
        except yirangmq.LeaseLost:
            print("slow may not ack it any more")

        queues.extend(second.lease_id, 300, consumer="quick")  # long work: extend the lease before it ends
        queues.ack(second.lease_id, consumer="quick")
        print("quick acked it")
