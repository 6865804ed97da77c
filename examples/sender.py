"""A producer that does not wait for each receipt: up to 64 messages are in flight, each receipt still means on disk.

    yirangmq serve &
    python examples/sender.py unix:yirang-data/yirangmq.sock

After a lost connection the unconfirmed messages are sent again, in order, and stored once."""

import sys

import yirangmq

if __name__ == "__main__":
    confirmed = []
    with yirangmq.connect(sys.argv[1]) as queues:
        with queues.sender("samples", window=64, on_receipt=confirmed.append) as sender:
            for n in range(500):
                sender.send({"n": n})
        print(f"{len(confirmed)} on disk")

        # A refused message is an error that names it; the others are stored.
        queues.set_policy("samples", {"maxBytes": 100})
        sender = queues.sender("samples")
        sender.send("short")
        large = sender.send("x" * 200)
        sender.send("short too")
        try:
            sender.close()
        except yirangmq.QueueError as error:
            print(f"{len(error.refused)} refused: {error.refused[large].code}")
        print(f"{queues.counts('samples').ready} in the queue")
        queues.delete_queue("samples")
