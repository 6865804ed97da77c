"""A ledger: a durable subscriber that writes every record of a topic to a file, and continues there after a restart.

    yirangmq serve &
    yirangmq topic publish trades '{"price": 100}'
    python examples/ledger.py unix:yirang-data/yirangmq.sock trades ledger.txt
    cat ledger.txt

It ends after two seconds without a record. A record is confirmed after it was written. After a kill, the records of the
last read may be in the file twice, with the same sequence."""

import os
import sys
from pathlib import Path

import yirangmq

if __name__ == "__main__":
    address, topic, path = sys.argv[1:]
    with (
        yirangmq.connect(address) as client,
        Path(path).open("a") as ledger,
        client.topics.subscribe(topic, name="ledger", start="beginning", idle=2) as records,
    ):
        for batch in records.batches():
            for record in batch:
                print(record.sequence, record.topic, record.value(), file=ledger)
            ledger.flush()
            os.fsync(ledger.fileno())
        print(f"{records.state}, {records.lag} behind")
