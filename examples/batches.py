"""Batches: publish, lease and ack many messages with one call each, which is one commit and one sync to disk.

    python examples/batches.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock"""

import sys

import yirangmq

if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        receipts = queues.publish_many("readings", ({"n": n} for n in range(1000)))
        print(f"{len(receipts)} on disk")

        total = 0
        while batch := queues.lease("readings", 250):
            total += sum(delivery.value()["n"] for delivery in batch)
            errors = queues.ack_many([delivery.lease_id for delivery in batch])
            print(f"leased {len(batch)}, acked {errors.count(None)}")
        print(f"the sum is {total}")

        # Each lease of a call has a result of its own: None, or the error.
        [error] = queues.ack_many(["999999-1"])
        print(f"an unknown lease: {error.code}")
