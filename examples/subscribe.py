"""A consumer to which messages are pushed: it acks each without waiting for the reply.

    yirangmq serve &
    seq 5 | python examples/publish.py unix:yirang-data/yirangmq.sock numbers
    python examples/subscribe.py unix:yirang-data/yirangmq.sock numbers

It ends after two seconds without a message. The address may also be a store, as sqlite:demo.db. For work that takes
long or runs in parallel see worker.py."""

import sys

import yirangmq

if __name__ == "__main__":
    address, queue = sys.argv[1:]
    with yirangmq.connect(address) as queues, queues.subscribe(queue, credit=100, idle=2) as messages:
        for delivery in messages:
            print(delivery.value())
            messages.ack_nowait(delivery)
