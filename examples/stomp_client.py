"""STOMP: a producer and a consumer with stomp.py, as for any other broker.

    pip install stomp.py
    yirangmq serve --stomp 127.0.0.1:61613 &
    python examples/stomp_client.py 61613

For two nodes with time limits for each step see stomp_two_nodes.py."""

import queue
import sys

import stomp


class Listener(stomp.ConnectionListener):
    """Its methods run on a thread of stomp.py."""

    def __init__(self):
        self.frames = queue.SimpleQueue()

    def on_receipt(self, frame):
        self.frames.put(frame)

    def on_message(self, frame):
        self.frames.put(frame)

    def on_error(self, frame):
        self.frames.put(frame)


if __name__ == "__main__":
    listener = Listener()
    connection = stomp.Connection12([("127.0.0.1", int(sys.argv[1]))], heartbeats=(5000, 5000))
    connection.set_listener("", listener)
    connection.connect("program", "", wait=True)

    connection.send("/queue/letters", '{"to": "ann"}', "application/json", headers={"receipt": "r-1", "priority": "9"})
    print(f"receipt {listener.frames.get(timeout=30).headers['receipt-id']}: the message is on disk")

    connection.subscribe("/queue/letters", id="1", ack="client-individual")
    message = listener.frames.get(timeout=30)
    print(f"message {message.body}")
    connection.ack(message.headers["ack"], receipt="r-2")
    print(f"receipt {listener.frames.get(timeout=30).headers['receipt-id']}: the ack is on disk")
    connection.disconnect()
