"""Take messages as they are pushed, work on each, and say so; end when nothing came for two seconds.

    python examples/subscribe.py unix:yirang-data/yirangmq.sock lines

For work that takes long or runs in parallel see examples/worker.py."""

import sys

import yirangmq
from yirangmq.client.faces import Client

if __name__ == "__main__":
    address, queue = sys.argv[1:]
    with yirangmq.connect(address) as queues:
        assert isinstance(queues, Client), "a subscription needs a server"
        with queues.subscribe(queue, credit=100, idle=2) as messages:
            for delivery in messages:
                print(delivery.value())
                messages.ack_nowait(delivery)
