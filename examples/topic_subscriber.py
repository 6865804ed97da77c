"""A durable subscriber of a topic: the server stores its position, and sends the records that it missed.

    yirangmq serve &
    python examples/topic_subscriber.py unix:yirang-data/yirangmq.sock

Topics need a server. ledger.py keeps the records in a file."""

import sys

import yirangmq


def follow(client, limit):
    """Handle ``limit`` records. A record is processed when the next one is requested. Return the last sequence."""
    with client.topics.subscribe("prices", name="charts", idle=5) as records:
        for count, record in enumerate(records, 1):
            print(f"record {record.topic_sequence}: {record.key} {record.value()}")
            if count == limit:
                records.confirm(record.sequence)  # the loop requests no other
                return record.sequence
    raise SystemExit("records are missing")


if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as client:
        with client.topics.subscribe("prices", name="charts"):
            pass  # from now on the server keeps the cursor of this name
        client.topics.publish_many([("prices", 100, "A"), ("prices", 101, "A"), ("prices", 55, "B")])
        print("charts reads two records and stops")
        follow(client, 2)

        receipt = client.topics.publish("prices", 56, key="B", headers={"source": "north"})
        print("one more is published while it is away; it comes back")
        last = follow(client, 2)
        print("it has all of them" if last == receipt.sequence else "it has others")
        client.topics.drop_subscriber("charts")
