"""A transaction over STOMP: the ack of an order and the messages that follow from it are one commit, or nothing.

    pip install stomp.py
    yirangmq serve --stomp 127.0.0.1:61613 &
    python examples/stomp_transaction.py unix:yirang-data/yirangmq.sock 61613

Messages of different queues may be in one transaction. Python's own way: examples/hook.py derives messages."""

import queue
import sys

import stomp

import yirangmq


class Listener(stomp.ConnectionListener):
    def __init__(self):
        self.frames = queue.SimpleQueue()
        self.on_receipt = self.on_message = self.frames.put


def counts(queues):
    sent = [f"{queues.counts(name).ready} in {name}" for name in ("invoices", "parcels")]
    return ", ".join([f"{queues.counts('placed').leased} order leased", *sent])


if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        queues.publish("placed", {"order": 17})
        listener = Listener()
        connection = stomp.Connection12([("127.0.0.1", int(sys.argv[2]))])
        connection.set_listener("", listener)
        connection.connect("program", "", wait=True)
        connection.subscribe("/queue/placed", id="1", ack="client-individual")
        order = listener.frames.get(timeout=30)

        def send_both(transaction):
            connection.begin(transaction)
            connection.send("/queue/invoices", order.body, transaction=transaction)
            connection.send("/queue/parcels", order.body, transaction=transaction)
            connection.ack(order.headers["ack"], transaction=transaction)

        send_both("t-1")
        connection.abort("t-1", receipt="aborted")
        listener.frames.get(timeout=30)
        print("after abort: ", counts(queues))

        send_both("t-2")
        connection.commit("t-2", receipt="committed")
        listener.frames.get(timeout=30)
        print("after commit:", counts(queues))
        connection.disconnect()
        for name in ("invoices", "parcels"):
            queues.purge(name, all=True)
