"""Take messages as they are pushed, work on each, and say so; end when nothing came for two seconds.

    python examples/subscribe.py unix:yirang-data/yirangmq.sock lines

The address may also be a store of your own, as sqlite:FILE.
For work that takes long or runs in parallel see examples/worker.py."""

import sys

import yirangmq

if __name__ == "__main__":
    address, queue = sys.argv[1:]
    with yirangmq.connect(address) as queues, queues.subscribe(queue, credit=100, idle=2) as messages:
        for delivery in messages:
            print(delivery.value())
            messages.ack_nowait(delivery)
