"""Dead letters: find the messages that failed, correct the cause, and redrive them.

    python examples/dead_letters.py sqlite:demo.db

The address may also be a server's: unix:yirang-data/yirangmq.sock"""

import sys

import yirangmq
from yirangmq import Consumer, Reject

PRICES = {"tea": 3}


def price_orders(queues):
    consumer = Consumer(queues)

    @consumer.handler("orders")
    def price(delivery):
        item = delivery.value()["item"]
        if item not in PRICES:
            raise Reject(f"no price for {item}")  # a retry would not help: a dead letter at once
        print(f"{item} costs {PRICES[item]}")

    consumer.run(until_empty=True)


if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        queues.publish_many("orders", [{"item": "tea"}, {"item": "milk"}, {"item": "coal"}])
        price_orders(queues)
        for letter in queues.dead_letters.list("orders"):
            print(f"dead: {letter.failure.reason_code}, {letter.failure.reason_message}")

        PRICES["milk"] = 2
        moved = queues.dead_letters.redrive("orders", "payload.item=milk")
        print(f"{moved.count} redriven")
        price_orders(queues)

        purged = queues.dead_letters.purge("orders", all=True)
        print(f"{purged.count} purged")
