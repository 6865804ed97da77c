"""A bridge: each record of a topic becomes a message of a queue, exactly once, for a consumer that may retry.

    yirangmq serve &
    python examples/bridge.py unix:yirang-data/yirangmq.sock

On the command line: yirangmq bridge add billing --topic 'shop.*' --queue billing --from-beginning"""

import sys

import yirangmq

if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as client:
        client.call("bridge_add", name="billing", queue="billing", topics=["shop.*"], start="new")

        client.topics.publish("shop.orders", {"order": 17}, key="ann")
        client.topics.publish("shop.returns", {"order": 12}, key="bob")
        client.topics.publish("other", "not for billing")

        for _ in range(2):
            [delivery] = client.lease("billing", wait=30)
            attributes = delivery.header["attributes"]
            print(f"{attributes['topic']}, key {attributes['key']}: {delivery.value()}")
            client.ack(delivery.lease_id)
        print(f"the bridge is {client.call('bridge_show', name='billing')['state']}")
        client.call("bridge_remove", name="billing")
