"""Request and reply: a request names the queue for its reply; the reply names the request that it answers.

    python examples/request_reply.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock. On etcd see cluster_request_reply.py."""

import sys
import threading
import uuid

import yirangmq
from yirangmq import Consumer, NewMessage


def answer(queues, consumer):
    @consumer.handler("squares")
    def square(delivery):
        reply = {"square": delivery.value() ** 2}
        # The id of the reply comes from that of the request: if the request is redelivered, the reply is a duplicate.
        message = NewMessage(reply, id=f"{delivery.id}-reply", attributes={"answers": delivery.id}, ttl=60)
        queues.publish(delivery.header["attributes"]["replyTo"], message)

    consumer.run()


def ask(queues, number, replies):
    request = queues.publish("squares", NewMessage(number, attributes={"replyTo": replies}, ttl=60))
    [delivery] = queues.lease(replies, wait=30)
    queues.ack(delivery.lease_id)
    assert delivery.header["attributes"]["answers"] == request.id
    return delivery.value()["square"]


if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        consumer = Consumer(queues)
        service = threading.Thread(target=answer, args=(queues, consumer))
        service.start()
        replies = f"replies-{uuid.uuid4().hex[:8]}"  # one queue for each client
        for number in (7, 12):
            print(f"{number} squared is {ask(queues, number, replies)}")
        queues.delete_queue(replies)
        consumer.stop()
        service.join()
