"""A quota: a full queue refuses new messages, so that a producer learns that its consumers are too slow.

    python examples/quota.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock"""

import sys

import yirangmq

if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        queues.set_policy("uploads", {"quota": {"maxMessages": 3, "onFull": "reject"}})
        for n in range(5):
            try:
                queues.publish("uploads", n)
                print(f"{n} stored")
            except yirangmq.QuotaExceeded:
                print(f"{n} refused, the queue is full")
                [oldest] = queues.lease("uploads")  # consumers make room
                queues.ack(oldest.lease_id)

        queues.set_policy("uploads", {"quota": {"maxMessages": 3, "onFull": "dropOldest"}})
        for name in "abcd":
            queues.publish("uploads", name)
        print("the newest are kept:", *(delivery.value() for delivery in queues.lease("uploads", 10)))
        queues.delete_queue("uploads")
