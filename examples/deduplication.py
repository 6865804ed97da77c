"""Deduplication: a repeated publish stores nothing, by message id, by deduplication key, or by equal payload.

    python examples/deduplication.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock"""

import sys

import yirangmq
from yirangmq import NewMessage


def publish(queues, queue, message):
    receipt = queues.publish(queue, message)
    print(f"{queue}: {'duplicate' if receipt.duplicate else 'stored'}")


if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        # The id of the message: unique as long as the message exists, and 10 minutes after (tombstoneSec).
        for _ in range(2):
            publish(queues, "by-id", NewMessage({"order": 17}, id="order-17"))

        # A key: for 5 minutes (dedupWindowSec) no other message with it is stored.
        for cents in (100, 200):
            publish(queues, "by-key", NewMessage({"cents": cents}, deduplication_key="payment-17"))

        # The payload: unique among the unfinished messages of a queue with this policy.
        queues.set_policy("by-payload", {"unique": True})
        for _ in range(2):
            publish(queues, "by-payload", {"resize": "photo-17.png"})
        [delivery] = queues.lease("by-payload")
        queues.ack(delivery.lease_id)
        publish(queues, "by-payload", {"resize": "photo-17.png"})  # the first one is done, so it may come again

        for queue in ("by-id", "by-key", "by-payload"):
            queues.delete_queue(queue)
