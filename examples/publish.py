"""Publish lines of text as messages, as many as there are.

    yirangmq serve &
    seq 1000 | python examples/publish.py unix:yirang-data/yirangmq.sock lines

Each line is confirmed when it is on disk. A server that restarts meanwhile is waited for; no line is stored twice."""

import sys

import yirangmq

if __name__ == "__main__":
    address, queue = sys.argv[1:]
    with yirangmq.connect(address) as queues:
        receipts = queues.publish_many(queue, (line.rstrip("\n") for line in sys.stdin))
    print(f"{len(receipts)} on disk")
