"""A producer of any number of messages: each line of stdin becomes one, and none is stored twice.

    yirangmq serve &
    seq 1000 | python examples/publish.py unix:yirang-data/yirangmq.sock lines

Each line is confirmed when it is on disk. If the server restarts in the meantime, the program waits for it."""

import sys

import yirangmq

if __name__ == "__main__":
    address, queue = sys.argv[1:]
    with yirangmq.connect(address) as queues:
        receipts = queues.publish_many(queue, (line.rstrip("\n") for line in sys.stdin))
    print(f"{len(receipts)} on disk")
